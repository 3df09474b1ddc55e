//! Vocabulary: token ids to bytes.
//!
//! Engines report cached blocks as token ids. As bytes, blocks can be compared with a prompt that was never
//! tokenized. All tokens are in one array, so a block of sixteen tokens takes sixteen lookups and short
//! copies.

use super::alphabet::Alphabet;
use super::unaligned::Unaligned;

/// Tokens up to this length are copied with one fixed-size move; longer ones are rare.
const STRIDE: usize = 16;

/// Limit of token ids. The largest known vocabularies have 262,144; a higher id would only waste memory.
const IDS_MAX: u32 = 1 << 24;

/// Bytes of each token.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// All tokens, followed by a stride of padding so that a fixed-size copy never reads past the end.
    bytes: Vec<u8>,
    /// Start of each token; one more entry than ids.
    starts: Vec<u32>,
    /// One bit per existing id, because an empty token differs from a missing one.
    exists: Vec<u64>,
}

/// Error of a reported token that the vocabulary lacks: the worker serves another model, or images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {id} is not in the vocabulary")]
pub struct UnknownToken {
    /// Id of the token.
    pub id: u32,
}

impl Vocabulary {
    /// Builds a vocabulary from tokens in any order. The last of two tokens with one id counts; ids from 2^24
    /// on are dropped.
    pub fn new(mut tokens: Vec<(u32, Vec<u8>)>) -> Vocabulary {
        tokens.retain(|(id, _)| *id < IDS_MAX);
        tokens.sort_by_key(|(id, _)| *id);
        let ids = tokens.last().map_or(0, |(id, _)| *id as usize + 1);
        let mut vocabulary = Vocabulary {
            bytes: Vec::with_capacity(tokens.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() + STRIDE),
            starts: Vec::with_capacity(ids + 1),
            exists: vec![0; ids.div_ceil(64)],
        };
        let mut tokens = tokens.into_iter().peekable();
        for id in 0..ids as u32 {
            vocabulary.starts.push(vocabulary.bytes.len() as u32);
            while let Some((_, bytes)) = tokens.next_if(|(next, _)| *next == id) {
                vocabulary.bytes.truncate(vocabulary.starts[id as usize] as usize);
                vocabulary.bytes.extend_from_slice(&bytes);
                vocabulary.exists[id as usize / 64] |= 1 << (id % 64);
            }
        }
        vocabulary.starts.push(vocabulary.bytes.len() as u32);
        vocabulary.bytes.resize(vocabulary.bytes.len() + STRIDE, 0);
        vocabulary
    }

    /// Bytes of a token, if the id exists.
    #[inline]
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        let (start, end) = self.place(id)?;
        Some(&self.bytes[start..end])
    }

    #[inline]
    fn place(&self, id: u32) -> Option<(usize, usize)> {
        let &[start, end] = self.starts.get(id as usize..)?.first_chunk()?;
        let is_there = start != end || self.exists[id as usize / 64] >> (id % 64) & 1 == 1;
        is_there.then_some((start as usize, end as usize))
    }

    /// One more than the highest token id.
    pub fn ids(&self) -> usize {
        self.starts.len() - 1
    }

    /// Memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + 4 * self.starts.capacity() + 8 * self.exists.capacity()
    }

    /// Writes whole blocks of `block_tokens` tokens as bytes; an incomplete last block is dropped. Stops at
    /// an unknown token: the blocks before it are in `blocks`.
    pub fn write_blocks(
        &self,
        tokens: &[u32],
        block_tokens: usize,
        blocks: &mut Blocks,
    ) -> Result<(), UnknownToken> {
        blocks.clear();
        for block in tokens.chunks_exact(block_tokens.max(1)) {
            let start = blocks.end();
            let end = self.append(block, &mut blocks.bytes, start)?;
            blocks.ends.push(end as u32);
        }
        Ok(())
    }

    /// The same with marks, each before a token. Marks are in the order of their tokens.
    pub fn write_marked_blocks<M: AsRef<[u8]>>(
        &self,
        tokens: &[u32],
        block_tokens: usize,
        marks: impl Iterator<Item = (usize, M)>,
        blocks: &mut Blocks,
    ) -> Result<(), UnknownToken> {
        let mut marks = marks.peekable();
        if marks.peek().is_none() {
            return self.write_blocks(tokens, block_tokens, blocks);
        }
        blocks.clear();
        let block_tokens = block_tokens.max(1);
        for (number, block) in tokens.chunks_exact(block_tokens).enumerate() {
            let (first, mut written) = (number * block_tokens, 0);
            let mut end = blocks.end();
            while let Some((token, mark)) = marks.next_if(|(token, _)| *token < first + block_tokens) {
                let at = token.saturating_sub(first).max(written);
                end = self.append(&block[written..at], &mut blocks.bytes, end)?;
                written = at;
                let mark = mark.as_ref();
                blocks.bytes.resize(blocks.bytes.len().max(end + mark.len()), 0);
                blocks.bytes[end..end + mark.len()].copy_from_slice(mark);
                end += mark.len();
            }
            end = self.append(&block[written..], &mut blocks.bytes, end)?;
            blocks.ends.push(end as u32);
        }
        Ok(())
    }

    /// Writes tokens to `out` at `at`, and grows it with spare room. Returns their end.
    #[inline]
    fn append(&self, tokens: &[u32], out: &mut Vec<u8>, mut at: usize) -> Result<usize, UnknownToken> {
        let room = at + (tokens.len() + 1) * STRIDE;
        if out.len() < room {
            out.resize(room.max(out.len() * 2), 0);
        }
        for &id in tokens {
            let (start, end) = self.place(id).ok_or(UnknownToken { id })?;
            let length = end - start;
            if length <= STRIDE && at + STRIDE <= out.len() {
                out[at..at + STRIDE].copy_from_slice(&self.bytes[start..start + STRIDE]);
            } else {
                out.resize(out.len().max(at + length + STRIDE), 0);
                out[at..at + length].copy_from_slice(&self.bytes[start..end]);
            }
            at += length;
        }
        Ok(at)
    }

    /// Appends the bytes of tokens to `out`.
    pub fn write(&self, tokens: &[u32], out: &mut Vec<u8>) -> Result<(), UnknownToken> {
        let start = out.len();
        let written = self.append(tokens, out, start);
        out.truncate(*written.as_ref().unwrap_or(&start));
        written.map(|_| ())
    }
}

