//! Engine events that one router receives and relays to the others.

use std::sync::Arc;

use crate::codec::{BadMessage, Reader, Writer};

/// A batch of an engine's events, with the engine's sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedBatch {
    /// The worker's identity, the same on every router.
    pub worker: u64,
    /// The engine process. Two batches with the same source and number are equal.
    pub source: u64,
    /// Sequence number of the source.
    pub seq: u64,
    /// Relation to the batches before it.
    pub kind: RelayedBatchKind,
    /// The events, as [`pack_events`](crate::pack_events) wrote them.
    pub bytes: Arc<[u8]>,
}

/// Relation of a batch to the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayedBatchKind {
    /// Follows the previous number.
    Next,
    /// The source restarted; earlier batches no longer count.
    Restart,
    /// Not an engine's batch, but everything that a router knows up to this number.
    Snapshot,
}

/// How far a router received a stream without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// Identity of the worker.
    pub worker: u64,
    /// The engine process.
    pub source: u64,
    /// The next expected sequence number.
    pub next: u64,
    /// Time of the last batch, by the engine's clock.
    pub at_unix_ms: u64,
}

impl RelayedBatch {
    /// Approximate bytes in memory.
    pub(crate) fn weight(&self) -> usize {
        self.bytes.len() + 32
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.hash(self.worker);
        writer.hash(self.source);
        writer.varint(self.seq);
        writer.byte(self.kind as u8);
        writer.sized_bytes(&self.bytes);
    }

    /// `None` for a kind that this version does not know. The batch then counts as missing and is requested.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Option<RelayedBatch>, BadMessage> {
        let (worker, source, seq) = (reader.hash()?, reader.hash()?, reader.varint()?);
        let kind = match reader.byte()? {
            0 => RelayedBatchKind::Next,
            1 => RelayedBatchKind::Restart,
            2 => RelayedBatchKind::Snapshot,
            _ => return Ok(None),
        };
        Ok(Some(RelayedBatch { worker, source, seq, kind, bytes: reader.sized_bytes()?.into() }))
    }

    /// Encodes several batches.
    pub(crate) fn write_all(batches: &[RelayedBatch]) -> Vec<u8> {
        let mut writer = Writer::default();
        batches.iter().for_each(|batch| writer.block(|writer| batch.write(writer)));
        writer.bytes
    }

    /// Decodes several batches, up to the first one of an unknown kind: later ones cannot be applied without
    /// it.
    pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<RelayedBatch>, BadMessage> {
        let mut reader = Reader::new(bytes);
        let mut batches = Vec::new();
        while !reader.is_empty()
            && let Some(batch) = RelayedBatch::read(&mut reader.block()?)?
        {
            batches.push(batch);
        }
        Ok(batches)
    }
}

impl StreamPosition {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.hash(self.worker);
        writer.hash(self.source);
        writer.varint(self.next);
        writer.varint(self.at_unix_ms);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<StreamPosition, BadMessage> {
        let (worker, source) = (reader.hash()?, reader.hash()?);
        Ok(StreamPosition { worker, source, next: reader.varint()?, at_unix_ms: reader.varint()? })
    }
}
