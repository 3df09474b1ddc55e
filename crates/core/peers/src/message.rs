//! What routers say to each other, as bytes.
//!
//! A message begins with the version of this language and what it is. A router that does not know a kind of message passes over
//! it, so new kinds can be added; only what changes the meaning of a known one needs another version.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use warmroute_types::{Delivery, RouterId};

use crate::codec::{BadMessage, Reader, Writer};
use crate::{Advice, Booked, Health, Ledger, Over, Part, Prompt, Reach, Report, Trip, Wanted};

/// The language spoken here.
const VERSION: u8 = 1;

/// No message is longer than this; whoever carries them may refuse longer ones.
pub const MESSAGE_MAX: usize = 1 << 20;

const BATCH: u8 = 1;
const STATE: u8 = 2;
const ASK: u8 = 3;
const ASK_VIEW: u8 = 4;
const VIEW: u8 = 5;
const RELAY: u8 = 6;
const REACH: u8 = 7;
const ASK_REPLAY: u8 = 8;
const REPLAY: u8 = 9;

/// Batches are counted from 1 on, some fifty a second: a number beyond this was never reached, and the next ones would be none.
const BATCH_MAX: u64 = 1 << 62;

/// Bits that say what is told of a trip.
const TOLD_BOOKED: u8 = 1;
const TOLD_PROMPT: u8 = 2;
const TOLD_COMPUTED: u8 = 4;
const OVER_SHIFT: u8 = 3;
const OVER_MASK: u8 = 3;
const TOLD_WHOLE: u8 = 128;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// News. They are counted from 1 on; one without a number only says up to which there are, and who is open still.
    Batch {
        /// Whose.
        from: RouterId,
        /// Which batch, or the last one.
        number: u64,
        /// What has happened. Empty: nothing since.
        news: Ledger,
    },
    /// Everything that is open, or a part of it.
    State {
        /// Whose.
        from: RouterId,
        /// It stands for all batches up to this one; 0 where more of it follows.
        up_to: u64,
        /// So it is.
        state: Ledger,
    },
    /// These batches have not come.
    Ask {
        /// Who asks.
        from: RouterId,
        /// Which.
        missing: Vec<RangeInclusive<u64>>,
    },
    /// What is presumed of all caches is wanted, by one who was not there when it was told.
    AskView {
        /// Who asks.
        from: RouterId,
    },
    /// A part of that.
    View {
        /// Who tells.
        from: RouterId,
        /// Which part.
        part: Part,
        /// It means nothing here.
        bytes: Vec<u8>,
    },
    /// Engines' events that others may not have heard.
    Relay {
        /// Who has heard them.
        from: RouterId,
        /// In this order.
        reports: Vec<Report>,
    },
    /// How far streams were heard.
    Reach {
        /// By whom.
        from: RouterId,
        /// Some of them.
        reaches: Vec<Reach>,
    },
    /// A stream is wanted from some batch on.
    AskReplay {
        /// Who asks.
        from: RouterId,
        /// For what.
        wanted: Wanted,
    },
    /// A part of that.
    Replay {
        /// Who tells.
        from: RouterId,
        /// Whose stream.
        worker: u64,
        /// Which part.
        part: Part,
        /// Of reports, one after another.
        bytes: Vec<u8>,
    },
}

impl Message {
    /// Who says it.
    pub fn from(&self) -> RouterId {
        match self {
            Message::Batch { from, .. }
            | Message::State { from, .. }
            | Message::Ask { from, .. }
            | Message::AskView { from }
            | Message::View { from, .. }
            | Message::Relay { from, .. }
            | Message::Reach { from, .. }
            | Message::AskReplay { from, .. }
            | Message::Replay { from, .. } => *from,
        }
    }

