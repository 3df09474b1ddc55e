//! All that a router presumes of caches, as it is told to one who comes late.
//!
//! ```text
//! needs | key | worker … | stretch … | use …        each a record: kind, length, its fields
//! ```
//!
//! Workers are told by their identities and prompts by digests, as everywhere between routers. How they are digested is not told; the key
//! only shows whether it is done alike. A later version may append fields to records and add kinds of them; only where that would be
//! misunderstood is a later version needed to read it.

use std::sync::Arc;

use warmroute_types::Micros;

use crate::codec::{BadMessage, Reader, Writer};

/// What is needed to understand all that is said here, and what is understood.
const VERSION: u8 = 1;

/// What it may take as bytes, but for its last record: a little less than an answer.
pub const VIEW_BYTES_MAX: usize = 60 << 20;

const KEY: u8 = 1;
const WORKER: u8 = 2;
const STRETCH: u8 = 3;
const USE: u8 = 4;

/// One record of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presumed {
    /// A text that all know, digested as prompts are. Before everything else.
    Key(u64),
    /// A worker's identity. They are counted from 0 on.
    Worker(u64),
    /// Spans that follow one another. They are counted from 0 on.
    Stretch {
        /// What they continue.
        after: After,
        /// Their sizes.
        sizes: Vec<Sizes>,
        /// And digests, as many.
        digests: Arc<[u64]>,
    },
    /// A request that was answered. The oldest comes first.
    Use {
        /// The worker's place among those that were told.
        worker: u32,
        /// It used so many spans of this stretch, and all before them.
        stretch: u32,
        /// How many.
        spans: u32,
        /// How long ago.
        age: Micros,
    },
}

/// What a stretch continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing: it begins a prompt in this namespace.
    Root(u64),
    /// The first spans of an earlier stretch.
    Stretch {
        /// Which.
        number: u32,
        /// How many.
        spans: u32,
    },
}

/// Spans of one size in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// How many.
    pub count: u32,
    /// The bytes of each.
    pub bytes: u32,
    /// Its tokens.
    pub tokens: u32,
}

/// One that is being written.
#[derive(Debug)]
pub struct ViewWriter(Writer);

impl ViewWriter {
    /// Prompts are digested so that the text that all know becomes this.
    pub fn new(key: u64) -> ViewWriter {
        let mut writer = ViewWriter(Writer { bytes: vec![VERSION] });
        writer.push(&Presumed::Key(key));
        writer
    }

    /// Adds a record.
    pub fn push(&mut self, record: &Presumed) {
        let kind = match record {
            Presumed::Key(_) => KEY,
            Presumed::Worker(_) => WORKER,
            Presumed::Stretch { .. } => STRETCH,
            Presumed::Use { .. } => USE,
        };
        self.0.record(kind, |writer| record.write(writer));
    }

    /// All of it.
    pub fn finish(self) -> Vec<u8> {
        self.0.bytes
    }
}

/// One that is being read.
#[derive(Debug)]
pub struct ViewReader<'a>(Reader<'a>);

