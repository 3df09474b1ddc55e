//! A message as it goes through the server: who wrote it and to whom in the open, what it says sealed. Pure.
//!
//! ```text
//! form u8 │ kind u8 │ version u8 │ from u64 │ to u64 │ salt 16 │ number u64 │ sealed body │ tag 16
//! ```
//!
//! `to` is zero for all. The salt is drawn when a router begins to share and makes its key, so that the numbers, which count from zero,
//! never meet the same key again. The head is vouched for by the seal: nothing in it can be changed, and a letter to one cannot be turned into
//! a letter to all. The head's form and all kinds but [`Kind::Message`] are the same in all versions.

use warmroute_types::RouterId;

use crate::Versions;
use crate::seal::{Opener, Sealer};

pub(crate) const HEAD_BYTES: usize = 3 + 8 + 8 + 16 + 8;

const FORM: u8 = 1;

pub(crate) type Salt = [u8; 16];
pub(crate) type Question = [u8; 16];

/// What a letter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// I am there.
    Here = 0,
    /// Are you there? Repeat this.
    Ask = 1,
    /// I am, and repeat it.
    Answer = 2,
    /// A message of whoever shares.
    Message = 3,
    /// I leave.
    Goodbye = 4,
}

/// What stands in the open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub kind: Kind,
    pub version: u8,
    pub from: RouterId,
    /// `None`: all.
    pub to: Option<RouterId>,
    pub salt: Salt,
    pub number: u64,
}

/// Writes one router's letters.
#[derive(Debug)]
pub(crate) struct Pen {
    me: RouterId,
    salt: Salt,
    sealer: Sealer,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        let all = [Kind::Here, Kind::Ask, Kind::Answer, Kind::Message, Kind::Goodbye];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl Head {
    /// What a letter says of itself, and what is sealed.
    pub(crate) fn parse(letter: &[u8]) -> Option<(Head, &[u8])> {
        let (head, sealed) = letter.split_first_chunk::<HEAD_BYTES>()?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| head[at + byte]));
        let [form, kind, version] = [head[0], head[1], head[2]];
        let kind = Kind::from_byte(kind).filter(|_| form == FORM)?;
        let to = Some(RouterId(number(11))).filter(|to| to.0 != 0);
        let salt = std::array::from_fn(|byte| head[19 + byte]);
        Some((Head { kind, version, from: RouterId(number(3)), to, salt, number: number(35) }, sealed))
    }

    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..3].copy_from_slice(&[FORM, self.kind as u8, self.version]);
        bytes[3..11].copy_from_slice(&self.from.0.to_be_bytes());
        bytes[11..19].copy_from_slice(&self.to.map_or(0, |to| to.0).to_be_bytes());
        bytes[19..35].copy_from_slice(&self.salt);
        bytes[35..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// What a letter says, if it is of who it says.
    pub(crate) fn open(&self, opener: &Opener, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut body = sealed.to_vec();
        let opened = opener.open(self.number, &self.encode(), &mut body)?.len();
        body.truncate(opened);
        Some(body)
    }
}

/// The key of one router's letters.
pub(crate) fn opener(secret: &[u8], prefix: &str, salt: &Salt) -> Opener {
    Opener::new(secret, salt, &[b"warmroute letters ", prefix.as_bytes()])
}

impl Pen {
    pub(crate) fn new(me: RouterId, secret: &[u8], prefix: &str, salt: Salt) -> Pen {
        let sealer = Sealer::new(secret, &salt, &[b"warmroute letters ", prefix.as_bytes()]);
        Pen { me, salt, sealer }
    }

    pub(crate) fn write(&mut self, kind: Kind, version: u8, to: Option<RouterId>, body: &[&[u8]]) -> Vec<u8> {
        let head =
            Head { kind, version, from: self.me, to, salt: self.salt, number: self.sealer.next() }.encode();
        let mut letter = head.to_vec();
        body.iter().for_each(|part| letter.extend_from_slice(part));
        self.sealer.seal(&head, &mut letter, HEAD_BYTES);
        letter
    }
}

/// Which versions the writer of a letter speaks, which all but messages begin with, and the question in it, if there is one.
pub(crate) fn introduction(body: &[u8]) -> Option<(Versions, Option<Question>)> {
    let (&[oldest, newest], rest) = body.split_first_chunk()?;
    Some((Versions { oldest, newest }, rest.first_chunk().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pen(me: u64) -> Pen {
        Pen::new(RouterId(me), b"secret", "prefix", [7; 16])
    }

    proptest! {
        #[test]
        fn letters_are_read_as_written_and_no_bit_can_be_turned(
            me in 1..u64::MAX, to in any::<u64>(), body in prop::collection::vec(any::<u8>(), 0..200), place in any::<usize>(), bit in 0..8_u8,
        ) {
            let to = Some(RouterId(to)).filter(|to| to.0 != 0);
            let letter = pen(me).write(Kind::Message, 3, to, &[&body]);
            let (head, sealed) = Head::parse(&letter).unwrap();
            prop_assert_eq!((head.from, head.to, head.version, head.number), (RouterId(me), to, 3, 0));
            let key = opener(b"secret", "prefix", &head.salt);
            prop_assert_eq!(head.open(&key, sealed), Some(body));
            prop_assert_eq!(head.open(&opener(b"secret", "other", &head.salt), sealed), None);
            let mut turned = letter.clone();
            let place = place % turned.len();
            turned[place] ^= 1 << bit;
            if let Some((head, sealed)) = Head::parse(&turned) {
                let key = opener(b"secret", "prefix", &head.salt);
                prop_assert_eq!(head.open(&key, sealed), None, "byte {}", place);
            }
        }

        #[test]
        fn garbage_is_no_letter_and_never_panics(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some((head, sealed)) = Head::parse(&garbage) {
                prop_assert_eq!(head.open(&opener(b"secret", "prefix", &head.salt), sealed), None);
            }
            _ = introduction(&garbage);
        }
    }
}
