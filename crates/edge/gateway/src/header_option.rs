//! A header that an option names, or the option's word for none.

use std::fmt;

use http::HeaderName;

/// The header of an option.
#[derive(Clone, Debug)]
pub struct HeaderOption {
    /// The header, if there is one.
    pub name: Option<HeaderName>,
    /// The option's word for none.
    none: &'static str,
}

impl HeaderOption {
    /// A header's name in lower case, or `none`.
    pub(crate) fn new(text: &'static str, none: &'static str) -> HeaderOption {
        HeaderOption { name: (text != none).then(|| HeaderName::from_static(text)), none }
    }

    /// Names another header, or none. The error says what was expected.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let name = (text != self.none).then(|| text.parse()).transpose();
        self.name = name.map_err(|_| format!("expected a header name or `{}`", self.none))?;
        Ok(())
    }
}

impl fmt::Display for HeaderOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_ref().map_or(self.none, HeaderName::as_str))
    }
}
