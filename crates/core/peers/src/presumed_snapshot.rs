//! The presumed contents of all caches, encoded for a router that joins late.
//!
//! ```text
//! needed version | key | worker … | run … | use …        each a record: kind, length, fields
//! ```
//!
//! Workers are named by identity and prompts by digests. The hash key is not sent; the key record only shows whether both
//! routers use the same one. A later version may append fields and add kinds of records; the needed version rises only for
//! changes that older routers would misunderstand.

use std::sync::Arc;

use warmroute_types::Micros;

use crate::codec::{BadMessage, Reader, Writer};

/// The version that this build writes and understands.
const VERSION: u8 = 1;

/// Size limit, apart from the last record; slightly below the limit of an answer.
pub const SNAPSHOT_BYTES_MAX: usize = 60 << 20;

const KEY: u8 = 1;
const WORKER: u8 = 2;
const RUN: u8 = 3;
const USE: u8 = 4;

/// One record of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresumedRecord {
    /// Digest of a known text. First record; equal digests mean equal hash keys.
    Key(u64),
    /// Identity of a worker. Workers count from 0.
    Worker(u64),
    /// Consecutive spans. Runs count from 0.
    Run {
        /// The spans before this run.
        parent: RunParent,
        /// Sizes of the spans.
        sizes: Vec<SpanSizes>,
        /// Digests of the spans; as many as `sizes` counts.
        digests: Arc<[u64]>,
    },
    /// A request that was answered. Oldest first.
    Use {
        /// Index of the worker record.
        worker: u32,
        /// Index of the run. The request used its first `spans` spans and everything before the run.
        run: u32,
        /// Spans of the run that were used.
        spans: u32,
        /// Time since the request.
        age: Micros,
    },
}

/// The spans before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunParent {
    /// None: the run starts a prompt in this namespace.
    Root(u64),
    /// The first spans of an earlier run.
    Run {
        /// Index of that run.
        number: u32,
        /// Spans of that run.
        spans: u32,
    },
}

/// Consecutive spans of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanSizes {
    /// Number of spans.
    pub count: u32,
    /// Bytes of each span.
    pub bytes: u32,
    /// Tokens of each span.
    pub tokens: u32,
}

/// Writes a snapshot.
#[derive(Debug)]
pub struct SnapshotWriter(Writer);

impl SnapshotWriter {
    /// Starts a snapshot; `key` is the digest of the known text.
    pub fn new(key: u64) -> SnapshotWriter {
        let mut writer = SnapshotWriter(Writer { bytes: vec![VERSION] });
        writer.push(&PresumedRecord::Key(key));
        writer
    }

    /// Appends a record.
    pub fn push(&mut self, record: &PresumedRecord) {
        let kind = match record {
            PresumedRecord::Key(_) => KEY,
            PresumedRecord::Worker(_) => WORKER,
            PresumedRecord::Run { .. } => RUN,
            PresumedRecord::Use { .. } => USE,
        };
        self.0.record(kind, |writer| record.write(writer));
    }

    /// The encoded snapshot.
    pub fn finish(self) -> Vec<u8> {
        self.0.bytes
    }
}

/// Reads a snapshot.
#[derive(Debug)]
pub struct SnapshotReader<'a>(Reader<'a>);

