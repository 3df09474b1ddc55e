//! Prompts without text: only which tokens are equal.
//!
//! A prompt is a list of [`Piece`]s, each some tokens of a numbered text. Two prompts share exactly the
//! pieces that they share from the start. Caches and indexes see no more of a text than that: engines get
//! block names from the pieces, and routers get chunk digests.

use std::ops::Range;

use warmroute_engine::BlockName;
use warmroute_prompt::ChunkSizes;

use crate::random::mix;

/// The first `tokens` tokens of the text called `content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the text, spread over all 64 bits like a hash.
    pub content: u64,
    /// Number of tokens.
    pub tokens: u32,
}

/// Tokens in a list of pieces. Saturates at `u32::MAX`, which no engine accepts.
pub fn tokens(pieces: &[Piece]) -> u32 {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.tokens))
}

/// Names of all full blocks of a prompt and its answer. A name covers everything up to the block's end.
///
/// Blocks within one piece are named in groups of sixteen, counted in the last bits, because the engine model
/// stores such names together.
pub fn block_names(prompt: &[Piece], answer: &[Piece], block_tokens: u32) -> Vec<BlockName> {
    let all = tokens(prompt).saturating_add(tokens(answer));
    let mut names = Vec::with_capacity((all / block_tokens) as usize);
    let (mut name, mut filled) = (0_u64, 0);
    for piece in prompt.iter().copied().chain(answer.iter().copied()) {
        // Fill the block that the previous piece left unfinished.
        let joint = if filled == 0 { 0 } else { piece.tokens.min(block_tokens - filled) };
        if joint > 0 {
            name = fold(name, piece.content, 0, joint);
            filled = (filled + joint) % block_tokens;
            if filled == 0 {
                name &= !(PAGE - 1);
                names.push(BlockName(name));
            }
        }
        let whole = (piece.tokens - joint) / block_tokens;
        for block in 0..whole {
            let counted = u64::from(block) % PAGE;
            let at = joint + block * block_tokens;
            name = if counted == 0 {
                fold(name, piece.content, at, block_tokens) & !(PAGE - 1)
            } else {
                name + 1
            };
            names.push(BlockName(name));
        }
        let at = joint + whole * block_tokens;
        if at < piece.tokens {
            name = fold(name, piece.content, at, piece.tokens - at);
            filled = piece.tokens - at;
        }
    }
    names
}

/// Block names that the engine model stores together.
const PAGE: u64 = 16;

/// Digests of all whole chunks of a prompt, written to a reused buffer. The first chunks have `chunk_tokens`
/// tokens and later ones more. A digest does not depend on the chunks before it.
pub fn chunk_digests(prompt: &[Piece], chunk_tokens: u32, digests: &mut Vec<u64>) {
    digests.clear();
    let sizes = ChunkSizes::of_unit(chunk_tokens);
    for_each_cell(prompt.iter().copied(), |chunk| sizes.bytes_of(chunk), |cell| digests.push(cell));
}

/// Appends the ids of the tokens from `from` up to, but excluding, `to`.
pub fn token_ids(pieces: impl Iterator<Item = Piece>, from: u32, to: u32, ids: &mut Vec<u32>) {
    let mut before = 0;
    for piece in pieces {
        let first = from.saturating_sub(before).min(piece.tokens);
        let last = to.saturating_sub(before).min(piece.tokens);
        ids.extend((first..last).map(|at| token_id(piece.content, at)));
        before += piece.tokens;
    }
}

/// A range of tokens, stored as pieces to save memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    pieces: Vec<Piece>,
    /// Range of the excerpt within `pieces`, in tokens.
    tokens: Range<u32>,
}

impl Excerpt {
    /// The tokens of a range of a list of pieces.
    pub fn of<'a>(row: impl Iterator<Item = &'a Piece>, tokens: Range<u32>) -> Excerpt {
        let (mut pieces, mut before, mut skipped) = (Vec::new(), 0, 0);
        for &piece in row {
            if before + piece.tokens <= tokens.start {
                skipped += piece.tokens;
            } else if before < tokens.end {
                pieces.push(piece);
            }
            before += piece.tokens;
        }
        Excerpt { pieces, tokens: tokens.start - skipped..tokens.end - skipped }
    }

    /// Token ids of the excerpt.
    pub fn token_ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.tokens.len());
        token_ids(self.pieces.iter().copied(), self.tokens.start, self.tokens.end, &mut ids);
        ids
    }
}

/// Id of a text's `at`-th token. Ids exceed real vocabularies; they only need to differ between texts.
fn token_id(content: u64, at: u32) -> u32 {
    (content.wrapping_add(u64::from(at).wrapping_mul(ODD)).wrapping_mul(ODD) >> 32) as u32
}

