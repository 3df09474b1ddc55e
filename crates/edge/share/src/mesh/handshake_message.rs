//! The first messages of a connection. Pure.
//!
//! ```text
//! dialer           acceptor
//!   Hello   ──────▶           versions, router id, address, 32 random bytes
//!           ◀──────  Hello    the same, or a Refusal
//!   Proof   ──────▶           HMAC of both hellos with the secret
//!           ◀──────  Proof    the same for the acceptor, or a Refusal
//! ```
//!
//! This layout never changes, whatever version is used afterwards; unknown bytes at the end of a hello are skipped. The dialer
//! proves first, so an open port gives an attacker nothing to guess from. Both proofs cover both hellos and the side, so a proof
//! can be neither reflected nor replayed. A message is a kind, a length and a body.

use warmroute_types::RouterId;

use crate::Versions;
use crate::mesh::peer_address::ADDRESS_BYTES_MAX;

const MAGIC: &[u8; 4] = b"WRMS";

/// Leaves room for fields that later versions add to a hello.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1_024;

/// Kind and length.
pub(crate) const HEAD_BYTES: usize = 3;

pub(crate) const PROOF_BYTES: usize = 32;

/// The identity that a router claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub versions: Versions,
    pub router: RouterId,
    pub nonce: [u8; 32],
    /// The address that peers dial.
    pub address: String,
    pub purpose: Purpose,
}

/// Why a router connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To stay connected.
    Join,
    /// To test whether it could join. It completes the handshake and disconnects; an older router sees a
    /// connection that is lost at once.
    Probe,
}

/// Last byte of a probe's hello.
const PROBE: u8 = 1;

/// Why a router is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No common version; these are supported.
    IncompatibleVersions(Versions),
    /// The proof does not match.
    WrongSecret,
    /// The router dialed itself.
    SelfDial,
}

/// A message between the first byte and the first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeMessage {
    Hello(Hello),
    Proof([u8; PROOF_BYTES]),
    Refusal(Refusal),
}

impl HandshakeMessage {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            HandshakeMessage::Hello(hello) => (1, hello.encode()),
            HandshakeMessage::Proof(proof) => (2, proof.to_vec()),
            HandshakeMessage::Refusal(refusal) => (3, refusal.encode()),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Decodes a message; `None` if it is malformed.
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Option<HandshakeMessage> {
        match kind {
            1 => Hello::decode(body).map(HandshakeMessage::Hello),
            2 => body.try_into().ok().map(HandshakeMessage::Proof),
            3 => Refusal::decode(body).map(HandshakeMessage::Refusal),
            _ => None,
        }
    }
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&[self.versions.oldest, self.versions.newest]);
        bytes.extend_from_slice(&self.router.0.to_be_bytes());
        bytes.extend_from_slice(&self.nonce);
        debug_assert!(self.address.len() <= ADDRESS_BYTES_MAX);
        bytes.push(self.address.len() as u8);
        bytes.extend_from_slice(self.address.as_bytes());
        bytes.extend((self.purpose == Purpose::Probe).then_some(PROBE));
        bytes
    }

    fn decode(mut body: &[u8]) -> Option<Hello> {
        take::<4>(&mut body).filter(|magic| magic == MAGIC)?;
        let [oldest, newest] = take(&mut body)?;
        let router = RouterId(u64::from_be_bytes(take(&mut body)?));
        let nonce = take(&mut body)?;
        let [length] = take(&mut body)?;
        let (address, rest) = body.split_at_checked(usize::from(length))?;
        let address = std::str::from_utf8(address).ok()?.to_owned();
        let purpose = if rest.first() == Some(&PROBE) { Purpose::Probe } else { Purpose::Join };
        let versions = Versions { oldest, newest };
        (router.0 != 0).then_some(Hello { versions, router, nonce, address, purpose })
    }
}

impl Refusal {
    fn encode(self) -> Vec<u8> {
        match self {
            Refusal::IncompatibleVersions(versions) => vec![1, versions.oldest, versions.newest],
            Refusal::WrongSecret => vec![2],
            Refusal::SelfDial => vec![3],
        }
    }

    fn decode(body: &[u8]) -> Option<Refusal> {
        match *body {
            [1, oldest, newest, ..] => Some(Refusal::IncompatibleVersions(Versions { oldest, newest })),
            [2, ..] => Some(Refusal::WrongSecret),
            [3, ..] => Some(Refusal::SelfDial),
            _ => None,
        }
    }
}

fn take<const N: usize>(body: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = body.split_first_chunk()?;
    *body = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = HandshakeMessage> {
        let versions = (any::<u8>(), any::<u8>()).prop_map(|(oldest, newest)| Versions { oldest, newest });
        let purpose = prop::sample::select(vec![Purpose::Join, Purpose::Probe]);
        let hello = (versions.clone(), 1..u64::MAX, any::<[u8; 32]>(), "[a-z0-9.:]{0,60}", purpose);
        let hello = hello.prop_map(|(versions, router, nonce, address, purpose)| {
            HandshakeMessage::Hello(Hello { versions, router: RouterId(router), nonce, address, purpose })
        });
        prop_oneof![
            hello,
            any::<[u8; 32]>().prop_map(HandshakeMessage::Proof),
            versions.prop_map(|versions| HandshakeMessage::Refusal(Refusal::IncompatibleVersions(versions))),
            Just(HandshakeMessage::Refusal(Refusal::WrongSecret)),
            Just(HandshakeMessage::Refusal(Refusal::SelfDial)),
        ]
    }

    proptest! {
        #[test]
        fn handshake_messages_survive_encoding(message in messages()) {
            let bytes = message.encode();
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(usize::from(u16::from_be_bytes([bytes[1], bytes[2]])), bytes.len() - 3);
            prop_assert_eq!(HandshakeMessage::decode(bytes[0], &bytes[3..]), Some(message.clone()));
            let longer = [&bytes[3..], b"of a later version"].concat();
            if bytes[0] != 2 {
                prop_assert_eq!(HandshakeMessage::decode(bytes[0], &longer), Some(message));
            }
        }

        #[test]
        fn garbage_is_rejected_and_never_panics(kind in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..120)) {
            let message = HandshakeMessage::decode(kind, &body);
            prop_assert!(!matches!(message, Some(HandshakeMessage::Hello(_))) || body.starts_with(MAGIC));
        }
    }
}
