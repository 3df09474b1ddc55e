//! Decodes a message's payload to events.
//!
//! `[when, [event, …], rank?]` in MessagePack, where an event is an array (`["BlockStored", hashes, parent, …]`,
//! trailing fields may be missing) or, since vLLM 0.24, a map (`{"type": "BlockStored", …}`). Unknown fields are
//! skipped. An event that cannot be read is counted, and the others are kept.

mod extra_keys;
mod fields;

use thiserror::Error;
use warmroute_types::{CacheEvent, EventBatch};
use xxhash_rust::xxh3::xxh3_64;

use crate::msgpack::{Head, Malformed, Reader};
use extra_keys::EventEncoding;
use fields::{BLOCKS_MAX, Fields, Kind};

/// The payload is not a batch of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the payload is not a batch of KV events")]
pub struct BadBatch;

impl From<Malformed> for BadBatch {
    fn from(_: Malformed) -> BadBatch {
        BadBatch
    }
}

/// Decodes one batch.
pub fn decode(payload: &[u8]) -> Result<EventBatch, BadBatch> {
    let mut reader = Reader::new(payload);
    let Head::Array(fields @ 2..) = reader.head()? else { return Err(BadBatch) };
    let at_unix_s = read_time(&mut reader)?;
    let Head::Array(count) = reader.head()? else { return Err(BadBatch) };
    let mut batch = EventBatch { at_unix_s, print: xxh3_64(payload), ..EventBatch::default() };
    if read_events(&mut reader, count, &mut batch).is_ok() && fields > 2 {
        batch.rank = read_rank(&mut reader);
    }
    Ok(batch)
}

/// Decodes one event and adds it to a batch.
pub(crate) fn decode_event(event: &[u8], batch: &mut EventBatch) {
    // An unreadable event is counted in the batch.
    let _ = read_events(&mut Reader::new(event), 1, batch);
}

/// A batch without any readable event, which still has its number in the sequence.
pub(crate) fn unreadable(payload: &[u8]) -> EventBatch {
    EventBatch { unreadable: 1, print: xxh3_64(payload), ..EventBatch::default() }
}

fn read_time(reader: &mut Reader<'_>) -> Result<f64, BadBatch> {
    match reader.head()? {
        Head::Float(at) if at.is_finite() => Ok(at),
        Head::Unsigned(at) => Ok(at as f64),
        Head::Float(_) | Head::Nil | Head::Signed(_) => Ok(0.0),
        _ => Err(BadBatch),
    }
}

fn read_rank(reader: &mut Reader<'_>) -> Option<u16> {
    match reader.head() {
        Ok(Head::Unsigned(rank)) => u16::try_from(rank).ok(),
        _ => None,
    }
}

fn read_events(reader: &mut Reader<'_>, count: usize, batch: &mut EventBatch) -> Result<(), Malformed> {
    let mut blocks = 0;
    for at in 0..count {
        let begin = *reader;
        match read_event(reader) {
            Ok(Some(event)) if blocks + blocks_of(&event) > BLOCKS_MAX => {
                batch.unreadable += (count - at) as u32;
                return Err(Malformed);
            }
            Ok(Some(event)) => {
                blocks += blocks_of(&event);
                push(event, &mut batch.events);
            }
            Ok(None) => {}
            Err(Malformed) => {
                batch.unreadable += 1;
                *reader = begin;
                if reader.skip().is_err() {
                    // The start of the next event is unknown.
                    batch.unreadable += (count - at - 1) as u32;
                    return Err(Malformed);
                }
            }
        }
    }
    Ok(())
}

fn blocks_of(event: &CacheEvent) -> usize {
    match event {
        CacheEvent::Stored(stored) => stored.names.len(),
        CacheEvent::Removed(removed) => removed.names.len(),
        CacheEvent::Cleared => 0,
    }
}

/// Engines remove one block an event; consecutive removals become one event here.
fn push(event: CacheEvent, events: &mut Vec<CacheEvent>) {
    if let (Some(CacheEvent::Removed(last)), CacheEvent::Removed(next)) = (events.last_mut(), &event)
        && (last.medium, last.group) == (next.medium, next.group)
    {
        last.names.extend_from_slice(&next.names);
        return;
    }
    events.push(event);
}

/// One event; `None` where its kind is unknown.
fn read_event(reader: &mut Reader<'_>) -> Result<Option<CacheEvent>, Malformed> {
    match reader.head()? {
        Head::Array(count @ 1..) => read_array(reader, count),
        Head::Map(count) => read_map(reader, count),
        _ => Err(Malformed),
    }
}

fn read_array(reader: &mut Reader<'_>, count: usize) -> Result<Option<CacheEvent>, Malformed> {
    let kind = Kind::of(reader.word()?);
    let mut fields = Fields::new(EventEncoding::Array);
    for at in 0..count - 1 {
        fields.read(kind.field_at(at), reader)?;
    }
    fields.event(kind)
}

fn read_map(reader: &mut Reader<'_>, count: usize) -> Result<Option<CacheEvent>, Malformed> {
    let kind = find_kind(*reader, count)?;
    let mut fields = Fields::new(EventEncoding::Map);
    for _ in 0..count {
        let name = reader.word()?;
        fields.read(kind.field_named(name), reader)?;
    }
    fields.event(kind)
}

/// Engines write the tag first, but maps have no order.
fn find_kind(mut reader: Reader<'_>, count: usize) -> Result<Kind, Malformed> {
    for _ in 0..count {
        if reader.word()? == b"type" {
            return Ok(Kind::of(reader.word()?));
        }
        reader.skip()?;
    }
    Err(Malformed)
}

#[cfg(test)]
mod tests;
