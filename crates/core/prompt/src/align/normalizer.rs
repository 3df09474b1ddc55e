//! Normalizer: what a tokenizer does to text before splitting it, in bytes.
//!
//! Three changes apply to each piece between added tokens: the steps of the normalizer, the space that some
//! pre-tokenizers add before a piece, and the spelling of spaces. The spelling is undone here, because tokens
//! are turned into plain bytes as well: `▁` is a space on both sides. Text that nothing can change is copied
//! whole.

use std::borrow::Cow;

use super::added::{AddedToken, AddedTokens, Piece};
use super::unicode::Unicode;
use super::vocabulary::MARK;

/// One step of a normalizer.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Unicode(Unicode),
    Lowercase,
    StripAccents,
    Prepend(String),
    Replace { from: String, to: String },
    Strip { left: Side, right: Side },
}

/// Whether white space is stripped at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Strip,
    Keep,
}

/// Pieces before which the pre-tokenizer adds a space, unless there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    Never,
    EveryPiece,
    /// Only at the start of the text.
    First,
}

/// Spelling of spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spaces {
    Plain,
    Marked,
}

/// Converter from text to the bytes that the tokenizer sees.
#[derive(Clone, Debug)]
pub(crate) struct Normalizer {
    steps: Vec<Step>,
    lead: Lead,
    spaces: Spaces,
    /// Tokens found in the original text.
    added: AddedTokens,
    /// Tokens found in normalized text.
    added_later: AddedTokens,
}

impl Normalizer {
    pub fn new(steps: Vec<Step>, lead: Lead, spaces: Spaces, added: Added) -> Normalizer {
        let mut normalizer = Normalizer {
            steps,
            lead,
            spaces,
            added: AddedTokens::new(added.raw),
            added_later: AddedTokens::default(),
        };
        let mut later = added.normalized;
        for token in &mut later {
            token.content = normalizer.normalized(&token.content).into_owned();
        }
        normalizer.added_later = AddedTokens::new(later);
        normalizer
    }

    /// Appends the bytes of a text.
    pub fn write(&self, text: &str, out: &mut Vec<u8>) {
        if self.is_copied(text) {
            return self.write_spaces(text, out);
        }
        self.added.cut(text, |piece| match piece {
            Piece::Token(bytes) => out.extend_from_slice(bytes),
            Piece::Text(text, at) => self.write_piece(text, at, out),
        });
    }

    /// Writes the bytes of an owned text, and reuses its memory if possible.
    pub fn write_owned(&self, text: String, out: &mut Vec<u8>) {
        if out.is_empty() && self.is_copied(&text) && (self.spaces == Spaces::Plain || text.is_ascii()) {
            *out = text.into_bytes();
        } else {
            self.write(&text, out);
        }
    }

    /// Whether no step, token or pre-tokenizer can change this text. Token positions then do not matter
    /// either.
    fn is_copied(&self, text: &str) -> bool {
        let is_kept = |step: &Step| match step {
            Step::Unicode(unicode) => text.is_ascii() || !unicode.changes(text),
            Step::StripAccents => text.is_ascii(),
            _ => false,
        };
        self.lead == Lead::Never
            && !self.added.changes_text()
            && !self.added_later.changes_text()
            && self.steps.iter().all(is_kept)
    }

    fn write_piece(&self, text: &str, at: usize, out: &mut Vec<u8>) {
        // Avoids copying a piece for the one step that most SentencePiece models have.
        if let [Step::Prepend(lead)] = &self.steps[..]
            && self.added_later.is_empty()
            && self.lead == Lead::Never
        {
            out.extend_from_slice(lead.as_bytes());
            return self.write_spaces(text, out);
        }
        let text = self.normalized(text);
        self.added_later.cut(&text, |piece| match piece {
            Piece::Token(bytes) => out.extend_from_slice(bytes),
            // After a token found in normalized text, the piece is not at the start of the text.
            Piece::Text(text, within) => self.write_led(text, at + within, out),
        });
    }

    fn write_led(&self, text: &str, at: usize, out: &mut Vec<u8>) {
        let wants_lead = match self.lead {
            Lead::Never => false,
            Lead::EveryPiece => true,
            Lead::First => at == 0,
        };
        let has_lead = text.starts_with(' ') || (self.spaces == Spaces::Marked && text.starts_with(MARK));
        if wants_lead && !has_lead && !text.is_empty() {
            out.push(b' ');
        }
        self.write_spaces(text, out);
    }

    /// A mark typed by a user is a space to the tokenizer.
    fn write_spaces(&self, text: &str, out: &mut Vec<u8>) {
        let mut rest = text;
        if self.spaces == Spaces::Marked && !text.is_ascii() {
            while let Some(at) = memchr::memmem::find(rest.as_bytes(), MARK.as_bytes()) {
                out.extend_from_slice(&rest.as_bytes()[..at]);
                out.push(b' ');
                rest = &rest[at + MARK.len()..];
            }
        }
        out.extend_from_slice(rest.as_bytes());
    }

    fn normalized<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.steps.iter().fold(Cow::Borrowed(text), |text, step| step.apply(text))
    }
}

