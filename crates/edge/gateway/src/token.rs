//! A secret token that a request must carry.
//!
//! Only its SHA-256 is kept: comparisons have a fixed length and take constant time, and a core dump contains no
//! secret. Tokens are random, not passwords, so a slow hash would add nothing.

use http::{HeaderMap, HeaderValue, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

/// A token, as its digest.
#[derive(Clone, Copy)]
pub struct Token(Digest);

impl Token {
    /// Hashes a secret.
    pub fn new(secret: &str) -> Token {
        Token(digest(secret.as_bytes()))
    }

    /// Whether a request carries the token as `Authorization: Bearer SECRET`.
    pub(crate) fn matches(&self, headers: &HeaderMap) -> bool {
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

/// Compares in constant time.
pub(crate) fn is_same(shown: &Digest, expected: &Digest) -> bool {
    shown.ct_eq(expected).into()
}

/// The bearer token of a request. The scheme's name is case-insensitive (RFC 9110, 11.1).
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
    fn only_the_whole_token_matches_and_the_scheme_is_case_insensitive() {
        let token = Token::new("x");
        for good in ["Bearer x", "bearer x", "BEARER  x"] {
            assert!(token.matches(&headers(good)), "{good}");
        }
        for bad in ["", "x", "Bearer", "Bearer ", "Bearer xy", "Bearer X", "Bearerx", "Basic x"] {
            assert!(!token.matches(&headers(bad)), "{bad}");
        }
        assert!(!token.matches(&HeaderMap::new()));
    }
}
