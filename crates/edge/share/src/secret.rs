//! A secret that no log, error or page shows.

use std::fmt;
use std::path::Path;

use crate::BadShare;

/// Below this, a recorded handshake could be guessed at.
pub(crate) const BYTES_MIN: usize = 16;

/// The routers' shared secret, or a password. Printing it prints a row of dots.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// As it is.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The first line of a file, so that the secret is in no list of processes.
    pub fn from_file(file: &Path) -> Result<Secret, BadShare> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| BadShare::Unreadable { file: file.to_owned(), error })?;
        Ok(Secret::new(text.lines().next().unwrap_or_default().trim()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Good enough to keep strangers out.
    pub(crate) fn keeps_out(&self) -> Result<(), BadShare> {
        if self.0.len() < BYTES_MIN { Err(BadShare::NoSecret("; this one is too short")) } else { Ok(()) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed_and_never_short() {
        let secret = Secret::new("a secret of some length");
        assert_eq!(format!("{secret:?}"), "…");
        assert!(secret.keeps_out().is_ok());
        assert!(Secret::new("short").keeps_out().is_err());
    }
}