/// Blocks of tokens as bytes. Reusing the value avoids allocation.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// Buffer that may be longer than the blocks; the rest is scratch.
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Blocks {
    fn clear(&mut self) {
        self.ends.clear();
    }

    fn end(&self) -> usize {
        self.ends.last().map_or(0, |&end| end as usize)
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of each block, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|n| {
            let start = n.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.bytes[start as usize..self.ends[n] as usize]
        })
    }
}

/// How a model's tokens spell bytes.
pub(crate) enum Spelling {
    /// In characters that stand for one byte each.
    Letters(Box<Alphabet>),
    /// As text, a space written as [`MARK`].
    Marked,
    /// As text.
    Plain,
}

/// SentencePiece's character for a space.
pub(crate) const MARK: &str = "\u{2581}";

/// Whether a model has a token per byte, for text outside its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteFallback {
    Yes,
    No,
}

impl Spelling {
    /// Bytes of a model's token.
    pub fn bytes(&self, token: &str, fallback: ByteFallback) -> Vec<u8> {
        if fallback == ByteFallback::Yes
            && let Some(byte) = fallback_byte(token)
        {
            return vec![byte];
        }
        match self {
            // A special token in the vocabulary is not written in this alphabet.
            Spelling::Letters(alphabet) => alphabet.bytes(token).unwrap_or_else(|| token.as_bytes().to_vec()),
            Spelling::Marked => token.replace(MARK, " ").into_bytes(),
            Spelling::Plain => token.as_bytes().to_vec(),
        }
    }

    /// Bytes of an added token, whose content is plain text.
    pub fn added_bytes(&self, content: &str) -> Vec<u8> {
        match self {
            Spelling::Marked => content.replace(MARK, " ").into_bytes(),
            _ => content.as_bytes().to_vec(),
        }
    }

    /// Refuses a vocabulary that loses ordinary text. Control characters may be missing, because prompts do
    /// not contain them.
    pub fn check(&self, tokens: &[(u32, Vec<u8>)], fallback: ByteFallback) -> Result<(), Unaligned> {
        let mut has = [false; 256];
        for (_, bytes) in tokens {
            if let [byte] = bytes[..] {
                has[usize::from(byte)] = true;
            }
        }
        let in_utf8 = |byte: u8| matches!(byte, b'\n' | 0x20..=0x7e | 0x80..=0xbf | 0xc2..=0xf4);
        let needs_all = fallback == ByteFallback::Yes || matches!(self, Spelling::Letters(_));
        let needed = |byte: u8| in_utf8(byte) && (needs_all || byte >= 0x80);
        match (0..=255_u8).find(|&byte| needed(byte) && !has[usize::from(byte)]) {
            Some(byte) => Err(Unaligned::LossyVocabulary(byte)),
            None => Ok(()),
        }
    }
}

