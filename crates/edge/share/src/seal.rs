//! Authenticated encryption: without the key, a sealed message can be neither read, changed nor created.
//!
//! AES-256-GCM instead of a plain MAC: with hardware support it is faster than HMAC-SHA-256, and it keeps
//! messages secret from listeners. A nonce must never be used twice with a key, so each session (mesh) or
//! process (Redis) derives its own key, and a [`Sealer`] counts its messages.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes that sealing adds.
pub(crate) const TAG_BYTES: usize = MAX_TAG_LEN;

/// Seals messages and counts nonces.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: LessSafeKey,
    next: u64,
}

/// Opens messages of a [`Sealer`] with the same key.
#[derive(Debug)]
pub(crate) struct Opener(LessSafeKey);

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the system provides random bytes");
    bytes
}

fn key(secret: &[u8], salt: &[u8], purpose: &[&[u8]]) -> LessSafeKey {
    let derived = Salt::new(HKDF_SHA256, salt).extract(secret);
    let derived = derived.expand(purpose, &AES_256_GCM).expect("the key length is valid for HKDF");
    LessSafeKey::new(UnboundKey::from(derived))
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Sealer {
    /// The key is derived from secret, salt and purpose; no two sealers may share all three.
    pub(crate) fn new(secret: &[u8], salt: &[u8], purpose: &[&[u8]]) -> Sealer {
        Sealer { key: key(secret, salt, purpose), next: 0 }
    }

    /// Number of the next message.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Seals the buffer from `start` on and appends the tag. `beside` is authenticated, but not encrypted.
    pub(crate) fn seal(&mut self, beside: &[u8], buffer: &mut Vec<u8>, start: usize) {
        let sealed =
            self.key.seal_in_place_separate_tag(nonce(self.next), Aad::from(beside), &mut buffer[start..]);
        let tag = sealed.expect("frames are far below the limit of AES-GCM");
        buffer.extend_from_slice(tag.as_ref());
        // At a million messages per second, the counter lasts half a million years.
        self.next += 1;
    }
}

impl Opener {
    pub(crate) fn new(secret: &[u8], salt: &[u8], purpose: &[&[u8]]) -> Opener {
        Opener(key(secret, salt, purpose))
    }

    /// Opens the message with this number; `None` if it is not authentic.
    pub(crate) fn open<'b>(&self, number: u64, beside: &[u8], sealed: &'b mut [u8]) -> Option<&'b mut [u8]> {
        self.0.open_in_place(nonce(number), Aad::from(beside), sealed).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn only_sealed_messages_open(text in prop::collection::vec(any::<u8>(), 0..200), place in any::<usize>(), other in 1..u64::MAX) {
            let mut sealer = Sealer::new(b"secret", b"salt", &[b"there"]);
            let opener = Opener::new(b"secret", b"salt", &[b"there"]);
            let mut sealed = text.clone();
            sealer.seal(b"beside", &mut sealed, 0);
            let open = |opener: &Opener, number, beside: &[u8]| {
                opener.open(number, beside, &mut sealed.clone()).map(|opened| opened.to_vec())
            };
            prop_assert_eq!(open(&opener, 0, b"beside"), Some(text));
            prop_assert_eq!(open(&opener, other, b"beside"), None, "another number");
            prop_assert_eq!(open(&opener, 0, b"besides"), None, "other authenticated data");
            let back = Opener::new(b"secret", b"salt", &[b"back"]);
            prop_assert_eq!(open(&back, 0, b"beside"), None, "the other direction");
            let mut changed = sealed.clone();
            let place = place % changed.len();
            changed[place] ^= 1;
            prop_assert_eq!(opener.open(0, b"beside", &mut changed), None, "one bit");
        }
    }
}
