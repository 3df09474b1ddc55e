//! Images, audio and video inside a prompt's bytes.
//!
//! The template writes one placeholder for a medium, and the engine repeats it, as often as the medium has tokens. Which
//! medium it is, the engine tells by a hash of its own. Neither the hash nor the count can be computed without the
//! engine's preprocessing, so both are learned from its events ([`MediumFacts`]). A medium of which they are known is
//! written as the engine's blocks are: a mark with the hash, and the placeholders. The first other one ends what can be
//! compared.

/// Starts a media mark in the prompt: a character reserved for private use.
pub(crate) const MEDIA: char = '\u{10fffd}';

/// What an engine family makes of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediumFacts {
    /// The engine's hash of it.
    pub hash: u64,
    /// The bytes of its placeholder token.
    pub placeholder: Box<[u8]>,
    /// Its number of placeholder tokens.
    pub tokens: u32,
}

/// A prompt with its known media written out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaPrompt {
    /// The prompt up to its end or its first unknown medium.
    pub bytes: Vec<u8>,
    /// The rendered prompt from that medium on; empty where all media are known.
    pub rest: Vec<u8>,
}

/// A medium at the beginning of a rendered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderedMedium<'a> {
    /// The medium; `None` where its content may change under the same name, as behind a URL.
    pub medium: Option<u64>,
    /// The text after it, up to the next medium.
    pub after: &'a [u8],
    /// The next medium and everything after it.
    pub rest: &'a [u8],
}

impl<'a> RenderedMedium<'a> {
    /// Reads the mark that a text begins with; `None` at the end of a prompt.
    pub fn read(text: &'a [u8]) -> Option<RenderedMedium<'a>> {
        let (mark, behind) = text.split_at(MARK_BYTES.min(text.len()));
        let (after, rest) = behind.split_at(next_mark(behind));
        (!mark.is_empty()).then(|| RenderedMedium { medium: medium_of(mark), after, rest })
    }
}

/// Bytes of a mark in a rendered prompt: the character, and sixteen digits.
const MARK_BYTES: usize = 4 + 16;

/// The placeholder is expected within this many bytes behind a mark.
const PLACEHOLDER_WITHIN: usize = 256;

/// The mark of a medium's hash among the bytes of blocks. Its first byte is in no text.
pub fn medium_mark(hash: u64) -> [u8; 9] {
    let mut mark = [0xff; 9];
    mark[1..].copy_from_slice(&hash.to_le_bytes());
    mark
}

/// How a rendered prompt names a medium. One whose content may change has a name that is never learned.
pub(super) fn rendered_mark(medium: u64, is_fixed: bool) -> String {
    if is_fixed { format!("{MEDIA}{medium:016x}") } else { format!("{MEDIA}-{:015x}", medium >> 4) }
}

/// Writes out the known media of a rendered prompt.
pub fn write_media(rendered: &[u8], known: impl Fn(u64) -> Option<MediumFacts>) -> MediaPrompt {
    let (text, mut rest) = rendered.split_at(next_mark(rendered));
    let mut bytes = Vec::with_capacity(rendered.len());
    bytes.extend_from_slice(text);
    while let Some(next) = RenderedMedium::read(rest) {
        let facts = next.medium.and_then(&known);
        if facts.and_then(|facts| facts.write(next.after, &mut bytes)).is_none() {
            break;
        }
        rest = next.rest;
    }
    MediaPrompt { bytes, rest: rest.to_vec() }
}

impl MediumFacts {
    /// Appends the medium and the text after its mark. Returns where in that text the placeholder was; writes nothing
    /// where it has none.
    pub fn write(&self, after: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let near = &after[..after.len().min(PLACEHOLDER_WITHIN)];
        let at = memchr::memmem::find(near, &self.placeholder).filter(|_| !self.placeholder.is_empty())?;
        out.extend_from_slice(&after[..at]);
        out.extend_from_slice(&medium_mark(self.hash));
        (0..self.tokens).for_each(|_| out.extend_from_slice(&self.placeholder));
        out.extend_from_slice(&after[at + self.placeholder.len()..]);
        Some(at)
    }
}

/// Position of the first mark, or the end.
fn next_mark(text: &[u8]) -> usize {
    memchr::memmem::find(text, MEDIA.encode_utf8(&mut [0; 4]).as_bytes()).unwrap_or(text.len())
}

fn medium_of(mark: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(mark.get(4..MARK_BYTES)?).ok()?;
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with(['-', '+']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(hash: u64, tokens: u32) -> MediumFacts {
        MediumFacts { hash, placeholder: b"<pad>"[..].into(), tokens }
    }

    fn prompt(marks: &[String]) -> Vec<u8> {
        marks
            .iter()
            .fold("Look: ".to_owned(), |text, mark| format!("{text}{mark}<s><pad><e> text "))
            .into_bytes()
    }

    #[test]
    fn known_media_are_written_as_the_engine_has_them() {
        let written = write_media(&prompt(&[rendered_mark(7, true)]), |medium| Some(facts(medium + 1, 3)));
        let expected = [&b"Look: <s>"[..], &medium_mark(8), b"<pad><pad><pad><e> text "].concat();
        assert_eq!(written, MediaPrompt { bytes: expected, rest: Vec::new() });
    }

    #[test]
    fn the_first_unknown_medium_ends_the_prompt() {
        let both = prompt(&[rendered_mark(7, true), rendered_mark(9, true)]);
        let written = write_media(&both, |medium| (medium == 7).then(|| facts(8, 1)));
        assert!(written.bytes.ends_with(b"<pad><e> text "));
        let last = RenderedMedium { medium: Some(9), after: b"<s><pad><e> text ", rest: b"" };
        assert_eq!(RenderedMedium::read(&written.rest), Some(last));
        let none = write_media(&both, |_| None);
        assert_eq!(none.bytes, b"Look: ");
        assert_eq!(RenderedMedium::read(&none.rest).unwrap().medium, Some(7));
    }

    #[test]
    fn media_that_may_change_are_never_asked_for() {
        let written = write_media(&prompt(&[rendered_mark(u64::MAX, false)]), |_| unreachable!());
        assert_eq!(RenderedMedium::read(&written.rest).unwrap().medium, None);
    }

    #[test]
    fn a_medium_without_its_placeholder_ends_the_prompt() {
        let text = format!("a{} no placeholder", rendered_mark(7, true));
        let written = write_media(text.as_bytes(), |_| Some(facts(8, 2)));
        assert_eq!((written.bytes, written.rest.is_empty()), (b"a".to_vec(), false));
    }

    #[test]
    fn text_without_media_is_unchanged_and_broken_marks_end_it() {
        assert_eq!(write_media(b"plain", |_| None).bytes, b"plain");
        let cut = [&b"a"[..], "\u{10fffd}12".as_bytes()].concat();
        assert_eq!(write_media(&cut, |_| Some(facts(1, 1))).bytes, b"a");
    }
}
