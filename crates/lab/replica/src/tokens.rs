//! A simple invertible tokenizer: a token id encodes its bytes.
//!
//! Real tokenizers need a vocabulary file. Routers only need text that maps to tokens deterministically,
//! about four bytes each, and back. Text is cut from its start into chunks of four ASCII bytes, or of three
//! bytes if one of the next four is not ASCII; the bytes are the id:
//!
//! ```text
//!   0..256 special │ 1 byte: 2^8 │ 2 bytes: 2^16 │ 3 bytes: 2^24 │ 4 ASCII bytes: 2^28 │
//! ```
//!
//! Every id fits into 31 bits, and text that grows at its end keeps all tokens but the last.
//!
//! No file can list that many ids, and a router that reads KV events needs such a file. [`Tokenizer::Pairs`]
//! therefore cuts two bytes per token: 66,048 ids with the same numbering. `model.rs` writes it as a
//! `tokenizer.json`.

/// A token id.
pub(crate) type Token = u32;

/// Whether a token has no text.
pub(crate) fn is_special(token: Token) -> bool {
    !(ONE..IMAGE_START).contains(&token)
}

/// The first token of every prompt.
pub(crate) const BOS: Token = 0;
/// End of a turn, which a model generates when it stops by itself.
pub(crate) const END_OF_TURN: Token = 1;
/// Header of a role without its own header token; the role's name follows.
pub(crate) const HEADER_OTHER: Token = 7;
/// The placeholder of an image, one for each of its tokens.
pub(crate) const IMAGE: Token = 8;

/// Marks tokens of an image inside this engine. Their low bits are the image's hash, so that a block's name depends on
/// it; clients and subscribers see [`IMAGE`] and, in events, the hash beside it.
const IMAGE_START: Token = 1 << 31;
const IMAGE_REST: Token = IMAGE_START | 1 << 30;
const IMAGE_HASH: Token = (1 << 30) - 1;

/// The tokens of an image, given by its URL or data: as many as its hash says.
pub(crate) fn image(identity: &str) -> impl Iterator<Item = Token> {
    let hash = xxhash_rust::xxh3::xxh3_64(identity.as_bytes());
    let (id, count) = (hash as Token & IMAGE_HASH, 20 + (hash >> 40) % 30);
    (0..count).map(move |at| id | if at == 0 { IMAGE_START } else { IMAGE_REST })
}

/// A token as others see it.
pub(crate) fn seen(token: Token) -> Token {
    if token >= IMAGE_START { IMAGE } else { token }
}

/// The hash of the image that a token belongs to, and whether it is the image's first.
pub(crate) fn image_of(token: Token) -> Option<(u32, bool)> {
    (token >= IMAGE_START).then_some((token & IMAGE_HASH, token & IMAGE_REST != IMAGE_REST))
}

/// Roles whose header is one token: their index here plus 2.
pub(crate) const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "developer"];

const ONE: Token = 256;
const TWO: Token = ONE + (1 << 8);
const THREE: Token = TWO + (1 << 16);
const FOUR: Token = THREE + (1 << 24);
/// Exclusive upper bound of all ids.
const VOCABULARY: Token = FOUR + (1 << 28);

/// How text is cut into tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tokenizer {
    /// Four ASCII bytes per token, the average of real tokenizers. No tokenizer.json can describe it.
    #[default]
    Quads,
    /// Two bytes per token, as in the model folder that [`write_model`](crate::write_model) writes.
    Pairs,
}

impl Tokenizer {
    /// Bytes of generated text per token.
    pub(crate) fn chunk_bytes(self) -> usize {
        match self {
            Tokenizer::Quads => 4,
            Tokenizer::Pairs => 2,
        }
    }

    /// Exclusive upper bound of all ids.
    pub(crate) fn vocabulary(self) -> Token {
        match self {
            Tokenizer::Quads => VOCABULARY,
            Tokenizer::Pairs => THREE,
        }
    }

    /// Appends the tokens of `text`, without special tokens.
    pub(crate) fn encode(self, text: &[u8], tokens: &mut Vec<Token>) {
        match self {
            Tokenizer::Quads => encode(text, tokens),
            Tokenizer::Pairs => tokens.extend(text.chunks(2).map(|chunk| first_chunk(chunk).0)),
        }
    }
}

