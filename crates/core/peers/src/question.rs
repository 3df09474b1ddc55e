//! A question to another router, and what can be asked.
//!
//! Answers may be long, so they are cut into parts and pulled: a question names the parts that are wanted of its answer, and is asked again
//! for the next ones, or for those that did not come. It keeps its number meanwhile, so whoever is asked answers from what it has
//! put together for it once.

use std::ops::RangeInclusive;

use crate::codec::{BadMessage, Reader, Writer};

/// Parts that one question may name; that many of a peer's may be under way at a time. A megabyte: far less than transports hold.
pub(crate) const PARTS_AT_ONCE: usize = 8;

const BATCHES: u8 = 1;
const VIEW: u8 = 2;
const STREAM: u8 = 3;
const PART: u8 = 4;
const NOTHING: u8 = 5;

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The asker's number for it.
    pub ticket: u64,
    /// The asker's time, which the answer repeats.
    pub asked_at_us: u64,
    /// For what.
    pub want: Want,
    /// Which parts of the answer.
    pub parts: Vec<u32>,
}

/// What one router wants of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// These of its batches have not come.
    Batches(Vec<RangeInclusive<u64>>),
    /// All that it presumes of caches: the asker was not there when it was told.
    View,
    /// A stream from some batch on.
    Stream(Wanted),
    /// Nothing: how long an answer takes is what is wanted.
    Nothing,
}

impl Want {
    /// What is needed first is lower: what others do now, then what engines hold, then what may be.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Want::Batches(_) | Want::Nothing => 0,
            Want::Stream(_) => 1,
            Want::View => 2,
        }
    }
}

/// From where on a stream is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose stream.
    pub worker: u64,
    /// Of which process; 0: of whichever it is.
    pub source: u64,
    /// The first batch that is missing; 0: all that is known. Of whichever source: the first that is known already.
    pub from_seq: u64,
}

impl Question {
    pub(crate) fn write_head(&self, writer: &mut Writer) {
        writer.number(self.ticket);
        writer.number(self.asked_at_us);
    }

    pub(crate) fn write_records(&self, writer: &mut Writer) {
        match &self.want {
            Want::Batches(missing) => writer.record(BATCHES, |writer| {
                writer.number(missing.len() as u64);
                for hole in missing {
                    writer.number(*hole.start());
                    writer.number(hole.end() - hole.start());
                }
            }),
            Want::View => writer.record(VIEW, |_| {}),
            Want::Stream(wanted) => writer.record(STREAM, |writer| {
                writer.hash(wanted.worker);
                writer.hash(wanted.source);
                writer.number(wanted.from_seq);
            }),
            Want::Nothing => writer.record(NOTHING, |_| {}),
        }
        for &part in &self.parts {
            writer.record(PART, |writer| writer.number(part.into()));
        }
    }

    /// Nothing where it asks for something that is not known here.
    pub(crate) fn read(
        head: &mut Reader<'_>,
        records: &mut Reader<'_>,
    ) -> Result<Option<Question>, BadMessage> {
        let (ticket, asked_at_us) = (head.number()?, head.number()?);
        let (mut want, mut parts) = (None, Vec::new());
        while let Some((kind, mut body)) = records.record()? {
            match kind {
                BATCHES => want = Some(Want::Batches(read_holes(&mut body)?)),
                VIEW => want = Some(Want::View),
                NOTHING => want = Some(Want::Nothing),
                STREAM => {
                    let (worker, source) = (body.hash()?, body.hash()?);
                    want = Some(Want::Stream(Wanted { worker, source, from_seq: body.number()? }));
                }
                PART => parts.push(body.small()?),
                _ => {}
            }
        }
        Ok(want.map(|want| Question { ticket, asked_at_us, want, parts }))
    }
}

fn read_holes(reader: &mut Reader<'_>) -> Result<Vec<RangeInclusive<u64>>, BadMessage> {
    let mut holes = Vec::new();
    for _ in 0..reader.number()? {
        let (start, more) = (reader.number()?, reader.number()?);
        holes.push(start..=start.checked_add(more).ok_or(BadMessage::Garbled)?);
    }
    Ok(holes)
}