    /// Who says so of itself, whatever it says.
    pub fn sender(bytes: &[u8]) -> Option<RouterId> {
        let mut reader = Reader::new(bytes.get(2..)?);
        reader.hash().ok().map(RouterId)
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let begin = |writer: &mut Writer, kind, from: RouterId| {
            writer.byte(VERSION);
            writer.byte(kind);
            writer.hash(from.0);
        };
        match self {
            Message::Batch { from, number, news } => {
                begin(&mut writer, BATCH, *from);
                writer.number(*number);
                write_ledger(&mut writer, news);
            }
            Message::State { from, up_to, state } => {
                begin(&mut writer, STATE, *from);
                writer.number(*up_to);
                write_ledger(&mut writer, state);
            }
            Message::Ask { from, missing } => {
                begin(&mut writer, ASK, *from);
                writer.number(missing.len() as u64);
                for hole in missing {
                    writer.number(*hole.start());
                    writer.number(hole.end() - hole.start());
                }
            }
            Message::AskView { from } => begin(&mut writer, ASK_VIEW, *from),
            Message::View { from, part, bytes } => {
                begin(&mut writer, VIEW, *from);
                part.write(&mut writer);
                writer.bytes.extend_from_slice(bytes);
            }
            Message::Relay { from, reports } => {
                begin(&mut writer, RELAY, *from);
                writer.number(reports.len() as u64);
                reports.iter().for_each(|report| report.write(&mut writer));
            }
            Message::Reach { from, reaches } => {
                begin(&mut writer, REACH, *from);
                writer.number(reaches.len() as u64);
                reaches.iter().for_each(|reach| reach.write(&mut writer));
            }
            Message::AskReplay { from, wanted } => {
                begin(&mut writer, ASK_REPLAY, *from);
                writer.hash(wanted.worker);
                writer.hash(wanted.source);
                writer.number(wanted.from_seq);
            }
            Message::Replay { from, worker, part, bytes } => {
                begin(&mut writer, REPLAY, *from);
                writer.hash(*worker);
                part.write(&mut writer);
                writer.bytes.extend_from_slice(bytes);
            }
        }
        writer.bytes
    }

    /// From bytes; `None`: of a kind that is not known here.
    pub fn decode(bytes: &[u8]) -> Result<Option<Message>, BadMessage> {
        let mut reader = Reader::new(bytes);
        let version = reader.byte()?;
        if version != VERSION {
            return Err(BadMessage::Version(version));
        }
        let (kind, from) = (reader.byte()?, RouterId(reader.hash()?));
        let message = match kind {
            BATCH => {
                Message::Batch { from, number: read_batch(&mut reader)?, news: read_ledger(&mut reader)? }
            }
            STATE => {
                Message::State { from, up_to: read_batch(&mut reader)?, state: read_ledger(&mut reader)? }
            }
            ASK => Message::Ask { from, missing: read_holes(&mut reader)? },
            ASK_VIEW => Message::AskView { from },
            VIEW => Message::View { from, part: Part::read(&mut reader)?, bytes: reader.rest().to_vec() },
            RELAY => Message::Relay { from, reports: read_many(&mut reader, Report::read)? },
            REACH => Message::Reach { from, reaches: read_many(&mut reader, Reach::read)? },
            ASK_REPLAY => {
                let (worker, source) = (reader.hash()?, reader.hash()?);
                Message::AskReplay { from, wanted: Wanted { worker, source, from_seq: reader.number()? } }
            }
            REPLAY => Message::Replay {
                from,
                worker: reader.hash()?,
                part: Part::read(&mut reader)?,
                bytes: reader.rest().to_vec(),
            },
            _ => return Ok(None),
        };
        if reader.is_at_end() { Ok(Some(message)) } else { Err(BadMessage::Garbled) }
    }
}

fn read_batch(reader: &mut Reader<'_>) -> Result<u64, BadMessage> {
    Some(reader.number()?).filter(|&number| number <= BATCH_MAX).ok_or(BadMessage::Garbled)
}

fn read_many<T>(
    reader: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Result<T, BadMessage>,
) -> Result<Vec<T>, BadMessage> {
    let mut many = Vec::new();
    for _ in 0..reader.number()? {
        many.push(read(reader)?);
    }
    Ok(many)
}

fn read_holes(reader: &mut Reader<'_>) -> Result<Vec<RangeInclusive<u64>>, BadMessage> {
    let count = reader.number()?;
    let mut holes = Vec::new();
    for _ in 0..count {
        let (start, more) = (reader.number()?, reader.number()?);
        holes.push(start..=start.checked_add(more).ok_or(BadMessage::Garbled)?);
    }
    Ok(holes)
}

fn write_ledger(writer: &mut Writer, ledger: &Ledger) {
    writer.number(ledger.open_from);
    writer.number(ledger.trips.len() as u64);
    let mut before = 0;
    for (&number, trip) in &ledger.trips {
        writer.number(number - before);
        before = number;
        write_trip(writer, trip);
    }
    writer.number(ledger.advice.len() as u64);
    for (&worker, advice) in &ledger.advice {
        writer.hash(worker);
        writer.number(advice.version);
        writer.byte(advice.health as u8);
        writer.number(advice.emptied.into());
    }
}

