//! Unicode normalization of only the text that needs it.
//!
//! Most prompt text is already normal. A character is *inert* if it never changes and never combines with the
//! text before it; one bit per character of the first 65,536 tells. Text is copied up to the character before
//! the next one that is not inert, and normalized from there to the next inert one.
//!
//! The tables come from the crate that tokenizers use, not from the newest Unicode version: engines do not
//! change newer characters either.

use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

/// Number of characters with a bit.
const PLANE: usize = 1 << 16;

/// One of the four normal forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl Form {
    fn is_inert(self, letter: char) -> bool {
        let alone = std::iter::once(letter);
        let quick = match self {
            Form::Nfc => is_nfc_quick(alone),
            Form::Nfd => is_nfd_quick(alone),
            Form::Nfkc => is_nfkc_quick(alone),
            Form::Nfkd => is_nfkd_quick(alone),
        };
        quick == IsNormalized::Yes && canonical_combining_class(letter) == 0
    }

    fn write(self, text: &str, out: &mut String) {
        match self {
            Form::Nfc => out.extend(text.nfc().map(|(letter, _)| letter)),
            Form::Nfd => out.extend(text.nfd().map(|(letter, _)| letter)),
            Form::Nfkc => out.extend(text.nfkc().map(|(letter, _)| letter)),
            Form::Nfkd => out.extend(text.nfkd().map(|(letter, _)| letter)),
        }
    }
}

/// Normalizer to one normal form.
#[derive(Clone, Debug)]
pub(crate) struct Unicode {
    form: Form,
    inert: Vec<u64>,
}

impl Unicode {
    pub fn new(form: Form) -> Unicode {
        let mut inert = vec![0; PLANE / 64];
        for letter in (0..PLANE as u32).filter_map(char::from_u32).filter(|&letter| form.is_inert(letter)) {
            inert[letter as usize / 64] |= 1 << (letter as u32 % 64);
        }
        Unicode { form, inert }
    }

    fn is_inert(&self, letter: char) -> bool {
        match self.inert.get(letter as usize / 64) {
            Some(bits) => bits >> (letter as u32 % 64) & 1 == 1,
            None => self.form.is_inert(letter),
        }
    }

    /// Whether a text needs normalization.
    pub fn changes(&self, text: &str) -> bool {
        self.next_stretch(text, 0).is_some()
    }

    /// Appends the normalized text.
    pub fn write(&self, text: &str, out: &mut String) {
        let mut done = 0;
        while let Some((start, end)) = self.next_stretch(text, done) {
            out.push_str(&text[done..start]);
            self.form.write(&text[start..end], out);
            done = end;
        }
        out.push_str(&text[done..]);
    }

    /// Bytes of the character at a position; 0 if it is not inert, `None` at the end. Characters of two and
    /// three bytes are decoded here, because decoding a `char` each would dominate the cost of accented text.
    #[inline]
    fn inert_length(&self, text: &str, at: usize) -> Option<usize> {
        let (code, length) = match text.as_bytes().get(at..)? {
            [] => return None,
            [a @ 0xc0..0xe0, b, ..] => ((u32::from(*a) & 0x1f) << 6 | u32::from(*b) & 0x3f, 2),
            [a @ 0xe0..0xf0, b, c, ..] => {
                ((u32::from(*a) & 0x0f) << 12 | (u32::from(*b) & 0x3f) << 6 | u32::from(*c) & 0x3f, 3)
            }
            _ => {
                let letter = text[at..].chars().next()?;
                return Some(if self.is_inert(letter) { letter.len_utf8() } else { 0 });
            }
        };
        let is_inert = self.inert[code as usize / 64] >> (code % 64) & 1 == 1;
        Some(if is_inert { length } else { 0 })
    }

    /// Next range to normalize: from the character before one that is not inert to the next inert one.
    fn next_stretch(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let bytes = text.as_bytes();
        let (mut before, mut at) = (from, from);
        loop {
            if bytes.get(at)?.is_ascii() {
                at = skip_ascii(bytes, at);
                before = at - 1;
            }
            let length = self.inert_length(text, at)?;
            if length == 0 {
                break;
            }
            (before, at) = (at, at + length);
        }
        let rest = text[at..].char_indices().find(|(_, letter)| self.is_inert(*letter));
        Some((before, rest.map_or(text.len(), |(length, _)| at + length)))
    }
}

/// Position of the next non-ASCII byte; ASCII is inert in every form. Eight bytes at a time suit both English
/// and accented text.
fn skip_ascii(text: &[u8], mut at: usize) -> usize {
    while let Some(&word) = text.get(at..).and_then(<[u8]>::first_chunk) {
        let high_bits = u64::from_le_bytes(word) & 0x8080_8080_8080_8080;
        if high_bits != 0 {
            return at + high_bits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    text[at..].iter().position(|byte| !byte.is_ascii()).map_or(text.len(), |found| at + found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    #[test]
    fn ascii_is_inert_in_every_form() {
        for form in [Form::Nfc, Form::Nfd, Form::Nfkc, Form::Nfkd] {
            assert!((0..128_u8).all(|byte| form.is_inert(char::from(byte))));
        }
    }

    #[test]
    fn a_mark_combines_with_the_letter_before_it() {
        let mut out = String::new();
        Unicode::new(Form::Nfc).write("cafe\u{301} and \u{1100}\u{1161} ok", &mut out);
        assert_eq!(out, "café and 가 ok");
        assert!(!Unicode::new(Form::Nfc).changes("café 漢字"));
    }

    /// Shared by all cases: building the tables takes longer than normalizing a text.
    static ALL: LazyLock<[Unicode; 4]> =
        LazyLock::new(|| [Form::Nfc, Form::Nfd, Form::Nfkc, Form::Nfkd].map(Unicode::new));

    proptest! {
        /// Normalizing pieces equals normalizing the whole, in all forms, on text full of marks and rare
        /// characters.
        #[test]
        fn normalizing_only_the_needed_ranges_is_enough(
            text in prop::collection::vec(prop_oneof![
                Just("e".to_owned()), Just("\u{301}".to_owned()), Just("\u{323}".to_owned()), Just("ﬁ".to_owned()),
                Just("한".to_owned()), Just("\u{11a8}".to_owned()), Just("Å".to_owned()), Just("漢".to_owned()),
                Just("\u{a0}".to_owned()), Just("𝒜".to_owned()), "\\PC", Just("plain text of some length, in ASCII only ".to_owned()),
            ], 0..30),
        ) {
            let text = text.concat();
            for unicode in ALL.iter() {
                let form = unicode.form;
                let (mut ours, mut truth) = (String::new(), String::new());
                unicode.write(&text, &mut ours);
                form.write(&text, &mut truth);
                prop_assert_eq!(&ours, &truth, "{:?}", form);
                prop_assert!(unicode.changes(&text) || text == truth);
            }
        }
    }
}
