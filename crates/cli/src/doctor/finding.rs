//! One finding in plain words, with its remedy.

use std::fmt;

use crate::log_lines::escaped;

/// The severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nothing to do.
    Good,
    /// It works, but could be better.
    Note,
    /// It does not work.
    Trouble,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    pub says: String,
    /// What to change.
    pub remedy: Option<String>,
}

impl Finding {
    pub fn good(says: impl Into<String>) -> Finding {
        Finding { level: Level::Good, says: says.into(), remedy: None }
    }

    pub fn note(says: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Note, says: says.into(), remedy: Some(remedy.into()) }
    }

    pub fn trouble(says: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Trouble, says: says.into(), remedy: Some(remedy.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.level {
            Level::Good => "ok",
            Level::Note => "note",
            Level::Trouble => "BAD",
        };
        // Both may quote an engine, which must not forge lines or control the terminal.
        write!(f, "  {mark:<5} {}", escaped(&self.says))?;
        self.remedy.iter().try_for_each(|remedy| write!(f, "\n        -> {}", escaped(remedy)))
    }
}