fn read_ledger(reader: &mut Reader<'_>) -> Result<Ledger, BadMessage> {
    let open_from = reader.number()?;
    let mut trips = BTreeMap::new();
    let mut number = 0_u64;
    for _ in 0..reader.number()? {
        number = number.checked_add(reader.number()?).ok_or(BadMessage::Garbled)?;
        trips.insert(number, read_trip(reader)?);
    }
    let mut advice = BTreeMap::new();
    for _ in 0..reader.number()? {
        let worker = reader.hash()?;
        let version = reader.number()?;
        let health = match reader.byte()? {
            0 => Health::Well,
            1 => Health::Failing,
            _ => return Err(BadMessage::Garbled),
        };
        advice.insert(worker, Advice { version, health, emptied: reader.small()? });
    }
    Ok(Ledger { open_from, trips, advice })
}

fn write_trip(writer: &mut Writer, trip: &Trip) {
    let prompt = trip.booked.as_ref().and_then(|booked| booked.prompt.as_ref());
    let over = match trip.over {
        None => 0,
        Some(Over::Left) => 1,
        Some(Over::Answered) => 2,
        Some(Over::Found { .. }) => 3,
    };
    let is_whole = trip.booked.as_ref().is_some_and(|booked| booked.delivery == Delivery::Whole);
    let told = |is_told: bool, bit: u8| if is_told { bit } else { 0 };
    writer.byte(
        told(trip.booked.is_some(), TOLD_BOOKED)
            | told(prompt.is_some(), TOLD_PROMPT)
            | told(trip.is_computed, TOLD_COMPUTED)
            | told(is_whole, TOLD_WHOLE)
            | over << OVER_SHIFT,
    );
    if let Some(booked) = &trip.booked {
        writer.hash(booked.worker);
        writer.number(booked.prompt_tokens.into());
        writer.number(booked.cached_tokens.into());
        writer.number(booked.restorable_tokens.into());
    }
    if let Some(prompt) = prompt {
        writer.hash(prompt.root);
        writer.number(prompt.chunk_bytes.into());
        writer.number(prompt.chunk_tokens.into());
        writer.hashes(&prompt.digests);
    }
    if let Some(Over::Found { chunks }) = trip.over {
        writer.number(chunks.into());
    }
}

