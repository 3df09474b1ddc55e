//! What one worker has reported, taken out of the index to be brought into another one: for a router that was not there when it
//! was told.
//!
//! Chains under the worker's own names, each after what it continues, so that what the engine tells next finds its parents and
//! what it removes is known. Where a chain has a hole, the span that keeps its place goes along under a name that nobody uses,
//! and is removed at the end. Digests only; whoever has no seed learns nothing from them.

use warmroute_types::{Packed, WorkerId};

use crate::config::IndexError;
use crate::index::{Index, Parent};
use crate::orphans::Waiting;
use crate::root::RootKey;
use crate::span::{NamedSpan, Size, Span};

/// Bytes of a run's head, of a span and of a count, written down.
const RUN_BYTES: usize = 13;
const SPAN_BYTES: usize = 20;
const AGAIN_BYTES: usize = 12;
const WAITING_BYTES: usize = 24;

/// A name stored more often than this is written as if it were stored so often: it is forgotten too early rather than never.
pub(crate) const AGAIN_MAX: u32 = 1 << 16;

/// All that one worker holds, and has waiting, by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub(crate) runs: Vec<Run>,
    /// Names that only keep a place.
    pub(crate) holes: Vec<u64>,
    /// How often beyond the first time a name was stored.
    pub(crate) again: Vec<(u64, u32)>,
    /// Chains that wait for a parent that nobody knows.
    pub(crate) waiting: Vec<(u64, Vec<Waiting>)>,
}

/// A chain that continues something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub after: Parent,
    pub spans: Vec<NamedSpan>,
}

/// Bytes that are no holdings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what a worker holds is not written as it should be")]
pub struct BadHoldings;

impl Holdings {
    /// How many spans, with those that only keep a place and those that wait.
    pub fn spans(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(|(_, spans)| spans.len()).sum();
        self.runs.iter().map(|run| run.spans.len()).sum::<usize>() + waiting
    }

    /// Writes it down.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        self.runs.iter().for_each(|run| encode_run(run, out));
        out.extend_from_slice(&(self.holes.len() as u32).to_le_bytes());
        self.holes.iter().for_each(|name| out.extend_from_slice(&name.to_le_bytes()));
        out.extend_from_slice(&(self.again.len() as u32).to_le_bytes());
        for (name, count) in &self.again {
            out.extend_from_slice(&name.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&(self.waiting.len() as u32).to_le_bytes());
        self.waiting.iter().for_each(|(parent, spans)| encode_waiting(*parent, spans, out));
    }

    /// Reads what [`Holdings::encode`] wrote. Whatever the bytes are, this takes no more memory than a few times their number.
    pub fn decode(bytes: &mut Packed<'_>) -> Result<Holdings, BadHoldings> {
        read(bytes).ok_or(BadHoldings)
    }
}

fn encode_run(run: &Run, out: &mut Vec<u8>) {
    let (kind, after) = match run.after {
        Parent::Root(root) => (0, root.to_bits()),
        Parent::Name(name) => (1, name),
    };
    out.push(kind);
    out.extend_from_slice(&after.to_le_bytes());
    out.extend_from_slice(&(run.spans.len() as u32).to_le_bytes());
    for NamedSpan { name, span } in &run.spans {
        out.extend_from_slice(&name.to_le_bytes());
        out.extend_from_slice(&span.digest.to_le_bytes());
        out.extend_from_slice(&span.size().unwrap_or_default().0.to_le_bytes());
    }
}

fn encode_waiting(parent: u64, spans: &[Waiting], out: &mut Vec<u8>) {
    out.extend_from_slice(&parent.to_le_bytes());
    out.extend_from_slice(&(spans.len() as u32).to_le_bytes());
    for one in spans {
        out.extend_from_slice(&one.name.to_le_bytes());
        out.extend_from_slice(&one.digest.to_le_bytes());
        out.extend_from_slice(&one.size.0.to_le_bytes());
        out.extend_from_slice(&one.count.to_le_bytes());
    }
}

fn read(bytes: &mut Packed<'_>) -> Option<Holdings> {
    let mut holdings = Holdings::default();
    for _ in 0..bytes.count(RUN_BYTES)? {
        holdings.runs.push(read_run(bytes)?);
    }
    for _ in 0..bytes.count(size_of::<u64>())? {
        holdings.holes.push(bytes.u64()?);
    }
    for _ in 0..bytes.count(AGAIN_BYTES)? {
        holdings.again.push((bytes.u64()?, read_count(bytes)?));
    }
    for _ in 0..bytes.count(AGAIN_BYTES)? {
        let parent = bytes.u64()?;
        let mut spans = Vec::new();
        for _ in 0..bytes.count(WAITING_BYTES)? {
            let (name, digest, size) = (bytes.u64()?, bytes.u64()?, read_size(bytes)?);
            spans.push(Waiting { name, digest, size, count: read_count(bytes)? });
        }
        holdings.waiting.push((parent, spans));
    }
    Some(holdings)
}

fn read_run(bytes: &mut Packed<'_>) -> Option<Run> {
    let after = match (bytes.u8()?, bytes.u64()?) {
        (0, key) => Parent::Root(RootKey::reported_from_bits(key)),
        (1, name) => Parent::Name(name),
        _ => return None,
    };
    let mut spans = Vec::new();
    for _ in 0..bytes.count(SPAN_BYTES)? {
        let (name, digest, size) = (bytes.u64()?, bytes.u64()?, read_size(bytes)?);
        spans.push(NamedSpan { name, span: Span { digest, bytes: size.bytes(), tokens: size.tokens() } });
    }
    Some(Run { after, spans })
}

fn read_size(bytes: &mut Packed<'_>) -> Option<Size> {
    bytes.u32().map(Size).filter(|size| size.bytes() > 0)
}

fn read_count(bytes: &mut Packed<'_>) -> Option<u32> {
    bytes.u32().filter(|count| *count <= AGAIN_MAX)
}

impl Index {
    /// A worker holds just this, as far as there is room: whatever was known of it before is forgotten.
    pub fn hold(&self, worker: WorkerId, holdings: &Holdings) -> Result<(), IndexError> {
        self.clear(worker);
        for run in &holdings.runs {
            self.store(worker, run.after, &run.spans)?;
        }
        self.count_again(worker, &holdings.again);
        self.remove(worker, &holdings.holes);
        self.wait(worker, &holdings.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Namespace, Source};

    #[test]
    fn a_name_that_was_stored_very_often_can_be_carried_over() {
        let config = Config::default();
        let (from, to) = (Index::new(&config), Index::new(&config));
        let namespace = Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Reported };
        let root = Parent::Root(RootKey::of(&namespace));
        let span = |name| NamedSpan { name, span: Span { digest: name, bytes: 16, tokens: 4 } };
        let worker = WorkerId(3);
        from.store(worker, root, &[span(1)]).unwrap();
        from.store(worker, Parent::Name(99), &[span(2)]).unwrap();
        from.count_again(worker, &[(1, AGAIN_MAX + 5), (2, AGAIN_MAX + 5)]);
        let mut bytes = Vec::new();
        from.holdings(worker).encode(&mut bytes);
        let holdings = Holdings::decode(&mut Packed(&bytes)).unwrap();
        assert_eq!(holdings.again, [(1, AGAIN_MAX)]);
        to.hold(worker, &holdings).unwrap();
        assert_eq!(to.holdings(worker), holdings);
    }
}
