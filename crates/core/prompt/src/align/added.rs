//! Added tokens, found in text.
//!
//! A tokenizer splits text at its added tokens before anything else, whatever their source: a user who types
//! `<s>` gets the token. The text between them is normalized piece by piece, so this module must find the
//! same splits. Nearly all such tokens start with `<` or `[`, so a search for their first bytes skips almost
//! all text.

use regex_syntax::is_word_character;

use super::vocabulary::MARK;

/// An added token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedToken {
    /// Text to find.
    pub content: String,
    /// Bytes of the token.
    pub bytes: Vec<u8>,
    /// Matches only without an adjacent letter.
    pub is_single_word: bool,
    /// Removes the white space before it.
    pub strips_left: bool,
    /// Removes the white space after it.
    pub strips_right: bool,
}

/// A piece of split text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// Text between tokens, and its position.
    Text(&'t str, usize),
    /// Bytes of a token.
    Token(&'t [u8]),
}

/// A set of added tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddedTokens {
    /// Sorted by content.
    tokens: Vec<AddedToken>,
    /// The longest other token that each token starts with.
    shorter: Vec<Option<u32>>,
    first_bytes: Vec<u8>,
    /// One bit per pair of bytes that a token may start with.
    pairs: Vec<u64>,
    /// Whether splitting at the tokens can change a text.
    changes_text: bool,
}

impl AddedTokens {
    pub fn new(mut tokens: Vec<AddedToken>) -> AddedTokens {
        tokens.retain(|token| !token.content.is_empty());
        tokens.sort_by(|a, b| a.content.cmp(&b.content));
        tokens.dedup_by(|later, first| later.content == first.content);
        let shorter = (0..tokens.len()).map(|at| longest_prefix(&tokens, at)).collect();
        let mut first_bytes: Vec<u8> = tokens.iter().map(|token| token.content.as_bytes()[0]).collect();
        first_bytes.dedup();
        let pairs = pairs_of(&tokens);
        let changes_text = tokens.iter().any(AddedToken::changes_text);
        AddedTokens { tokens, shorter, first_bytes, pairs, changes_text }
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether a token removes white space, or has other bytes than its text.
    pub fn changes_text(&self) -> bool {
        self.changes_text
    }

    /// Splits text at the tokens and passes on the pieces in order.
    pub fn cut<'t>(&'t self, text: &'t str, mut piece: impl FnMut(Piece<'t>)) {
        let (mut done, mut from) = (0, 0);
        while let Some((at, token)) = self.find(text, from) {
            from = at + token.content.len();
            if token.is_single_word && !stands_alone(text, at, from) {
                continue;
            }
            let (start, end) = token.stretch(text, at, done);
            if done < start {
                piece(Piece::Text(&text[done..start], done));
            }
            piece(Piece::Token(&token.bytes));
            done = end;
        }
        if done < text.len() {
            piece(Piece::Text(&text[done..], done));
        }
    }

    /// The leftmost longest token from a position on.
    fn find<'s>(&'s self, text: &str, mut from: usize) -> Option<(usize, &'s AddedToken)> {
        while let Some(at) = self.candidate(text.as_bytes(), from) {
            if let Some(token) = self.at(&text.as_bytes()[at..]) {
                return Some((at, token));
            }
            from = at + 1;
        }
        None
    }

    /// Position of the next byte that a token may start with.
    fn candidate(&self, text: &[u8], from: usize) -> Option<usize> {
        let rest = text.get(from..)?;
        let found = match self.first_bytes[..] {
            [] => None,
            [a] => memchr::memchr(a, rest),
            [a, b] => memchr::memchr2(a, b, rest),
            [a, b, c] => memchr::memchr3(a, b, c, rest),
            ref many => rest.iter().position(|byte| many.contains(byte)),
        };
        found.map(|found| from + found)
    }

    /// The longest token that the text starts with. It is the last one in order that is not greater than the
    /// text, or a prefix of that one: everything between a prefix of the text and the text starts with that
    /// prefix.
    fn at(&self, text: &[u8]) -> Option<&AddedToken> {
        let pair = usize::from(text[0]) << 8 | usize::from(text.get(1).copied().unwrap_or(0));
        if self.pairs[pair / 64] >> (pair % 64) & 1 == 0 {
            return None;
        }
        let after = self.tokens.partition_point(|token| token.content.as_bytes() <= text);
        let mut candidate = after.checked_sub(1);
        while let Some(at) = candidate {
            if text.starts_with(self.tokens[at].content.as_bytes()) {
                return Some(&self.tokens[at]);
            }
            candidate = self.shorter[at].map(|at| at as usize);
        }
        None
    }
}

