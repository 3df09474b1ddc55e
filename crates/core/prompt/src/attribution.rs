//! Claude Code's attribution line, which is the first text of its system prompt.
//!
//! It differs between conversations, and in some builds with every request. vLLM drops it (all versions from 0.24 on),
//! because no prompt would share a cache behind it; SGLang keeps it.

use crate::json::RawStr;

/// By this the line is recognized; what follows differs.
const LINE_START: &str = "x-anthropic-billing-header";

/// What engines do with the attribution line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attribution {
    /// The prompt does not have it.
    #[default]
    Dropped,
    /// It is part of the prompt.
    Kept,
}

/// Whether a text begins with the line.
pub fn has_attribution(text: &[u8]) -> bool {
    text.starts_with(LINE_START.as_bytes())
}

impl RawStr<'_> {
    /// The same for a text with its escapes.
    pub(crate) fn has_attribution(self) -> bool {
        self.starts_with(LINE_START)
    }

    /// The text after the line; `None` if nothing else is in it.
    pub(crate) fn without_attribution(self) -> Option<Self> {
        if !self.has_attribution() {
            return Some(self);
        }
        let end = memchr::memmem::find(self.0, b"\\n")?;
        Some(RawStr(&self.0[end + 2..])).filter(|rest| !rest.0.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_is_taken_from_a_text() {
        let rest = |text: &'static str| {
            let rest = RawStr(text.as_bytes()).without_attribution();
            rest.map(|rest| std::str::from_utf8(rest.0).unwrap())
        };
        for alone in ["x-anthropic-billing-header: cch=1;", r"x-anthropic-billing-header: cch=1;\n"] {
            assert_eq!(rest(alone), None);
        }
        assert_eq!(
            rest(r"x-anthropic-billing-header: cch=1;\nBe brief.\nBe kind."),
            Some(r"Be brief.\nBe kind.")
        );
        assert_eq!(rest(r"\u0078-anthropic-billing-header: 1\nBe brief."), Some("Be brief."));
        for other in ["", "Be brief.", r"Be brief.\nx-anthropic-billing-header: 1"] {
            assert_eq!(rest(other), Some(other));
        }
    }
}
