//! Queries to other routers.
//!
//! Answers may be long, so they are pulled in parts. A query names the parts that it requests, and is sent
//! again for the next parts or for lost ones. It keeps its id, so the answering router composes the answer
//! only once.

use std::ops::RangeInclusive;

use crate::codec::{BadMessage, Reader, Writer};

/// Parts that one query may name, and that may be in flight to one peer. Together one megabyte, far below
/// what transports buffer.
pub(crate) const PARTS_IN_FLIGHT_MAX: usize = 8;

const BATCHES: u8 = 1;
const SNAPSHOT: u8 = 2;
// 3 requested relayed engine events in earlier builds of version 1; it must not get another meaning.
const PART: u8 = 4;
const PING: u8 = 5;

/// A query to another router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The sender's id for this query.
    pub id: u64,
    /// The sender's time, which the answer repeats.
    pub asked_at_us: u64,
    /// The requested state.
    pub kind: QueryKind,
    /// Indices of the requested parts.
    pub parts: Vec<u32>,
}

/// The state that a query requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// Missing batches of the receiver.
    Batches(Vec<RangeInclusive<u64>>),
    /// The presumed cache contents. Requested by a router that missed the batches.
    Snapshot,
    /// Nothing. Measures the round trip.
    Ping,
}

impl QueryKind {
    /// Order of urgency, lowest first: peers' load, then presumed caches.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            QueryKind::Batches(_) | QueryKind::Ping => 0,
            QueryKind::Snapshot => 1,
        }
    }
}

impl Query {
    pub(crate) fn write_head(&self, writer: &mut Writer) {
        writer.varint(self.id);
        writer.varint(self.asked_at_us);
    }

    pub(crate) fn write_records(&self, writer: &mut Writer) {
        match &self.kind {
            QueryKind::Batches(missing) => writer.record(BATCHES, |writer| {
                writer.varint(missing.len() as u64);
                for gap in missing {
                    writer.varint(*gap.start());
                    writer.varint(gap.end() - gap.start());
                }
            }),
            QueryKind::Snapshot => writer.record(SNAPSHOT, |_| {}),
            QueryKind::Ping => writer.record(PING, |_| {}),
        }
        for &part in &self.parts {
            writer.record(PART, |writer| writer.varint(part.into()));
        }
    }

    /// `None` for a kind of query that this version does not know.
    pub(crate) fn read(head: &mut Reader<'_>, records: &mut Reader<'_>) -> Result<Option<Query>, BadMessage> {
        let (id, asked_at_us) = (head.varint()?, head.varint()?);
        let (mut asked_for, mut parts) = (None, Vec::new());
        while let Some((kind, mut body)) = records.record()? {
            match kind {
                BATCHES => asked_for = Some(QueryKind::Batches(read_gaps(&mut body)?)),
                SNAPSHOT => asked_for = Some(QueryKind::Snapshot),
                PING => asked_for = Some(QueryKind::Ping),
                PART => parts.push(body.varint_u32()?),
                _ => {}
            }
        }
        Ok(asked_for.map(|kind| Query { id, asked_at_us, kind, parts }))
    }
}

fn read_gaps(reader: &mut Reader<'_>) -> Result<Vec<RangeInclusive<u64>>, BadMessage> {
    let mut gaps = Vec::new();
    for _ in 0..reader.varint()? {
        let (start, more) = (reader.varint()?, reader.varint()?);
        gaps.push(start..=start.checked_add(more).ok_or(BadMessage::Malformed)?);
    }
    Ok(gaps)
}
