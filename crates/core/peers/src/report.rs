//! What one router heard of an engine and others cannot hear themselves: one numbered batch of its events.

use std::sync::Arc;

use crate::codec::{BadMessage, Reader, Writer};

/// A batch of one engine's events, with the engine's own number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The worker's identity: the same for every router.
    pub worker: u64,
    /// The process that speaks. Two reports of one source with one number are the same.
    pub source: u64,
    /// Its number for it.
    pub seq: u64,
    /// How it stands to what was before.
    pub kind: ReportKind,
    /// The events, as [`pack`](crate::pack) wrote them.
    pub bytes: Arc<[u8]>,
}

/// How a report stands to what was before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    /// It is the next one.
    Next,
    /// Nothing before it counts: the source says so.
    Begins,
    /// It is no batch of the engine's, but all that a router knows up to this number.
    Known,
}

/// How far a router has heard a stream, without a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Whose.
    pub worker: u64,
    /// The process that speaks.
    pub source: u64,
    /// The number that is expected next.
    pub next: u64,
    /// When the last one was told, by the engine's clock.
    pub at_unix_ms: u64,
}

impl Report {
    /// Bytes of it, about.
    pub(crate) fn weight(&self) -> usize {
        self.bytes.len() + 32
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.hash(self.worker);
        writer.hash(self.source);
        writer.number(self.seq);
        writer.byte(self.kind as u8);
        writer.text(&self.bytes);
    }

    /// Nothing where it is of a kind that is not known here: it is missed then, and asked for.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Option<Report>, BadMessage> {
        let (worker, source, seq) = (reader.hash()?, reader.hash()?, reader.number()?);
        let kind = match reader.byte()? {
            0 => ReportKind::Next,
            1 => ReportKind::Begins,
            2 => ReportKind::Known,
            _ => return Ok(None),
        };
        Ok(Some(Report { worker, source, seq, kind, bytes: reader.text()?.into() }))
    }

    /// Several, as one sequence of bytes.
    pub(crate) fn write_all(reports: &[Report]) -> Vec<u8> {
        let mut writer = Writer::default();
        reports.iter().for_each(|report| writer.block(|writer| report.write(writer)));
        writer.bytes
    }

    /// One that cannot be read ends it: what follows could not be taken without it.
    pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<Report>, BadMessage> {
        let mut reader = Reader::new(bytes);
        let mut reports = Vec::new();
        while !reader.is_at_end()
            && let Some(report) = Report::read(&mut reader.block()?)?
        {
            reports.push(report);
        }
        Ok(reports)
    }
}

impl Reach {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.hash(self.worker);
        writer.hash(self.source);
        writer.number(self.next);
        writer.number(self.at_unix_ms);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Reach, BadMessage> {
        let (worker, source) = (reader.hash()?, reader.hash()?);
        Ok(Reach { worker, source, next: reader.number()?, at_unix_ms: reader.number()? })
    }
}