/// Byte of a token written as `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vocabulary(tokens: &[&str]) -> Vocabulary {
        Vocabulary::new((0..).zip(tokens).map(|(id, token)| (id, token.as_bytes().to_vec())).collect())
    }

    #[test]
    fn ids_that_do_not_exist_have_no_bytes() {
        let vocabulary =
            Vocabulary::new(vec![(7, b"seven".to_vec()), (2, Vec::new()), (4, b"four".to_vec())]);
        assert_eq!(vocabulary.bytes(4), Some(&b"four"[..]));
        assert_eq!(vocabulary.bytes(7), Some(&b"seven"[..]));
        assert_eq!(vocabulary.bytes(2), Some(&b""[..]), "an empty token is a token");
        assert_eq!([0, 3, 5, 8, u32::MAX].map(|id| vocabulary.bytes(id)), [None; 5]);
        assert_eq!(vocabulary.ids(), 8);
        assert_eq!(Vocabulary::new(vec![(u32::MAX, b"x".to_vec())]).ids(), 0, "no file makes it huge");
    }

    #[test]
    fn the_last_of_two_tokens_with_one_id_counts() {
        let vocabulary =
            Vocabulary::new(vec![(0, b"first".to_vec()), (1, b"x".to_vec()), (0, b"last".to_vec())]);
        assert_eq!((vocabulary.bytes(0), vocabulary.bytes(1)), (Some(&b"last"[..]), Some(&b"x"[..])));
    }

    #[test]
    fn blocks_before_an_unknown_token_are_kept() {
        let vocabulary = vocabulary(&["a", "b"]);
        let mut blocks = Blocks::default();
        let written = vocabulary.write_blocks(&[0, 1, 1, 9], 2, &mut blocks);
        assert_eq!(written, Err(UnknownToken { id: 9 }));
        assert_eq!(blocks.iter().collect::<Vec<_>>(), [b"ab"]);
    }

    #[test]
    fn spaces_and_single_bytes_are_spelled_out() {
        let fallback = ByteFallback::Yes;
        assert_eq!(Spelling::Marked.bytes("▁a▁", fallback), b" a ");
        assert_eq!(Spelling::Marked.bytes("<0x0A>", fallback), b"\n");
        assert_eq!(Spelling::Marked.bytes("<0x0A>", ByteFallback::No), b"<0x0A>");
        assert_eq!(Spelling::Letters(Box::new(Alphabet::new())).bytes("Ġa", ByteFallback::No), b" a");
        assert_eq!(
            Spelling::Letters(Box::new(Alphabet::new())).bytes("<｜end｜>", ByteFallback::No),
            "<｜end｜>".as_bytes()
        );
    }

    #[test]
    fn a_vocabulary_that_loses_text_is_refused() {
        let all: Vec<_> = (0..=255).map(|byte: u8| (u32::from(byte), vec![byte])).collect();
        let letters = Spelling::Letters(Box::new(Alphabet::new()));
        assert_eq!(letters.check(&all, ByteFallback::No), Ok(()));
        assert_eq!(letters.check(&all[..0xe2], ByteFallback::No), Err(Unaligned::LossyVocabulary(0xe2)));
        let words = vec![(0, b"a".to_vec())];
        assert_eq!(Spelling::Marked.check(&words, ByteFallback::No), Err(Unaligned::LossyVocabulary(0x80)));
    }

    proptest! {
        /// The blocks are the tokens' bytes in order, for any token length and any earlier use of the buffer.
        #[test]
        fn blocks_are_their_tokens_bytes(
            words in prop::collection::vec("[a-z]{0,40}", 1..20),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
            block_tokens in 1_usize..9,
        ) {
            let vocabulary = vocabulary(&words.iter().map(String::as_str).collect::<Vec<_>>());
            let tokens: Vec<u32> = picks.iter().map(|pick| pick.index(words.len()) as u32).collect();
            let mut blocks = Blocks::default();
            for _ in 0..2 {
                vocabulary.write_blocks(&tokens, block_tokens, &mut blocks).unwrap();
                let truth: Vec<String> = tokens
                    .chunks_exact(block_tokens)
                    .map(|block| block.iter().map(|&id| &*words[id as usize]).collect())
                    .collect();
                prop_assert_eq!(blocks.iter().collect::<Vec<_>>(), truth.iter().map(String::as_bytes).collect::<Vec<_>>());
            }
            let mut whole = b"before".to_vec();
            vocabulary.write(&tokens, &mut whole).unwrap();
            let truth: String = tokens.iter().map(|&id| &*words[id as usize]).collect();
            prop_assert_eq!(whole, format!("before{truth}").into_bytes());
        }
    }
}
