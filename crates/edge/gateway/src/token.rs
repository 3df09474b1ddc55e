//! A secret that somebody must show.
//!
//! Only its SHA-256 is kept, so what is compared has one length, a core dump has no secret in it, and how long a comparison
//! takes says nothing. The secrets are random (nobody remembers them), so a slow hash would protect nothing.

use http::{HeaderMap, HeaderValue, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// A SHA-256.
pub(crate) type Digest = [u8; 32];

/// What must be shown, as its hash.
#[derive(Clone, Copy)]
pub struct Token(Digest);

impl Token {
    /// For a secret.
    pub fn new(secret: &str) -> Token {
        Token(digest(secret.as_bytes()))
    }

    /// Whether a request shows it, as `Authorization: Bearer SECRET`.
    pub(crate) fn is_shown(&self, headers: &HeaderMap) -> bool {
        bearer(headers).is_some_and(|shown| is_same(&digest(shown), &self.0))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

pub(crate) fn digest(secret: &[u8]) -> Digest {
    Sha256::digest(secret).into()
}

/// In a time that does not tell how much was right.
pub(crate) fn is_same(shown: &Digest, expected: &Digest) -> bool {
    shown.ct_eq(expected).into()
}

/// What follows the scheme, which is written in any case (RFC 9110, 11.1).
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)?;
    let (scheme, token) = given.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(authorization: &'static str) -> HeaderMap {
        [(header::AUTHORIZATION, HeaderValue::from_static(authorization))].into_iter().collect()
    }

    #[test]
    fn only_the_whole_token_is_the_token_and_its_scheme_is_written_in_any_case() {
        let token = Token::new("x");
        for good in ["Bearer x", "bearer x", "BEARER  x"] {
            assert!(token.is_shown(&headers(good)), "{good}");
        }
        for bad in ["", "x", "Bearer", "Bearer ", "Bearer xy", "Bearer X", "Bearerx", "Basic x"] {
            assert!(!token.is_shown(&headers(bad)), "{bad}");
        }
        assert!(!token.is_shown(&HeaderMap::new()));
    }
}
