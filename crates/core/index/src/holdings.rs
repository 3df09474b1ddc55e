//! The reported spans of one worker, exported from one index and imported into another: for a router that started
//! after the engine reported them.
//!
//! The export contains chains under the worker's names, parents first, so later events find their parents and
//! removals find their spans. Where a chain has a hole, a placeholder span takes its position under an unused name;
//! the import removes it at the end. The export contains digests only. Without the seed they reveal nothing about the
//! text.

use warmroute_types::Packed;

use crate::config::IndexError;
use crate::holder_id::HolderId;
use crate::index::{Index, Parent};
use crate::orphans::OrphanSpan;
use crate::root::RootKey;
use crate::span::{NamedSpan, Size, Span};

/// Encoded bytes of a run's header, a span, an extra count and a waiting span.
const RUN_BYTES: usize = 13;
const SPAN_BYTES: usize = 20;
const EXTRA_COUNT_BYTES: usize = 12;
const WAITING_BYTES: usize = 24;

/// Largest extra count that is written. A name stored more often is forgotten too early rather than never.
pub(crate) const EXTRA_COUNT_MAX: u32 = 1 << 16;

/// All spans that one worker reported and holds, and those that wait for a parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub(crate) runs: Vec<Run>,
    /// Names of placeholder spans.
    pub(crate) holes: Vec<u64>,
    /// How often each name was stored beyond the first time.
    pub(crate) extra_counts: Vec<(u64, u32)>,
    /// Chains that wait for an unknown parent.
    pub(crate) waiting: Vec<(u64, Vec<OrphanSpan>)>,
}

/// A chain and the span or root that it continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub after: Parent,
    pub spans: Vec<NamedSpan>,
}

/// The bytes do not encode holdings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the encoded holdings of a worker are malformed")]
pub struct BadHoldings;

impl Holdings {
    /// Number of spans, including placeholders and waiting spans.
    pub fn spans(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(|(_, spans)| spans.len()).sum();
        self.runs.iter().map(|run| run.spans.len()).sum::<usize>() + waiting
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        self.runs.iter().for_each(|run| encode_run(run, out));
        out.extend_from_slice(&(self.holes.len() as u32).to_le_bytes());
        self.holes.iter().for_each(|name| out.extend_from_slice(&name.to_le_bytes()));
        out.extend_from_slice(&(self.extra_counts.len() as u32).to_le_bytes());
        for (name, count) in &self.extra_counts {
            out.extend_from_slice(&name.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&(self.waiting.len() as u32).to_le_bytes());
        self.waiting.iter().for_each(|(parent, spans)| encode_waiting(*parent, spans, out));
    }

    /// Decodes what [`Holdings::encode`] wrote. For any input, memory stays within a few times the input's length.
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

fn encode_waiting(parent: u64, spans: &[OrphanSpan], out: &mut Vec<u8>) {
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
    for _ in 0..bytes.count(EXTRA_COUNT_BYTES)? {
        holdings.extra_counts.push((bytes.u64()?, read_count(bytes)?));
    }
    for _ in 0..bytes.count(EXTRA_COUNT_BYTES)? {
        let parent = bytes.u64()?;
        let mut spans = Vec::new();
        for _ in 0..bytes.count(WAITING_BYTES)? {
            let (name, digest, size) = (bytes.u64()?, bytes.u64()?, read_size(bytes)?);
            spans.push(OrphanSpan { name, digest, size, count: read_count(bytes)? });
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
    bytes.u32().filter(|count| *count <= EXTRA_COUNT_MAX)
}

impl Index {
    /// Replaces everything known about a worker by these holdings, as far as the budget allows.
    pub fn replace_holdings(&self, worker: HolderId, holdings: &Holdings) -> Result<(), IndexError> {
        self.clear(worker);
        for run in &holdings.runs {
            self.store(worker, run.after, &run.spans)?;
        }
        self.add_counts(worker, &holdings.extra_counts);
        self.remove(worker, &holdings.holes);
        self.park_chains(worker, &holdings.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Namespace, Source};

    #[test]
    fn a_very_large_extra_count_survives_export_and_import() {
        let config = Config::default();
        let (from, to) = (Index::new(&config), Index::new(&config));
        let namespace = Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Reported };
        let root = Parent::Root(RootKey::of(&namespace));
        let span = |name| NamedSpan { name, span: Span { digest: name, bytes: 16, tokens: 4 } };
        let worker = HolderId(3);
        from.store(worker, root, &[span(1)]).unwrap();
        from.store(worker, Parent::Name(99), &[span(2)]).unwrap();
        from.add_counts(worker, &[(1, EXTRA_COUNT_MAX + 5), (2, EXTRA_COUNT_MAX + 5)]);
        let mut bytes = Vec::new();
        from.holdings(worker).encode(&mut bytes);
        let holdings = Holdings::decode(&mut Packed(&bytes)).unwrap();
        assert_eq!(holdings.extra_counts, [(1, EXTRA_COUNT_MAX)]);
        to.replace_holdings(worker, &holdings).unwrap();
        assert_eq!(to.holdings(worker), holdings);
    }
}
