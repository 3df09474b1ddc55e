//! Added tokens, found in text.
//!
//! A tokenizer cuts text at its added tokens before anything else happens, wherever they come from: a user who types
//! `<s>` gets the token. What lies between is normalized piece by piece, so the cuts must be found here too. Nearly all such
//! tokens begin with `<` or `[`, so a search for their first bytes skips almost everything.

use regex_syntax::is_word_character;

use super::vocabulary::MARK;

/// A token that is found in text as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedToken {
    /// What is looked for.
    pub content: String,
    /// The bytes that the token stands for.
    pub bytes: Vec<u8>,
    /// Only where no letter stands beside it.
    pub is_single_word: bool,
    /// Takes the white space before it.
    pub strips_left: bool,
    /// Takes the white space after it.
    pub strips_right: bool,
}

/// What text is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// Text between tokens, and where it begins.
    Text(&'t str, usize),
    /// The bytes of a token.
    Token(&'t [u8]),
}

/// A set of added tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddedTokens {
    /// Sorted by content.
    tokens: Vec<AddedToken>,
    /// For each token the longest other one that it begins with.
    shorter: Vec<Option<u32>>,
    first_bytes: Vec<u8>,
    /// One bit for each pair of bytes that a token may begin with.
    pairs: Vec<u64>,
    /// Whether cutting at the tokens can change a text at all.
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

    /// Does any token take white space with it, or stand for other bytes than it is found by?
    pub fn changes_text(&self) -> bool {
        self.changes_text
    }

    /// Cuts text at the tokens and hands the pieces out in order.
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

    /// The leftmost longest token from a place on.
    fn find<'s>(&'s self, text: &str, mut from: usize) -> Option<(usize, &'s AddedToken)> {
        while let Some(at) = self.candidate(text.as_bytes(), from) {
            if let Some(token) = self.at(&text.as_bytes()[at..]) {
                return Some((at, token));
            }
            from = at + 1;
        }
        None
    }

    /// Where the next byte stands that a token may begin with.
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

    /// The longest token that the text begins with: the last one in order that is not greater than the text, or one that
    /// it begins with itself, because whatever lies between a prefix of the text and the text begins with that prefix.
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
    /// Marks are written as spaces with and without tokens; they are no change.
    fn changes_text(&self) -> bool {
        let is_as_found = self.bytes == self.content.as_bytes();
        let is_marked = || self.bytes == self.content.replace(MARK, " ").as_bytes();
        self.strips_left || self.strips_right || !(is_as_found || is_marked())
    }

    /// Which stretch of the text the token takes. White space that an earlier token took is gone.
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(content: &str) -> AddedToken {
        AddedToken {
            content: content.to_owned(),
            bytes: content.as_bytes().to_vec(),
            is_single_word: false,
            strips_left: false,
            strips_right: false,
        }
    }

    /// The pieces, tokens in brackets.
    fn cut(tokens: &AddedTokens, text: &str) -> String {
        let mut out = String::new();
        tokens.cut(text, |piece| match piece {
            Piece::Text(text, _) => out.push_str(text),
            Piece::Token(bytes) => out.push_str(&format!("[{}]", str::from_utf8(bytes).unwrap())),
        });
        out
    }

    #[test]
    fn the_longest_of_several_tokens_is_taken() {
        let tokens = AddedTokens::new(["<a", "<ab>", "<abc", "x", "\n\n", "\n"].map(token).to_vec());
        assert_eq!(cut(&tokens, "1<ab>2<abc>3<abd4<b5"), "1[<ab>]2[<abc]>3[<a]bd4<b5");
        assert_eq!(cut(&tokens, "\n\n\nax"), "[\n\n][\n]a[x]");
        assert_eq!(cut(&AddedTokens::default(), "<a"), "<a");
    }

    #[test]
    fn a_token_takes_the_white_space_it_strips() {
        let tokens = AddedTokens::new(vec![
            AddedToken { strips_left: true, ..token("<l>") },
            AddedToken { strips_right: true, ..token("<r>") },
        ]);
        assert_eq!(cut(&tokens, "a  <l> b <r>\n\u{a0}c"), "a[<l>] b [<r>]c");
        assert_eq!(cut(&tokens, "<r>  <l>"), "[<r>][<l>]", "spaces are taken once");
    }

    #[test]
    fn a_single_word_needs_room_on_both_sides() {
        let tokens = AddedTokens::new(vec![AddedToken { is_single_word: true, ..token("day") }]);
        assert_eq!(cut(&tokens, "monday day, day_ (day)"), "monday [day], day_ ([day])");
        assert_eq!(
            cut(&tokens, "day½ day\u{200d} day५"),
            "[day]½ day\u{200d} day५",
            "letters as regular expressions have them"
        );
    }

    proptest! {
        /// The quick search finds what trying every token at every place finds.
        #[test]
        fn cuts_are_those_of_a_search_without_tricks(
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
