//! Converts presumed caches between the index and the peers' wire format.
//!
//! Only worker identities and prompt digests are sent: seeds, addresses and latencies stay here.

use std::collections::BTreeMap;

use warmroute_index::{Digester, SegmentParent, Snapshot, SnapshotUse, Span};
use warmroute_peers::{BadMessage, PresumedRecord, RunParent, SnapshotReader, SnapshotWriter, SpanSizes};
use warmroute_types::MAX_WORKERS;

/// Routers with equal digests of this text digest prompts alike.
const KNOWN_TEXT: &[u8] = b"warmroute: do we digest alike?";

/// A peer's presumptions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// Worker identities; the snapshot refers to them by position.
    pub workers: Vec<u64>,
    pub snapshot: Snapshot,
}

/// Encodes the presumptions; empty without any. Workers without an identity are left out.
pub(crate) fn write(
    snapshot: &Snapshot,
    digester: &Digester,
    identity_of: impl Fn(u16) -> Option<u64>,
) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(digester.digest(KNOWN_TEXT));
    let mut places = BTreeMap::<u16, u32>::new();
    for used in snapshot.used() {
        let place = places.len() as u32;
        if !places.contains_key(&used.worker)
            && let Some(identity) = identity_of(used.worker)
        {
            places.insert(used.worker, place);
            writer.push(&PresumedRecord::Worker(identity));
        }
    }
    if places.is_empty() {
        return Vec::new();
    }
    snapshot.segments().for_each(|(before, spans)| writer.push(&stretch(before, &spans)));
    for &SnapshotUse { worker, segment, end, age } in snapshot.used() {
        let record = |&worker: &u32| PresumedRecord::Use { worker, run: segment, spans: end.into(), age };
        places.get(&worker).map(record).into_iter().for_each(|record| writer.push(&record));
    }
    writer.finish()
}

fn stretch(before: SegmentParent, spans: &[Span]) -> PresumedRecord {
    let after = match before {
        SegmentParent::Root(key) => RunParent::Root(key),
        SegmentParent::Segment(number, spans) => RunParent::Run { number, spans: spans.into() },
    };
    let alike = spans.chunk_by(|a, b| (a.bytes, a.tokens) == (b.bytes, b.tokens));
    let sizes = alike.map(|spans| SpanSizes {
        count: spans.len() as u32,
        bytes: spans[0].bytes,
        tokens: spans[0].tokens,
    });
    let digests = spans.iter().map(|span| span.digest).collect();
    PresumedRecord::Run { parent: after, sizes: sizes.collect(), digests }
}

/// Decodes a peer's presumptions. Fails on invalid data and on other digest seeds.
pub(crate) fn read(bytes: &[u8], digester: &Digester) -> Result<View, BadMessage> {
    let mut reader = SnapshotReader::new(bytes)?;
    if reader.record()? != Some(PresumedRecord::Key(digester.digest(KNOWN_TEXT))) {
        return Err(BadMessage::Malformed);
    }
    let mut view = View { workers: Vec::new(), snapshot: Snapshot::default() };
    while let Some(record) = reader.record()? {
        view.take(record).ok_or(BadMessage::Malformed)?;
    }
    Ok(view)
}

impl View {
    fn take(&mut self, record: PresumedRecord) -> Option<()> {
        match record {
            PresumedRecord::Key(_) => None,
            PresumedRecord::Worker(identity) => {
                self.workers.push(identity);
                (self.workers.len() <= MAX_WORKERS).then_some(())
            }
            PresumedRecord::Run { parent: after, sizes, digests } => {
                let before = match after {
                    RunParent::Root(key) => SegmentParent::Root(key),
                    RunParent::Run { number, spans } => {
                        SegmentParent::Segment(number, u8::try_from(spans).ok()?)
                    }
                };
                self.snapshot.add_segment(before, &spans(&sizes, &digests)).ok()
            }
            PresumedRecord::Use { worker, run: stretch, spans, age } => {
                let worker = u16::try_from(worker).ok()?;
                self.workers.get(usize::from(worker))?;
                let end = u8::try_from(spans).ok()?;
                self.snapshot.add_use(SnapshotUse { worker, segment: stretch, end, age }).ok()
            }
        }
    }
}

fn spans(sizes: &[SpanSizes], digests: &[u64]) -> Vec<Span> {
    let each = sizes.iter().flat_map(|sizes| std::iter::repeat_n(sizes, sizes.count as usize));
    let span =
        |(&digest, sizes): (&u64, &SpanSizes)| Span { digest, bytes: sizes.bytes, tokens: sizes.tokens };
    digests.iter().zip(each).map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_index::{Config, Index, Namespace, RootKey, Source};
    use warmroute_types::{Micros, WorkerId};

    fn index(seed: u64) -> Index {
        Index::new(&Config { seed, ..Config::default() })
    }

    #[test]
    fn what_is_told_is_read_as_it_was_but_for_workers_that_are_gone() {
        let index = index(5);
        let namespace = Namespace { model: "m", lora: None, salt: None, cut: 256, source: Source::Presumed };
        for at in 0..300_u64 {
            let bytes = if at % 3 == 0 { 7 } else { 256 };
            let spans: Vec<Span> =
                (0..at).map(|digest| Span { digest: digest.max(at / 2), bytes, tokens: 64 }).collect();
            let worker = WorkerId(10 + (at % 3) as u16);
            let asked = index.presume(worker.into(), RootKey::of(&namespace), &spans, Micros(at)).unwrap();
            index.confirm(asked);
        }
        let snapshot = index.snapshot(Micros(1_000));
        let identity = |worker: u16| (worker != 11).then_some(u64::from(worker) << 40);
        let bytes = write(&snapshot, index.digester(), identity);
        let view = read(&bytes, index.digester()).unwrap();
        let number = |used: &SnapshotUse| SnapshotUse {
            worker: (view.workers[usize::from(used.worker)] >> 40) as u16,
            ..*used
        };
        let told: Vec<SnapshotUse> = view.snapshot.used().iter().map(number).collect();
        let known: Vec<SnapshotUse> =
            snapshot.used().iter().filter(|used| used.worker != 11).copied().collect();
        assert!(told.len() > 10 && told == known);
        assert!(view.snapshot.segments().eq(snapshot.segments()));
        assert_eq!(write(&snapshot, index.digester(), |_| None), [0_u8; 0], "nothing is told as nothing");
        assert!(read(&bytes, self::index(6).digester()).is_err(), "it means other prompts");
        for end in 0..bytes.len().min(4_000) {
            _ = read(&bytes[..end], index.digester());
        }
    }
}
