//! The first difference between an engine's prompt and ours.

use std::fmt;

/// Characters shown before the difference.
const BEFORE: usize = 24;
const AFTER: usize = 32;

/// A difference between two prompts. Both consist of our own samples, so showing them reveals nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What the sample tests.
    pub sample: &'static str,
    /// The equal text before the difference.
    pub before: String,
    /// How our prompt continues.
    pub ours: String,
    /// How the engine's prompt continues.
    pub theirs: String,
}

impl Difference {
    /// The first difference between two byte strings; `None` if there is none.
    pub fn between(sample: &'static str, ours: &[u8], theirs: &[u8]) -> Option<Difference> {
        if ours == theirs {
            return None;
        }
        let common = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        let show = |bytes: &[u8], from: usize, to: usize| {
            String::from_utf8_lossy(&bytes[from.min(bytes.len())..to.min(bytes.len())]).into_owned()
        };
        Some(Difference {
            sample,
            before: show(ours, common.saturating_sub(BEFORE), common),
            ours: show(ours, common, common + AFTER),
            theirs: show(theirs, common, common + AFTER),
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |text: &str| if text.is_empty() { "its end".to_owned() } else { format!("{text:?}") };
        let Difference { sample, before, ours, theirs } = self;
        write!(
            f,
            "in {sample}, after {before:?}, the engine's prompt goes on with {}, ours with {}",
            end(theirs),
            end(ours)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_described() {
        let difference = Difference::between("a chat", b"<s>user\nHi", b"<s>user\n\nHi").unwrap();
        assert_eq!(
            difference.to_string(),
            r#"in a chat, after "<s>user\n", the engine's prompt goes on with "\nHi", ours with "Hi""#
        );
        let cut = Difference::between("code", "é".as_bytes(), "é!".as_bytes()).unwrap().to_string();
        assert!(cut.ends_with(r#"goes on with "!", ours with its end"#), "{cut}");
        assert_eq!(Difference::between("code", b"same", b"same"), None);
    }
}