impl<'a> ViewReader<'a> {
    /// Unless it needs a later version.
    pub fn new(bytes: &'a [u8]) -> Result<ViewReader<'a>, BadMessage> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            needed if needed > VERSION => Err(BadMessage::Version(needed)),
            _ => Ok(ViewReader(reader)),
        }
    }

    /// The next record that is known here; `None` at the end.
    pub fn record(&mut self) -> Result<Option<Presumed>, BadMessage> {
        while let Some((kind, mut body)) = self.0.record()? {
            if let Some(record) = Presumed::read(kind, &mut body)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

impl Presumed {
    fn write(&self, writer: &mut Writer) {
        match self {
            Presumed::Key(hash) | Presumed::Worker(hash) => writer.hash(*hash),
            Presumed::Stretch { after, sizes, digests } => {
                after.write(writer);
                writer.number(sizes.len() as u64);
                for Sizes { count, bytes, tokens } in sizes {
                    [count, bytes, tokens].iter().for_each(|&&number| writer.number(number.into()));
                }
                writer.hashes(digests);
            }
            Presumed::Use { worker, stretch, spans, age } => {
                [worker, stretch, spans].iter().for_each(|&&number| writer.number(number.into()));
                writer.number(age.0);
            }
        }
    }

    fn read(kind: u8, body: &mut Reader<'_>) -> Result<Option<Presumed>, BadMessage> {
        Ok(Some(match kind {
            KEY => Presumed::Key(body.hash()?),
            WORKER => Presumed::Worker(body.hash()?),
            STRETCH => {
                let (after, sizes) = (After::read(body)?, read_sizes(body)?);
                let digests = body.hashes()?;
                let count: u64 = sizes.iter().map(|sizes| u64::from(sizes.count)).sum();
                if count != digests.len() as u64 {
                    return Err(BadMessage::Garbled);
                }
                Presumed::Stretch { after, sizes, digests }
            }
            USE => {
                let (worker, stretch, spans) = (body.small()?, body.small()?, body.small()?);
                Presumed::Use { worker, stretch, spans, age: Micros(body.number()?) }
            }
            _ => return Ok(None),
        }))
    }
}

impl After {
    /// A root is told as the first none of its spans.
    fn write(self, writer: &mut Writer) {
        match self {
            After::Root(key) => {
                writer.number(0);
                writer.hash(key);
            }
            After::Stretch { number, spans } => {
                writer.number(spans.into());
                writer.number(number.into());
            }
        }
    }

    fn read(body: &mut Reader<'_>) -> Result<After, BadMessage> {
        match body.small()? {
            0 => Ok(After::Root(body.hash()?)),
            spans => Ok(After::Stretch { number: body.small()?, spans }),
        }
    }
}

fn read_sizes(body: &mut Reader<'_>) -> Result<Vec<Sizes>, BadMessage> {
    let mut sizes = Vec::new();
    for _ in 0..body.number()? {
        sizes.push(Sizes { count: body.small()?, bytes: body.small()?, tokens: body.small()? });
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Presumed> {
        let size = |count, bytes| Sizes { count, bytes, tokens: 64 };
        vec![
            Presumed::Worker(0x1112_1314_1516_1718),
            Presumed::Stretch { after: After::Root(7), sizes: vec![size(2, 256)], digests: [1, 2].into() },
            Presumed::Stretch {
                after: After::Stretch { number: 0, spans: 1 },
                sizes: vec![size(1, 256), size(1, 9)],
                digests: [3, 4].into(),
            },
            Presumed::Use { worker: 0, stretch: 1, spans: 2, age: Micros(300) },
        ]
    }

    fn written() -> Vec<u8> {
        let mut writer = ViewWriter::new(0x0102_0304_0506_0708);
        records().iter().for_each(|record| writer.push(record));
        writer.finish()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Presumed>, BadMessage> {
        let (mut reader, mut records) = (ViewReader::new(bytes)?, Vec::new());
        while let Some(record) = reader.record()? {
            records.push(record);
        }
        Ok(records)
    }

    /// Other versions of this program read it: these bytes never change.
    const BYTES: &str = "010108080706050403020102081817161514131211\
        031f000700000000000000010280024002\
        01000000000000000200000000000000\
        031b0100020180024001094002\
        03000000000000000400000000000000\
        0405000102ac02";

    #[test]
    fn its_bytes_are_frozen_and_are_read_as_they_were_written() {
        let hex: String = written().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, BYTES);
        let told = read(&written()).unwrap();
        assert_eq!((&told[0], &told[1..]), (&Presumed::Key(0x0102_0304_0506_0708), &records()[..]));
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let mut later = Writer { bytes: written() };
        later.record(99, |writer| writer.number(5));
        later.record(USE, |writer| {
            records()[3].write(writer);
            writer.number(77);
        });
        let told = read(&later.bytes).unwrap();
        assert_eq!((told.len(), told.last()), (6, records().last()));
        later.bytes[0] = 2;
        assert_eq!(read(&later.bytes), Err(BadMessage::Version(2)));
    }

    #[test]
    fn whatever_the_bytes_are_they_are_read_or_refused() {
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
