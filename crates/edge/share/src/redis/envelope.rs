//! Layout of a message on the server: an open header and a sealed body. Pure.
//!
//! ```text
//! form u8 │ kind u8 │ version u8 │ from u64 │ to u64 │ salt 16 │ number u64 │ sealed body │ tag 16
//! ```
//!
//! `to` is zero for all routers. Each process draws a salt, from which its key is derived, so its numbers, which count from
//! zero, never meet the same key twice. The seal also covers the header: no field can be changed, and an envelope for one router
//! cannot become one for all. The header and all kinds except [`EnvelopeKind::Message`] are the same in all versions.

use warmroute_types::RouterId;

use crate::Versions;
use crate::seal::{Opener, Sealer};

pub(crate) const HEADER_BYTES: usize = 3 + 8 + 8 + 16 + 8;

const FORM: u8 = 1;

pub(crate) type Salt = [u8; 16];
pub(crate) type Challenge = [u8; 16];

/// Purpose of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnvelopeKind {
    /// Announces a router.
    Announce = 0,
    /// Asks a router to repeat random bytes.
    Challenge = 1,
    /// Repeats the bytes of a challenge.
    Response = 2,
    /// A message of the sharing router.
    Message = 3,
    /// A router leaves.
    Goodbye = 4,
}

/// The open part of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnvelopeHeader {
    pub kind: EnvelopeKind,
    pub version: u8,
    pub from: RouterId,
    /// `None` for all routers.
    pub to: Option<RouterId>,
    pub salt: Salt,
    pub number: u64,
}

/// Writes the envelopes of one router.
#[derive(Debug)]
pub(crate) struct EnvelopeWriter {
    me: RouterId,
    salt: Salt,
    sealer: Sealer,
}

impl EnvelopeKind {
    fn from_byte(byte: u8) -> Option<EnvelopeKind> {
        let all = [
            EnvelopeKind::Announce,
            EnvelopeKind::Challenge,
            EnvelopeKind::Response,
            EnvelopeKind::Message,
            EnvelopeKind::Goodbye,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl EnvelopeHeader {
    /// Splits an envelope into header and sealed body.
    pub(crate) fn parse(envelope: &[u8]) -> Option<(EnvelopeHeader, &[u8])> {
        let (header, sealed) = envelope.split_first_chunk::<HEADER_BYTES>()?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| header[at + byte]));
        let [form, kind, version] = [header[0], header[1], header[2]];
        let kind = EnvelopeKind::from_byte(kind).filter(|_| form == FORM)?;
        let to = Some(RouterId(number(11))).filter(|to| to.0 != 0);
        let salt = std::array::from_fn(|byte| header[19 + byte]);
        Some((
            EnvelopeHeader { kind, version, from: RouterId(number(3)), to, salt, number: number(35) },
            sealed,
        ))
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..3].copy_from_slice(&[FORM, self.kind as u8, self.version]);
        bytes[3..11].copy_from_slice(&self.from.0.to_be_bytes());
        bytes[11..19].copy_from_slice(&self.to.map_or(0, |to| to.0).to_be_bytes());
        bytes[19..35].copy_from_slice(&self.salt);
        bytes[35..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// The body, if the header's sender sealed it.
    pub(crate) fn open(&self, opener: &Opener, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut body = sealed.to_vec();
        let opened = opener.open(self.number, &self.encode(), &mut body)?.len();
        body.truncate(opened);
        Some(body)
    }
}

/// The key of one router's envelopes.
pub(crate) fn opener(secret: &[u8], prefix: &str, salt: &Salt) -> Opener {
    Opener::new(secret, salt, &[b"warmroute letters ", prefix.as_bytes()])
}

impl EnvelopeWriter {
    pub(crate) fn new(me: RouterId, secret: &[u8], prefix: &str, salt: Salt) -> EnvelopeWriter {
        let sealer = Sealer::new(secret, &salt, &[b"warmroute letters ", prefix.as_bytes()]);
        EnvelopeWriter { me, salt, sealer }
    }

    pub(crate) fn write(
        &mut self,
        kind: EnvelopeKind,
        version: u8,
        to: Option<RouterId>,
        body: &[&[u8]],
    ) -> Vec<u8> {
        let header =
            EnvelopeHeader { kind, version, from: self.me, to, salt: self.salt, number: self.sealer.next() }
                .encode();
        let mut envelope = header.to_vec();
        body.iter().for_each(|part| envelope.extend_from_slice(part));
        self.sealer.seal(&header, &mut envelope, HEADER_BYTES);
        envelope
    }
}

/// The versions that every body except a message's starts with, and the challenge if there is one.
pub(crate) fn parse_introduction(body: &[u8]) -> Option<(Versions, Option<Challenge>)> {
    let (&[oldest, newest], rest) = body.split_first_chunk()?;
    Some((Versions { oldest, newest }, rest.first_chunk().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn writer(me: u64) -> EnvelopeWriter {
        EnvelopeWriter::new(RouterId(me), b"secret", "prefix", [7; 16])
    }

    proptest! {
        #[test]
        fn envelopes_survive_encoding_and_reject_any_changed_bit(
            me in 1..u64::MAX, to in any::<u64>(), body in prop::collection::vec(any::<u8>(), 0..200), place in any::<usize>(), bit in 0..8_u8,
        ) {
            let to = Some(RouterId(to)).filter(|to| to.0 != 0);
            let envelope = writer(me).write(EnvelopeKind::Message, 3, to, &[&body]);
            let (header, sealed) = EnvelopeHeader::parse(&envelope).unwrap();
            prop_assert_eq!((header.from, header.to, header.version, header.number), (RouterId(me), to, 3, 0));
            let key = opener(b"secret", "prefix", &header.salt);
            prop_assert_eq!(header.open(&key, sealed), Some(body));
            prop_assert_eq!(header.open(&opener(b"secret", "other", &header.salt), sealed), None);
            let mut turned = envelope.clone();
            let place = place % turned.len();
            turned[place] ^= 1 << bit;
            if let Some((header, sealed)) = EnvelopeHeader::parse(&turned) {
                let key = opener(b"secret", "prefix", &header.salt);
                prop_assert_eq!(header.open(&key, sealed), None, "byte {}", place);
            }
        }

        #[test]
        fn garbage_never_opens_and_never_panics(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some((header, sealed)) = EnvelopeHeader::parse(&garbage) {
                prop_assert_eq!(header.open(&opener(b"secret", "prefix", &header.salt), sealed), None);
            }
            _ = parse_introduction(&garbage);
        }
    }
}