/// Key of the first `tokens` tokens.
pub fn head_key(prompt: &[Piece], tokens: u32) -> u64 {
    let (mut key, mut left) = (0, tokens);
    for piece in prompt {
        let taken = piece.tokens.min(left);
        key = fold(key, piece.content, 0, taken);
        left -= taken;
        if left == 0 {
            break;
        }
    }
    key
}

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Cuts pieces into cells and emits the digest of each whole cell.
fn for_each_cell(
    pieces: impl Iterator<Item = Piece>,
    size_of: impl Fn(usize) -> u32,
    mut each: impl FnMut(u64),
) {
    let (mut filled, mut cell, mut number, mut size) = (0, 0, 0, size_of(0));
    for piece in pieces {
        let mut at = 0;
        while at < piece.tokens {
            let taken = (size - filled).min(piece.tokens - at);
            cell = fold(cell, piece.content, at, taken);
            filled += taken;
            at += taken;
            if filled == size {
                each(cell);
                number += 1;
                (filled, cell, size) = (0, 0, size_of(number));
            }
        }
    }
}

/// Folds `taken` tokens of a text, starting at `at`, into a digest.
fn fold(cell: u64, content: u64, at: u32, taken: u32) -> u64 {
    let place = (u64::from(at) << 32 | u64::from(taken)).wrapping_mul(ODD);
    mix(cell.wrapping_mul(ODD) ^ content.wrapping_add(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(text: u64, tokens: u32) -> Piece {
        Piece { content: mix(text + 1), tokens }
    }

    /// Tokens one by one, as a reference for equality.
    fn spelled(pieces: &[Piece]) -> Vec<(u64, u32)> {
        pieces.iter().flat_map(|piece| (0..piece.tokens).map(|at| (piece.content, at))).collect()
    }

    fn common<T: PartialEq>(one: &[T], other: &[T]) -> usize {
        one.iter().zip(other).take_while(|(a, b)| a == b).count()
    }

    proptest! {
        /// Lists that start with the same pieces, the last of which may be cut short.
        #[test]
        fn prompts_share_blocks_and_chunks_up_to_the_first_difference(
            head in prop::collection::vec((0_u64..5, 1_u32..70), 0..6),
            cut in 1_u32..70,
            left in (5_u64..9, 1_u32..90),
            right in (9_u64..12, 1_u32..90),
            size in 1_u32..40,
        ) {
            let head: Vec<Piece> = head.into_iter().map(|(text, tokens)| piece(text, tokens)).collect();
            let one = [&head[..], &[piece(left.0, left.1)]].concat();
            let mut other = [&head[..], &[piece(right.0, right.1)]].concat();
            if let Some(last) = head.len().checked_sub(1) {
                other[last].tokens = other[last].tokens.min(cut);
            }
            let shared = common(&spelled(&one), &spelled(&other)) as u32;
            let names = |row: &[Piece]| block_names(row, &[piece(99, 1)], size);
            let with_answers = [(&one, &other)].map(|(a, b)| common(&names(a), &names(b)));
            prop_assert_eq!(with_answers, [(shared / size) as usize]);
            let (mut these, mut those) = (Vec::new(), Vec::new());
            chunk_digests(&one, size, &mut these);
            chunk_digests(&other, size, &mut those);
            prop_assert_eq!(common(&these, &those), (shared / size) as usize);
        }
    }

    #[test]
    fn a_repeated_answer_has_the_same_block_names() {
        let (question, answer, more) = (piece(1, 37), piece(2, 30), piece(3, 50));
        let first = block_names(&[question], &[answer], 16);
        let second = block_names(&[question, answer, more], &[piece(4, 9)], 16);
        assert_eq!(first.len(), 4);
        assert_eq!(first[..], second[..4]);
    }

    #[test]
    fn ids_of_a_range_are_a_range_of_all_ids() {
        let row = [piece(1, 37), piece(2, 30), piece(3, 50)];
        let ids = |from, to| {
            let mut ids = Vec::new();
            token_ids(row.iter().copied(), from, to, &mut ids);
            ids
        };
        let all = ids(0, 117);
        assert_eq!(all.len(), 117);
        for (from, to) in [(0, 16), (32, 48), (36, 68), (67, 117), (5, 5)] {
            assert_eq!(ids(from, to), all[from as usize..to as usize]);
            assert_eq!(Excerpt::of(row.iter(), from..to).token_ids(), all[from as usize..to as usize]);
        }
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 110, "other tokens, other ids");
    }

    #[test]
    fn the_head_key_depends_on_the_head_only() {
        let key = |rest| head_key(&[piece(1, 10), piece(rest, 10)], 10);
        assert_eq!(key(2), key(3));
        let longer = |rest| head_key(&[piece(1, 10), piece(rest, 10)], 11);
        assert_ne!(longer(2), longer(3));
    }
}