/// Header token of a role, if it has one.
pub(crate) fn header(role: &str) -> Option<Token> {
    let at = ROLES.iter().position(|known| *known == role)?;
    Some(2 + at as Token)
}

/// Appends the tokens of `text`.
fn encode(text: &[u8], tokens: &mut Vec<Token>) {
    tokens.reserve(text.len().div_ceil(4));
    let mut rest = text;
    while !rest.is_empty() {
        let (token, bytes) = first_chunk(rest);
        tokens.push(token);
        rest = &rest[bytes..];
    }
}

/// Bytes of `tokens`; special tokens have none.
pub(crate) fn decode(tokens: &[Token]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tokens.len() * 4);
    for &token in tokens {
        decode_one(token, &mut bytes);
    }
    bytes
}

fn first_chunk(text: &[u8]) -> (Token, usize) {
    match *text {
        [a, b, c, d, ..] if (a | b | c | d).is_ascii() => {
            let id = u32::from(a) << 21 | u32::from(b) << 14 | u32::from(c) << 7 | u32::from(d);
            (FOUR + id, 4)
        }
        [a, b, c, ..] => (THREE + (u32::from(a) << 16 | u32::from(b) << 8 | u32::from(c)), 3),
        [a, b] => (TWO + (u32::from(a) << 8 | u32::from(b)), 2),
        [a] => (ONE + u32::from(a), 1),
        [] => unreachable!("encode stops at the end of the text"),
    }
}

fn decode_one(token: Token, bytes: &mut Vec<u8>) {
    match token {
        FOUR..VOCABULARY => bytes.extend([21, 14, 7, 0].map(|shift| ((token - FOUR) >> shift & 0x7f) as u8)),
        THREE..FOUR => bytes.extend_from_slice(&(token - THREE).to_be_bytes()[1..]),
        TWO..THREE => bytes.extend_from_slice(&(token - TWO).to_be_bytes()[2..]),
        ONE..TWO => bytes.push((token - ONE) as u8),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_round_trip_and_fit_their_vocabulary() {
        for text in ["", "a", "ab", "naïve café", "日本語"] {
            let mut tokens = Vec::new();
            Tokenizer::Pairs.encode(text.as_bytes(), &mut tokens);
            assert_eq!(decode(&tokens), text.as_bytes());
            assert_eq!(tokens.len(), text.len().div_ceil(2));
            assert!(tokens.iter().all(|token| *token < Tokenizer::Pairs.vocabulary()));
        }
    }

    fn tokens_of(text: &str) -> Vec<Token> {
        let mut tokens = Vec::new();
        encode(text.as_bytes(), &mut tokens);
        tokens
    }

    #[test]
    fn every_text_round_trips() {
        for text in ["", "a", "ab", "abc", "abcd", "abcde", "naïve café", "日本語のテキスト", "a\u{0}b\u{7f}"]
        {
            assert_eq!(decode(&tokens_of(text)), text.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn ids_are_distinct_by_length_and_fit_the_vocabulary() {
        let ids = ["\0", "\0\0", "\0\0\0", "\0\0\0\0", "\u{7f}\u{7f}\u{7f}\u{7f}"].map(|t| tokens_of(t)[0]);
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
        assert!(ids.iter().all(|id| *id < VOCABULARY && *id >= ONE));
    }

    #[test]
    fn text_that_grows_keeps_all_tokens_but_the_last() {
        let long = "The café serves twelve kinds of tea.";
        for end in (0..long.len()).filter(|end| long.is_char_boundary(*end)) {
            let (short, whole) = (tokens_of(&long[..end]), tokens_of(long));
            let kept = short.len().saturating_sub(1);
            assert_eq!(short[..kept], whole[..kept], "cut at {end}");
        }
    }

    #[test]
    fn ascii_costs_one_token_per_four_bytes() {
        assert_eq!(tokens_of("twelve bytes").len(), 3);
    }

    #[test]
    fn known_roles_have_distinct_headers() {
        let headers: Vec<_> = ROLES.iter().map(|role| header(role).unwrap()).collect();
        assert_eq!(headers, [2, 3, 4, 5, 6]);
        assert_eq!(header("critic"), None);
    }
}
