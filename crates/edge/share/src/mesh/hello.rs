//! What two routers say to each other before anything else. Pure.
//!
//! ```text
//! dials            accepts
//!   Hello   ──────▶           versions, number, address, 32 random bytes
//!           ◀──────  Hello    the same of the other, or a Refusal
//!   Proof   ──────▶           HMAC of both hellos: I know the secret
//!           ◀──────  Proof    so do I, or a Refusal
//! ```
//!
//! This form never changes, whatever version is spoken afterwards; bytes at a hello's end that are not understood are passed over.
//! The dialer proves first, so that a port that anybody reaches gives nothing to guess at. Both proofs cover both hellos and who
//! dialed, so neither can be turned back or used again. Messages are a kind, a length and a body.

use warmroute_types::RouterId;

use crate::Versions;
use crate::mesh::config::ADDRESS_BYTES_MAX;

const MAGIC: &[u8; 4] = b"WRMS";

/// Room for what later versions may add to a hello.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1_024;

/// Kind and length.
pub(crate) const HEAD_BYTES: usize = 3;

pub(crate) const PROOF_BYTES: usize = 32;

/// Who somebody is, or says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub versions: Versions,
    pub router: RouterId,
    pub nonce: [u8; 32],
    /// Where it can be dialed.
    pub address: String,
    pub errand: Errand,
}

/// What somebody comes for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// To stay.
    Join,
    /// To see whether it could: it proves and is proved to, and goes. Who does not understand this takes it for one that was lost at once.
    Visit,
}

/// At the end of a visitor's hello.
const VISIT: u8 = 1;

/// Why a router is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No version in common; these are spoken.
    Versions(Versions),
    /// It does not know the secret.
    Secret,
    /// It has dialed itself.
    Ourselves,
}

/// Between the first byte and the first frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hello(Hello),
    Proof([u8; PROOF_BYTES]),
    Refusal(Refusal),
}

impl Message {
    /// As it goes over the wire.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Message::Hello(hello) => (1, hello.encode()),
            Message::Proof(proof) => (2, proof.to_vec()),
            Message::Refusal(refusal) => (3, refusal.encode()),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(body.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// What came, or nothing when it is no message.
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Option<Message> {
        match kind {
            1 => Hello::decode(body).map(Message::Hello),
            2 => body.try_into().ok().map(Message::Proof),
            3 => Refusal::decode(body).map(Message::Refusal),
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
        bytes.extend((self.errand == Errand::Visit).then_some(VISIT));
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
        let errand = if rest.first() == Some(&VISIT) { Errand::Visit } else { Errand::Join };
        let versions = Versions { oldest, newest };
        (router.0 != 0).then_some(Hello { versions, router, nonce, address, errand })
    }
}

impl Refusal {
    fn encode(self) -> Vec<u8> {
        match self {
            Refusal::Versions(versions) => vec![1, versions.oldest, versions.newest],
            Refusal::Secret => vec![2],
            Refusal::Ourselves => vec![3],
        }
    }

    fn decode(body: &[u8]) -> Option<Refusal> {
        match *body {
            [1, oldest, newest, ..] => Some(Refusal::Versions(Versions { oldest, newest })),
            [2, ..] => Some(Refusal::Secret),
            [3, ..] => Some(Refusal::Ourselves),
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

    fn messages() -> impl Strategy<Value = Message> {
        let versions = (any::<u8>(), any::<u8>()).prop_map(|(oldest, newest)| Versions { oldest, newest });
        let errand = prop::sample::select(vec![Errand::Join, Errand::Visit]);
        let hello = (versions.clone(), 1..u64::MAX, any::<[u8; 32]>(), "[a-z0-9.:]{0,60}", errand);
        let hello = hello.prop_map(|(versions, router, nonce, address, errand)| {
            Message::Hello(Hello { versions, router: RouterId(router), nonce, address, errand })
        });
        prop_oneof![
            hello,
            any::<[u8; 32]>().prop_map(Message::Proof),
            versions.prop_map(|versions| Message::Refusal(Refusal::Versions(versions))),
            Just(Message::Refusal(Refusal::Secret)),
            Just(Message::Refusal(Refusal::Ourselves)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(message in messages()) {
            let bytes = message.encode();
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(usize::from(u16::from_be_bytes([bytes[1], bytes[2]])), bytes.len() - 3);
            prop_assert_eq!(Message::decode(bytes[0], &bytes[3..]), Some(message.clone()));
            let longer = [&bytes[3..], b"of a later version"].concat();
            if bytes[0] != 2 {
                prop_assert_eq!(Message::decode(bytes[0], &longer), Some(message));
            }
        }

        #[test]
        fn garbage_is_no_message_and_never_panics(kind in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..120)) {
            let message = Message::decode(kind, &body);
            prop_assert!(!matches!(message, Some(Message::Hello(_))) || body.starts_with(MAGIC));
        }
    }
}
