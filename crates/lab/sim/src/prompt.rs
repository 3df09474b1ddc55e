//! Prompts without text: which tokens are the same as which, and nothing else.
//!
//! A prompt is a row of [`Piece`]s: so many tokens of the text with this number. Two prompts share exactly what their
//! rows share from the start. That is all that caches and indexes can see of a text, so engines get the names of their
//! blocks from it, and the router the digests of its chunks, cut at their own borders from the same row.

use std::ops::Range;

use warmroute_engine::BlockName;
use warmroute_prompt::ChunkSizes;

use crate::random::mix;

/// The first `tokens` tokens of the text called `content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which text. Numbers must be spread over all 64 bits, as hashes are.
    pub content: u64,
    /// How much of it.
    pub tokens: u32,
}

/// Tokens in a row of pieces; at most what a `u32` holds, which no engine takes.
pub fn tokens(pieces: &[Piece]) -> u32 {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.tokens))
}

/// The names of all full blocks of a prompt and its answer: each stands for everything up to its end.
///
/// Blocks that lie in one piece are named in sixteens, counted in the last bits, because engines keep such names together.
pub fn block_names(prompt: &[Piece], answer: &[Piece], block_tokens: u32) -> Vec<BlockName> {
    let all = tokens(prompt).saturating_add(tokens(answer));
    let mut names = Vec::with_capacity((all / block_tokens) as usize);
    let (mut name, mut filled) = (0_u64, 0);
    for piece in prompt.iter().copied().chain(answer.iter().copied()) {
        // The block that the piece before has left unfinished.
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

/// Names that an engine keeps together.
const PAGE: u64 = 16;

/// Digests of all whole chunks of a prompt, of so many tokens at first and more later, into memory that is used again. A chunk's digest does not depend on what
/// stands before it, as that of a chunk of bytes does not.
pub fn chunk_digests(prompt: &[Piece], chunk_tokens: u32, digests: &mut Vec<u64>) {
    digests.clear();
    let sizes = ChunkSizes::of_unit(chunk_tokens);
    for_each_cell(prompt.iter().copied(), |chunk| sizes.bytes_of(chunk), |cell| digests.push(cell));
}

/// Appends token ids: those from the `from`-th to before the `to`-th token of a prompt and its answer.
pub fn token_ids(pieces: impl Iterator<Item = Piece>, from: u32, to: u32, ids: &mut Vec<u32>) {
    let mut before = 0;
    for piece in pieces {
        let first = from.saturating_sub(before).min(piece.tokens);
        let last = to.saturating_sub(before).min(piece.tokens);
        ids.extend((first..last).map(|at| token_id(piece.content, at)));
        before += piece.tokens;
    }
}

/// Some of the tokens of a row, kept as pieces: a thousand tokens are a few words of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    pieces: Vec<Piece>,
    /// Where it begins and ends in them.
    tokens: Range<u32>,
}

impl Excerpt {
    /// These tokens of a row.
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

    /// Their ids.
    pub fn token_ids(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.tokens.len());
        token_ids(self.pieces.iter().copied(), self.tokens.start, self.tokens.end, &mut ids);
        ids
    }
}

/// The id of a text's `at`-th token. No vocabulary is this large; what matters is that other texts have others.
fn token_id(content: u64, at: u32) -> u32 {
    (content.wrapping_add(u64::from(at).wrapping_mul(ODD)).wrapping_mul(ODD) >> 32) as u32
}

/// A key for the first `tokens` tokens.
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

/// Cuts pieces into cells of `size` tokens and gives each whole one's digest.
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

/// Goes on with `taken` tokens of a text, from its `at`-th on.
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

    /// The tokens one by one, as a model of what is equal to what.
    fn spelled(pieces: &[Piece]) -> Vec<(u64, u32)> {
        pieces.iter().flat_map(|piece| (0..piece.tokens).map(|at| (piece.content, at))).collect()
    }

    fn common<T: PartialEq>(one: &[T], other: &[T]) -> usize {
        one.iter().zip(other).take_while(|(a, b)| a == b).count()
    }

    proptest! {
        /// Rows that begin with the same pieces, the last of which may be cut short.
        #[test]
        fn what_is_shared_is_what_stands_at_both_starts(
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
    fn an_answer_that_is_asked_about_is_found_again() {
        let (question, answer, more) = (piece(1, 37), piece(2, 30), piece(3, 50));
        let first = block_names(&[question], &[answer], 16);
        let second = block_names(&[question, answer, more], &[piece(4, 9)], 16);
        assert_eq!(first.len(), 4);
        assert_eq!(first[..], second[..4]);
    }

    #[test]
    fn token_ids_are_those_of_the_whole_row_cut_out() {
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
    fn the_head_key_sees_the_head_and_no_more() {
        let key = |rest| head_key(&[piece(1, 10), piece(rest, 10)], 10);
        assert_eq!(key(2), key(3));
        let longer = |rest| head_key(&[piece(1, 10), piece(rest, 10)], 11);
        assert_ne!(longer(2), longer(3));
    }
}
