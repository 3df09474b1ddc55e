//! The unit in which prompts are compared.

/// The unit in which prompts are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A byte of text.
    Byte,
    /// A token, written as four bytes.
    Token,
}

impl Unit {
    /// Plural for lists and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Unit::Byte => "bytes",
            Unit::Token => "tokens",
        }
    }
}