impl<'a> SnapshotReader<'a> {
    /// Fails if the snapshot needs a later version.
    pub fn new(bytes: &'a [u8]) -> Result<SnapshotReader<'a>, BadMessage> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            needed if needed > VERSION => Err(BadMessage::Version(needed)),
            _ => Ok(SnapshotReader(reader)),
        }
    }

    /// The next known record; `None` at the end.
    pub fn record(&mut self) -> Result<Option<PresumedRecord>, BadMessage> {
        while let Some((kind, mut body)) = self.0.record()? {
            if let Some(record) = PresumedRecord::read(kind, &mut body)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

impl PresumedRecord {
    fn write(&self, writer: &mut Writer) {
        match self {
            PresumedRecord::Key(hash) | PresumedRecord::Worker(hash) => writer.hash(*hash),
            PresumedRecord::Run { parent, sizes, digests } => {
                parent.write(writer);
                writer.varint(sizes.len() as u64);
                for SpanSizes { count, bytes, tokens } in sizes {
                    [count, bytes, tokens].iter().for_each(|&&number| writer.varint(number.into()));
                }
                writer.hashes(digests);
            }
            PresumedRecord::Use { worker, run, spans, age } => {
                [worker, run, spans].iter().for_each(|&&number| writer.varint(number.into()));
                writer.varint(age.0);
            }
        }
    }

    fn read(kind: u8, body: &mut Reader<'_>) -> Result<Option<PresumedRecord>, BadMessage> {
        Ok(Some(match kind {
            KEY => PresumedRecord::Key(body.hash()?),
            WORKER => PresumedRecord::Worker(body.hash()?),
            RUN => {
                let (parent, sizes) = (RunParent::read(body)?, read_sizes(body)?);
                let digests = body.hashes()?;
                let count: u64 = sizes.iter().map(|sizes| u64::from(sizes.count)).sum();
                if count != digests.len() as u64 {
                    return Err(BadMessage::Malformed);
                }
                PresumedRecord::Run { parent, sizes, digests }
            }
            USE => {
                let (worker, run, spans) = (body.varint_u32()?, body.varint_u32()?, body.varint_u32()?);
                PresumedRecord::Use { worker, run, spans, age: Micros(body.varint()?) }
            }
            _ => return Ok(None),
        }))
    }
}

impl RunParent {
    /// A root is written as zero spans, followed by the namespace key.
    fn write(self, writer: &mut Writer) {
        match self {
            RunParent::Root(key) => {
                writer.varint(0);
                writer.hash(key);
            }
            RunParent::Run { number, spans } => {
                writer.varint(spans.into());
                writer.varint(number.into());
            }
        }
    }

    fn read(body: &mut Reader<'_>) -> Result<RunParent, BadMessage> {
        match body.varint_u32()? {
            0 => Ok(RunParent::Root(body.hash()?)),
            spans => Ok(RunParent::Run { number: body.varint_u32()?, spans }),
        }
    }
}

fn read_sizes(body: &mut Reader<'_>) -> Result<Vec<SpanSizes>, BadMessage> {
    let mut sizes = Vec::new();
    for _ in 0..body.varint()? {
        sizes.push(SpanSizes {
            count: body.varint_u32()?,
            bytes: body.varint_u32()?,
            tokens: body.varint_u32()?,
        });
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<PresumedRecord> {
        let size = |count, bytes| SpanSizes { count, bytes, tokens: 64 };
        vec![
            PresumedRecord::Worker(0x1112_1314_1516_1718),
            PresumedRecord::Run {
                parent: RunParent::Root(7),
                sizes: vec![size(2, 256)],
                digests: [1, 2].into(),
            },
            PresumedRecord::Run {
                parent: RunParent::Run { number: 0, spans: 1 },
                sizes: vec![size(1, 256), size(1, 9)],
                digests: [3, 4].into(),
            },
            PresumedRecord::Use { worker: 0, run: 1, spans: 2, age: Micros(300) },
        ]
    }

    fn written() -> Vec<u8> {
        let mut writer = SnapshotWriter::new(0x0102_0304_0506_0708);
        records().iter().for_each(|record| writer.push(record));
        writer.finish()
    }

    fn read(bytes: &[u8]) -> Result<Vec<PresumedRecord>, BadMessage> {
        let (mut reader, mut records) = (SnapshotReader::new(bytes)?, Vec::new());
        while let Some(record) = reader.record()? {
            records.push(record);
        }
        Ok(records)
    }

    /// Frozen: other versions read these bytes.
    const BYTES: &str = "010108080706050403020102081817161514131211\
        031f000700000000000000010280024002\
        01000000000000000200000000000000\
        031b0100020180024001094002\
        03000000000000000400000000000000\
        0405000102ac02";

    #[test]
    fn the_snapshot_encoding_is_frozen_and_survives_decoding() {
        let hex: String = written().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, BYTES);
        let records_read = read(&written()).unwrap();
        assert_eq!(
            (&records_read[0], &records_read[1..]),
            (&PresumedRecord::Key(0x0102_0304_0506_0708), &records()[..])
        );
    }

    #[test]
    fn additions_of_a_later_version_are_skipped() {
        let mut later = Writer { bytes: written() };
        later.record(99, |writer| writer.varint(5));
        later.record(USE, |writer| {
            records()[3].write(writer);
            writer.varint(77);
        });
        let records_read = read(&later.bytes).unwrap();
        assert_eq!((records_read.len(), records_read.last()), (6, records().last()));
        later.bytes[0] = 2;
        assert_eq!(read(&later.bytes), Err(BadMessage::Version(2)));
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let bytes = written();
        for at in 0..bytes.len() {
            _ = read(&bytes[..at]);
            for flip in [1_u8, 0x80, 0xff] {
                let mut spoiled = bytes.clone();
                spoiled[at] ^= flip;
                _ = read(&spoiled);
            }
        }
    }
}
