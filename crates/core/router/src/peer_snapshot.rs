//! The presumed caches as one router sends them to another that joins late.
//!
//! ```text
//! version | digest of a known text | workers: number, identity … | the index's snapshot, as in the saved state
//! ```
//!
//! Only worker identities and prompt digests are sent: seeds, addresses and latencies stay here.

use warmroute_index::{Digester, Snapshot};
use warmroute_peers::BadMessage;
use warmroute_types::{MAX_WORKERS, Packed, WorkerId};

/// The version that this build writes and reads.
const VERSION: u8 = 2;

/// Routers with equal digests of this text digest prompts alike.
const KNOWN_TEXT: &[u8] = b"warmroute: do we digest alike?";

/// Encoded bytes of a worker.
const WORKER_BYTES: usize = 10;

/// A peer's presumptions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PeerSnapshot {
    /// The peer's numbers of workers in the snapshot, and their identities.
    pub workers: Vec<(WorkerId, u64)>,
    pub snapshot: Snapshot,
}

/// Encodes the presumptions; empty without any. Workers without an identity are left out.
pub(crate) fn write(
    snapshot: &Snapshot,
    digester: &Digester,
    identity_of: impl Fn(WorkerId) -> Option<u64>,
) -> Vec<u8> {
    let workers: Vec<(WorkerId, u64)> =
        snapshot.workers().filter_map(|worker| Some((worker, identity_of(worker)?))).collect();
    if workers.is_empty() {
        return Vec::new();
    }
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&digester.digest(KNOWN_TEXT).to_le_bytes());
    bytes.extend_from_slice(&(workers.len() as u32).to_le_bytes());
    for (worker, identity) in workers {
        bytes.extend_from_slice(&worker.0.to_le_bytes());
        bytes.extend_from_slice(&identity.to_le_bytes());
    }
    snapshot.encode(&mut bytes);
    bytes
}

/// Decodes a peer's presumptions. Fails on invalid data and on other digest seeds.
pub(crate) fn read(bytes: &[u8], digester: &Digester) -> Result<PeerSnapshot, BadMessage> {
    match bytes.first() {
        Some(&VERSION) => read_body(&mut Packed(&bytes[1..]), digester).ok_or(BadMessage::Malformed),
        Some(&version) => Err(BadMessage::Version(version)),
        None => Err(BadMessage::Truncated),
    }
}

fn read_body(bytes: &mut Packed<'_>, digester: &Digester) -> Option<PeerSnapshot> {
    if bytes.u64()? != digester.digest(KNOWN_TEXT) {
        return None;
    }
    let workers = bytes.count(WORKER_BYTES).filter(|&workers| workers <= MAX_WORKERS)?;
    let workers =
        (0..workers).map(|_| Some((WorkerId(bytes.u16()?), bytes.u64()?))).collect::<Option<_>>()?;
    let snapshot = Snapshot::decode(bytes).ok()?;
    bytes.0.is_empty().then_some(PeerSnapshot { workers, snapshot })
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_index::{Config, Index, Namespace, RootKey, Source, Span};
    use warmroute_types::Micros;

    const NAMESPACE: Namespace<'_> =
        Namespace { model: "m", lora: None, salt: None, cut: 256, source: Source::Presumed };

    fn index(seed: u64) -> Index {
        Index::new(&Config { seed, ..Config::default() })
    }

    fn presume(index: &Index, worker: u16, spans: &[Span], at: u64) {
        let asked =
            index.presume(WorkerId(worker).into(), RootKey::of(&NAMESPACE), spans, Micros(at)).unwrap();
        index.confirm(asked);
    }

    #[test]
    fn a_snapshot_survives_encoding_without_workers_that_are_gone() {
        let index = index(5);
        for at in 0..300_u64 {
            let bytes = if at % 3 == 0 { 7 } else { 256 };
            let spans: Vec<Span> =
                (0..at).map(|digest| Span { digest: digest.max(at / 2), bytes, tokens: 64 }).collect();
            presume(&index, 10 + (at % 3) as u16, &spans, at);
        }
        let snapshot = index.snapshot(Micros(1_000));
        let identity = |worker: WorkerId| (worker.0 != 11).then_some(u64::from(worker.0) << 40);
        let bytes = write(&snapshot, index.digester(), identity);
        let workers = [10, 12].map(|worker| (WorkerId(worker), u64::from(worker) << 40)).to_vec();
        let expected = PeerSnapshot { workers, snapshot };
        assert_eq!(read(&bytes, index.digester()).as_ref(), Ok(&expected));
        assert_eq!(write(&expected.snapshot, index.digester(), |_| None), [0_u8; 0], "nothing to send");
        assert!(read(&bytes, self::index(6).digester()).is_err(), "digests of another seed");
        for end in 0..bytes.len().min(4_000) {
            assert!(read(&bytes[..end], index.digester()).is_err(), "{end}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(read(&longer, index.digester()), Err(BadMessage::Malformed));
        let later = [&[VERSION + 1], &bytes[1..]].concat();
        assert_eq!(read(&later, index.digester()), Err(BadMessage::Version(VERSION + 1)));
    }

    /// These bytes are frozen: routers of this version send and understand them.
    #[test]
    fn the_snapshot_encoding_is_frozen() {
        let index = index(5);
        let span = |digest, bytes| Span { digest, bytes, tokens: 64 };
        presume(&index, 3, &[span(1, 256), span(2, 256)], 100);
        presume(&index, 4, &[span(1, 256), span(3, 256), span(4, 9)], 200);
        let snapshot = index.snapshot(Micros(300));
        let bytes = write(&snapshot, index.digester(), |worker| Some(u64::from(worker.0)));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, BYTES);
    }

    const BYTES: &str = "0270ffcc61b85353ef0200000003000300000000000000040004000000000000000200000000a442dc1d3b70e9b00201\
        400010000100000000000000020000000000000001000000000000000002004000100040900000030000000000000004\
        000000000000000200000003000000000002c800000000000000040001000000026400000000000000";
}