impl AddedToken {
    /// Marks are written as spaces with or without tokens, so they change nothing.
    fn changes_text(&self) -> bool {
        let is_as_found = self.bytes == self.content.as_bytes();
        let is_marked = || self.bytes == self.content.replace(MARK, " ").as_bytes();
        self.strips_left || self.strips_right || !(is_as_found || is_marked())
    }

    /// Range of the text that the token covers. White space that an earlier token removed is gone.
    fn stretch(&self, text: &str, at: usize, done: usize) -> (usize, usize) {
        let end = at + self.content.len();
        let start = if self.strips_left { text[..at].trim_end().len().max(done) } else { at };
        let spaces = if self.strips_right { text[end..].len() - text[end..].trim_start().len() } else { 0 };
        (start, end + spaces)
    }
}

fn longest_prefix(tokens: &[AddedToken], at: usize) -> Option<u32> {
    let whole = &tokens[at].content;
    (0..at).rev().find(|&other| whole.starts_with(&tokens[other].content)).map(|other| other as u32)
}

fn pairs_of(tokens: &[AddedToken]) -> Vec<u64> {
    let mut pairs = vec![0; 1 << 10];
    for token in tokens {
        let first = usize::from(token.content.as_bytes()[0]) << 8;
        match token.content.as_bytes().get(1) {
            Some(&second) => pairs[(first | usize::from(second)) / 64] |= 1 << (second % 64),
            None => pairs[first / 64..first / 64 + 4].fill(u64::MAX),
        }
    }
    pairs
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    !text[..start].ends_with(is_word_character) && !text[end..].starts_with(is_word_character)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn token(content: &str) -> AddedToken {
        AddedToken {
            content: content.to_owned(),
            bytes: content.as_bytes().to_vec(),
            is_single_word: false,
            strips_left: false,
            strips_right: false,
        }
    }

    /// The pieces, with tokens in brackets.
    fn cut(tokens: &AddedTokens, text: &str) -> String {
        let mut out = String::new();
        tokens.cut(text, |piece| match piece {
            Piece::Text(text, _) => out.push_str(text),
            Piece::Token(bytes) => out.push_str(&format!("[{}]", str::from_utf8(bytes).unwrap())),
        });
        out
    }

    #[test]
    fn the_longest_of_several_tokens_is_found() {
        let tokens = AddedTokens::new(["<a", "<ab>", "<abc", "x", "\n\n", "\n"].map(token).to_vec());
        assert_eq!(cut(&tokens, "1<ab>2<abc>3<abd4<b5"), "1[<ab>]2[<abc]>3[<a]bd4<b5");
        assert_eq!(cut(&tokens, "\n\n\nax"), "[\n\n][\n]a[x]");
        assert_eq!(cut(&AddedTokens::default(), "<a"), "<a");
    }

    #[test]
    fn a_stripping_token_removes_white_space() {
        let tokens = AddedTokens::new(vec![
            AddedToken { strips_left: true, ..token("<l>") },
            AddedToken { strips_right: true, ..token("<r>") },
        ]);
        assert_eq!(cut(&tokens, "a  <l> b <r>\n\u{a0}c"), "a[<l>] b [<r>]c");
        assert_eq!(cut(&tokens, "<r>  <l>"), "[<r>][<l>]", "spaces are taken once");
    }

    #[test]
    fn a_single_word_token_needs_word_boundaries() {
        let tokens = AddedTokens::new(vec![AddedToken { is_single_word: true, ..token("day") }]);
        assert_eq!(cut(&tokens, "monday day, day_ (day)"), "monday [day], day_ ([day])");
        assert_eq!(
            cut(&tokens, "day½ day\u{200d} day५"),
            "[day]½ day\u{200d} day५",
            "letters as regular expressions have them"
        );
    }

    proptest! {
        /// The search finds the same tokens as trying every token at every position.
        #[test]
        fn splits_equal_those_of_a_naive_search(
            contents in prop::collection::vec("[<ab|]{1,4}", 0..8), text in "[<ab|é]{0,40}",
        ) {
            let mut truth = String::new();
            let mut rest = &*text;
            while let Some(letter) = rest.chars().next() {
                let longest = contents.iter().filter(|content| rest.starts_with(&***content)).max_by_key(|c| c.len());
                match longest {
                    Some(content) => truth.push_str(&format!("[{content}]")),
                    None => truth.push(letter),
                }
                rest = &rest[longest.map_or(letter.len_utf8(), |content| content.len())..];
            }
            let tokens = AddedTokens::new(contents.iter().map(|content| token(content)).collect());
            prop_assert_eq!(cut(&tokens, &text), truth);
        }
    }
}