/// Added tokens, by the text in which they are found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Added {
    pub raw: Vec<AddedToken>,
    pub normalized: Vec<AddedToken>,
}

impl Step {
    fn apply<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        match self {
            Step::Unicode(unicode) if !text.is_ascii() && unicode.changes(&text) => {
                let mut out = String::with_capacity(text.len());
                unicode.write(&text, &mut out);
                Cow::Owned(out)
            }
            Step::Unicode(_) => text,
            Step::Lowercase => Cow::Owned(lowercase(&text)),
            Step::StripAccents if text.is_ascii() => text,
            Step::StripAccents => Cow::Owned(text.chars().filter(|&letter| !is_mark(letter)).collect()),
            Step::Prepend(_) if text.is_empty() => text,
            Step::Prepend(lead) => Cow::Owned(format!("{lead}{text}")),
            Step::Replace { from, to } if text.contains(from) => Cow::Owned(text.replace(from, to)),
            Step::Replace { .. } => text,
            Step::Strip { left, right } => strip(text, *left, *right),
        }
    }
}

/// Lowercases character by character, as tokenizers do, without the word rules of `str::to_lowercase`.
fn lowercase(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars().flat_map(char::to_lowercase).collect()
}

fn is_mark(letter: char) -> bool {
    unicode_normalization_alignments::char::is_combining_mark(letter)
}

fn strip(text: Cow<'_, str>, left: Side, right: Side) -> Cow<'_, str> {
    let mut kept = &*text;
    if left == Side::Strip {
        kept = kept.trim_start();
    }
    if right == Side::Strip {
        kept = kept.trim_end();
    }
    if kept.len() == text.len() { text } else { Cow::Owned(kept.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::align::added::tests::token;
    use crate::align::unicode::Form;

    fn bytes(normalizer: &Normalizer, text: &str) -> String {
        let mut out = Vec::new();
        normalizer.write(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn sentence_piece(steps: Vec<Step>, lead: Lead) -> Normalizer {
        let added = Added { raw: vec![token("<s>"), token("</s>")], normalized: Vec::new() };
        Normalizer::new(steps, lead, Spaces::Marked, added)
    }

    #[test]
    fn a_prepended_space_follows_every_special_token() {
        let legacy = sentence_piece(vec![Step::Prepend(" ".to_owned())], Lead::Never);
        assert_eq!(bytes(&legacy, "<s>Hi you</s>\n<s>"), "<s> Hi you</s> \n<s>");
        assert_eq!(bytes(&legacy, " Hi"), "  Hi", "also where one stands already");
        assert_eq!(bytes(&legacy, "a▁b"), " a b", "a typed mark is a space");
    }

    #[test]
    fn the_newer_scheme_adds_a_space_only_where_there_is_none() {
        let always = sentence_piece(Vec::new(), Lead::EveryPiece);
        assert_eq!(bytes(&always, "<s>Hi</s> you</s>▁x"), "<s> Hi</s> you</s> x");
        let first = sentence_piece(Vec::new(), Lead::First);
        assert_eq!(bytes(&first, "Hi<s>Hi"), " Hi<s>Hi");
        assert_eq!(bytes(&first, "<s>Hi"), "<s>Hi");
    }

    #[test]
    fn pieces_are_normalized_separately() {
        let added = Added { raw: vec![token("<e>")], normalized: Vec::new() };
        let steps = vec![Step::Unicode(Unicode::new(Form::Nfc))];
        let nfc = Normalizer::new(steps, Lead::Never, Spaces::Plain, added);
        assert_eq!(
            bytes(&nfc, "<e>\u{338}e\u{301}"),
            "<e>\u{338}é",
            "the mark does not join the token's last letter"
        );
    }

    #[test]
    fn tokens_are_found_after_normalization_where_they_ask_for_it() {
        let added =
            Added { raw: Vec::new(), normalized: vec![AddedToken { strips_left: true, ..token("[DAY]") }] };
        let lower = Normalizer::new(vec![Step::Lowercase], Lead::Never, Spaces::Plain, added);
        assert_eq!(bytes(&lower, "On  [Day] IT"), "on[DAY] it");
    }

    #[test]
    fn a_token_that_strips_takes_the_space_out_of_the_prompt() {
        let added = Added {
            raw: vec![AddedToken { strips_right: true, ..token("<|user|>") }],
            normalized: Vec::new(),
        };
        let plain = Normalizer::new(Vec::new(), Lead::Never, Spaces::Plain, added);
        assert_eq!(bytes(&plain, "<|user|>\nHi"), "<|user|>Hi");
    }

    #[test]
    fn steps_run_in_their_order() {
        let steps = vec![
            Step::Strip { left: Side::Strip, right: Side::Keep },
            Step::Replace { from: "''".to_owned(), to: "\"".to_owned() },
            Step::StripAccents,
            Step::Lowercase,
            Step::Prepend(">".to_owned()),
        ];
        let normalizer = Normalizer::new(steps, Lead::Never, Spaces::Plain, Added::default());
        assert_eq!(bytes(&normalizer, "  ''E\u{301}A'' "), ">\"ea\" ");
    }
}