fn read_trip(reader: &mut Reader<'_>) -> Result<Trip, BadMessage> {
    let told = reader.byte()?;
    let mut trip = Trip { is_computed: told & TOLD_COMPUTED != 0, ..Trip::default() };
    if told & TOLD_BOOKED != 0 {
        let mut booked = Booked {
            worker: reader.hash()?,
            prompt_tokens: reader.small()?,
            cached_tokens: reader.small()?,
            restorable_tokens: reader.small()?,
            delivery: if told & TOLD_WHOLE != 0 { Delivery::Whole } else { Delivery::Streamed },
            prompt: None,
        };
        if told & TOLD_PROMPT != 0 {
            booked.prompt = Some(Prompt {
                root: reader.hash()?,
                chunk_bytes: reader.small()?,
                chunk_tokens: reader.small()?,
                digests: reader.hashes()?,
            });
        }
        trip.booked = Some(booked);
    }
    if told & !(TOLD_BOOKED | TOLD_PROMPT | TOLD_COMPUTED | TOLD_WHOLE | OVER_MASK << OVER_SHIFT) != 0 {
        return Err(BadMessage::Garbled);
    }
    trip.over = match (told >> OVER_SHIFT) & OVER_MASK {
        0 => None,
        1 => Some(Over::Left),
        2 => Some(Over::Answered),
        _ => Some(Over::Found { chunks: reader.small()? }),
    };
    Ok(trip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReportKind;
    use proptest::prelude::*;

    fn trip() -> impl Strategy<Value = Trip> {
        let prompt =
            (any::<u64>(), any::<u32>(), any::<u32>(), proptest::collection::vec(any::<u64>(), 0..9))
                .prop_map(|(root, chunk_bytes, chunk_tokens, digests)| Prompt {
                    root,
                    chunk_bytes,
                    chunk_tokens,
                    digests: digests.into(),
                });
        let booked = (any::<u64>(), any::<u32>(), any::<u32>(), proptest::option::of(prompt)).prop_map(
            |(worker, prompt_tokens, cached_tokens, prompt)| Booked {
                worker,
                prompt_tokens,
                cached_tokens,
                restorable_tokens: cached_tokens / 2,
                delivery: if worker & 1 == 0 { Delivery::Streamed } else { Delivery::Whole },
                prompt,
            },
        );
        let over = prop_oneof![
            Just(None),
            Just(Some(Over::Left)),
            Just(Some(Over::Answered)),
            any::<u32>().prop_map(|chunks| Some(Over::Found { chunks }))
        ];
        (proptest::option::of(booked), any::<bool>(), over).prop_map(|(booked, is_computed, over)| Trip {
            booked,
            is_computed,
            over,
        })
    }

    fn ledger() -> impl Strategy<Value = Ledger> {
        let advice = (any::<u64>(), any::<bool>(), any::<u32>()).prop_map(|(version, failing, emptied)| {
            Advice { version, health: if failing { Health::Failing } else { Health::Well }, emptied }
        });
        (
            any::<u64>(),
            proptest::collection::btree_map(any::<u64>(), trip(), 0..6),
            proptest::collection::btree_map(any::<u64>(), advice, 0..3),
        )
            .prop_map(|(open_from, trips, advice)| Ledger { open_from, trips, advice })
    }

    fn report() -> impl Strategy<Value = Report> {
        let kind = prop_oneof![Just(ReportKind::Next), Just(ReportKind::Begins), Just(ReportKind::Known)];
        let bytes = proptest::collection::vec(any::<u8>(), 0..40);
        (any::<u64>(), any::<u64>(), any::<u64>(), kind, bytes).prop_map(
            |(worker, source, seq, kind, bytes)| Report { worker, source, seq, kind, bytes: bytes.into() },
        )
    }

    fn reach() -> impl Strategy<Value = Reach> {
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(worker, source, next, at_unix_ms)| Reach { worker, source, next, at_unix_ms })
    }

    fn part() -> impl Strategy<Value = Part> {
        (any::<u64>(), 0..=u32::MAX - 1)
            .prop_flat_map(|(answer, at)| (Just(answer), Just(at), at + 1..=u32::MAX))
            .prop_map(|(answer, at, of)| Part { answer, at, of })
    }

    fn message() -> impl Strategy<Value = Message> {
        let hole = (any::<u32>(), any::<u32>())
            .prop_map(|(start, more)| u64::from(start)..=u64::from(start) + u64::from(more));
        let from = any::<u64>().prop_map(RouterId);
        prop_oneof![
            (from.clone(), 0..=BATCH_MAX, ledger()).prop_map(|(from, number, news)| Message::Batch {
                from,
                number,
                news
            }),
            (from.clone(), 0..=BATCH_MAX, ledger()).prop_map(|(from, up_to, state)| Message::State {
                from,
                up_to,
                state
            }),
            (from.clone(), proptest::collection::vec(hole, 0..5))
                .prop_map(|(from, missing)| Message::Ask { from, missing }),
            from.clone().prop_map(|from| Message::AskView { from }),
            (from.clone(), proptest::collection::vec(report(), 0..4))
                .prop_map(|(from, reports)| Message::Relay { from, reports }),
            (from.clone(), proptest::collection::vec(reach(), 0..4))
                .prop_map(|(from, reaches)| Message::Reach { from, reaches }),
            (from.clone(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
                |(from, worker, source, from_seq)| {
                    Message::AskReplay { from, wanted: Wanted { worker, source, from_seq } }
                }
            ),
            (from.clone(), any::<u64>(), part(), proptest::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(from, worker, part, bytes)| Message::Replay { from, worker, part, bytes }),
            (from, part(), proptest::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(from, part, bytes)| Message::View { from, part, bytes }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(message in message()) {
            prop_assert_eq!(Message::sender(&message.encode()), Some(message.from()));
            prop_assert_eq!(Message::decode(&message.encode()), Ok(Some(message)));
        }

        #[test]
        fn half_a_message_is_none(message in message(), part in 0.0..1.0_f64) {
            let bytes = message.encode();
            let part = &bytes[..(bytes.len() as f64 * part) as usize];
            let is_open = matches!(message, Message::View { .. } | Message::Replay { .. });
            prop_assert!(Message::decode(part).is_err() || is_open, "what a view holds is not for this to say");
        }

        #[test]
        fn garbage_is_read_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 1_u8..11) {
            _ = Message::decode(&bytes);
            if bytes.len() > 2 {
                (bytes[0], bytes[1]) = (VERSION, kind);
            }
            _ = Message::decode(&bytes);
        }
    }

    #[test]
    fn a_message_of_another_kind_is_passed_over_and_of_another_version_refused() {
        let mut bytes = Message::Ask { from: RouterId(7), missing: Vec::new() }.encode();
        bytes[1] = 99;
        assert_eq!(Message::decode(&bytes), Ok(None));
        bytes[0] = 2;
        assert_eq!(Message::decode(&bytes), Err(BadMessage::Version(2)));
    }
}
