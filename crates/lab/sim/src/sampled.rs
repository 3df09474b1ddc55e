//! Answers as engines sample them.
//!
//! An engine caches the tokens that it sampled. When a later prompt repeats the answer, its text may tokenize otherwise, and
//! the engine finds only the beginning. Routers see the same text in both cases.

use warmroute_engine::BlockName;

use crate::Piece;
use crate::prompt::block_names;
use crate::random::mix;
use crate::session::Turn;

/// Separates these draws from others about the same text.
const SAMPLED: u64 = 0x5a3d_1e6f;

/// Names of all full blocks of a turn. The share `retokenized` of its answers differs from the tokens of their text.
pub fn sampled_chain(turn: &Turn, block_tokens: u32, retokenized: f64) -> Vec<BlockName> {
    if retokenized == 0.0 {
        return block_names(&turn.prompt, &turn.answer, block_tokens);
    }
    let sampled: Vec<Piece> = turn.answer.iter().flat_map(|&piece| as_sampled(piece, retokenized)).collect();
    block_names(&turn.prompt, &sampled, block_tokens)
}

/// The sampled tokens of a piece: the same text up to some token, and other tokens from there on if it is one of those that
/// differ.
fn as_sampled(piece: Piece, retokenized: f64) -> impl Iterator<Item = Piece> {
    let (drawn, at) = (mix(piece.content ^ SAMPLED), mix(piece.content.wrapping_add(SAMPLED)));
    let differs = (drawn >> 11) as f64 / (1_u64 << 53) as f64 <= retokenized;
    let same = if differs { (at % u64::from(piece.tokens.max(1))) as u32 } else { piece.tokens };
    let rest = Piece { content: drawn, tokens: piece.tokens - same };
    [Piece { tokens: same, ..piece }, rest].into_iter().filter(|piece| piece.tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::Micros;

    use crate::session::Thread;

    #[test]
    fn an_answer_that_differs_shares_its_beginning_with_its_text() {
        let answers = (0..100).map(|text| Piece { content: mix(text), tokens: 1_600 });
        let shared: Vec<usize> = answers
            .map(|answer| {
                let (think, thread) = (Micros::ZERO, Thread::default());
                let turn = Turn { think, thread, prompt: Vec::new(), answer: vec![answer] };
                let (same, other) = (sampled_chain(&turn, 16, 0.0), sampled_chain(&turn, 16, 0.5));
                assert_eq!((same.len(), other.len()), (100, 100));
                same.iter().zip(&other).take_while(|(same, other)| same == other).count()
            })
            .collect();
        let whole = shared.iter().filter(|&&blocks| blocks == 100).count();
        assert!((35..=65).contains(&whole), "half of them: {whole}");
        let parts: usize = shared.iter().filter(|&&blocks| blocks < 100).sum();
        assert!((35..=65).contains(&(parts / (100 - whole))), "the others differ anywhere");
    }
}
