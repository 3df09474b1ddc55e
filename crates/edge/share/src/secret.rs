//! Secrets that no log, error or page shows.

use std::fmt;
use std::path::Path;

use crate::BadShare;

/// Below this, a recorded handshake could be guessed at.
pub(crate) const BYTES_MIN: usize = 16;

/// A secret or a password. Printing it prints a row of dots.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// As it is.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The secret itself, for whoever makes keys of it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What routers know and nobody else: one secret that is spoken, and others that are understood too, so that one can replace another
/// without a moment in which routers are strangers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    /// One a line: the first is spoken, all are understood. From a file, so that they are in no list of processes.
    pub fn from_file(file: &Path) -> Result<Secrets, BadShare> {
        let unreadable = |error| BadShare::Unreadable { file: file.to_owned(), error };
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(Secrets(lines.map(Secret::new).collect()))
    }

    /// The one that we prove to know, and that all others must understand.
    pub fn spoken(&self) -> Option<&Secret> {
        self.0.first()
    }

    /// Good enough to keep strangers out, each of them.
    pub(crate) fn keep_out(&self) -> Result<(), BadShare> {
        if self.0.is_empty() {
            return Err(BadShare::NoSecret("; there is none"));
        }
        let is_short = self.0.iter().any(|secret| secret.reveal().len() < BYTES_MIN);
        if is_short { Err(BadShare::NoSecret("; this one is too short")) } else { Ok(()) }
    }

    /// What keys are made of, the spoken one first.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(|secret| secret.reveal().as_bytes().to_vec()).collect()
    }
}

impl From<Secret> for Secrets {
    fn from(only: Secret) -> Secrets {
        Secrets(vec![only])
    }
}

impl<const N: usize> From<[Secret; N]> for Secrets {
    fn from(secrets: [Secret; N]) -> Secrets {
        Secrets(secrets.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed_and_never_short() {
        let secret = Secret::new("a secret of some length");
        assert_eq!(format!("{secret:?}"), "…");
        assert!(Secrets::from(secret.clone()).keep_out().is_ok());
        assert!(Secrets::from([secret, Secret::new("short")]).keep_out().is_err());
        assert!(Secrets::from([]).keep_out().is_err());
    }
}
