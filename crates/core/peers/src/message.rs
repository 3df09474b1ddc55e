//! What routers say to each other, as bytes.
//!
//! ```text
//! needs speaks kind from length | head: length, its fields | record: kind, length, its fields | …
//! ```
//!
//! This form never changes. A message says which version of the language it needs to be understood, and which its router speaks. A
//! later version may append fields to the head and to records, and add kinds of records and of messages: who does not know them passes
//! over them, and needs no later version for it. Only what would be misunderstood needs one, and is said to a router that has it.

use warmroute_types::{Delivery, RouterId};

use crate::codec::{BadMessage, Reader, Writer};
use crate::{Advice, Booked, Health, Ledger, Over, Part, Prompt, Question, Reach, Report, Trip};

/// The language spoken here.
const SPOKEN: u8 = 1;

/// What is needed to understand all that is said here.
const NEEDED: u8 = 1;

/// No message is longer than this; whoever carries them may refuse longer ones.
pub const MESSAGE_MAX: usize = 1 << 20;

/// A few milliseconds' work.
const LARGE_BYTES: usize = 32 << 10;

const BATCH: u8 = 1;
const STATE: u8 = 2;
const ASK: u8 = 3;
const ANSWER: u8 = 4;
const RELAY: u8 = 5;
const REACH: u8 = 6;

/// Records of a ledger.
const TRIP: u8 = 1;
const ADVICE: u8 = 2;

/// The only known record of the others.
const ONE: u8 = 1;

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
    /// Everything that is open. Only within an answer: it may be large.
    State {
        /// Whose.
        from: RouterId,
        /// It stands for all batches up to this one.
        up_to: u64,
        /// So it is.
        state: Ledger,
    },
    /// Something is wanted.
    Ask {
        /// By whom.
        from: RouterId,
        /// What.
        question: Question,
    },
    /// A part of that.
    Answer {
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
}

impl Message {
    /// Who says it.
    pub fn from(&self) -> RouterId {
        match self {
            Message::Batch { from, .. }
            | Message::State { from, .. }
            | Message::Ask { from, .. }
            | Message::Answer { from, .. }
            | Message::Relay { from, .. }
            | Message::Reach { from, .. } => *from,
        }
    }

    /// Who says so of itself, whatever it says.
    pub fn sender(bytes: &[u8]) -> Option<RouterId> {
        let mut reader = Reader::new(bytes.get(3..)?);
        reader.hash().ok().map(RouterId)
    }

    /// The latest version of the language that its router speaks.
    pub fn spoken(bytes: &[u8]) -> u8 {
        bytes.get(1).copied().unwrap_or(0)
    }

    /// Whether taking it in may take long: it is large, asks for much, or may be the last part of much.
    pub fn may_take_long(bytes: &[u8]) -> bool {
        bytes.len() > LARGE_BYTES || matches!(bytes.get(2), Some(&(ASK | ANSWER)))
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.byte(NEEDED);
        writer.byte(SPOKEN);
        writer.byte(self.kind());
        writer.hash(self.from().0);
        writer.block(|writer| {
            writer.block(|writer| self.write_head(writer));
            self.write_records(writer);
        });
        writer.bytes
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Batch { .. } => BATCH,
            Message::State { .. } => STATE,
            Message::Ask { .. } => ASK,
            Message::Answer { .. } => ANSWER,
            Message::Relay { .. } => RELAY,
            Message::Reach { .. } => REACH,
        }
    }

    fn write_head(&self, writer: &mut Writer) {
        match self {
            Message::Batch { number, news: ledger, .. }
            | Message::State { up_to: number, state: ledger, .. } => {
                writer.number(*number);
                writer.number(ledger.open_from);
            }
            Message::Ask { question, .. } => question.write_head(writer),
            Message::Answer { part, .. } => part.write(writer),
            Message::Relay { .. } | Message::Reach { .. } => {}
        }
    }

    fn write_records(&self, writer: &mut Writer) {
        match self {
            Message::Batch { news: ledger, .. } | Message::State { state: ledger, .. } => {
                write_ledger(writer, ledger);
            }
            Message::Ask { question, .. } => question.write_records(writer),
            Message::Answer { bytes, .. } if bytes.is_empty() => {}
            Message::Answer { bytes, .. } => {
                writer.record(ONE, |writer| writer.bytes.extend_from_slice(bytes));
            }
            Message::Relay { reports, .. } => {
                reports.iter().for_each(|one| writer.record(ONE, |writer| one.write(writer)));
            }
            Message::Reach { reaches, .. } => {
                reaches.iter().for_each(|one| writer.record(ONE, |writer| one.write(writer)));
            }
        }
    }

    /// From bytes; `None`: of a kind that is not known here.
    pub fn decode(bytes: &[u8]) -> Result<Option<Message>, BadMessage> {
        let mut reader = Reader::new(bytes);
        let needed = reader.byte()?;
        if needed > SPOKEN {
            return Err(BadMessage::Version(needed));
        }
        let _spoken = reader.byte()?;
        let (kind, from) = (reader.byte()?, RouterId(reader.hash()?));
        let mut records = reader.block()?;
        if !reader.is_at_end() {
            return Err(BadMessage::Garbled);
        }
        let head = records.block()?;
        Message::read(kind, from, head, records)
    }

    fn read(
        kind: u8,
        from: RouterId,
        mut head: Reader<'_>,
        mut records: Reader<'_>,
    ) -> Result<Option<Message>, BadMessage> {
        Ok(Some(match kind {
            BATCH => {
                let number = read_batch(&mut head)?;
                Message::Batch { from, number, news: read_ledger(head.number()?, &mut records)? }
            }
            STATE => {
                let up_to = read_batch(&mut head)?;
                Message::State { from, up_to, state: read_ledger(head.number()?, &mut records)? }
            }
            ASK => {
                let question = Question::read(&mut head, &mut records)?;
                return Ok(question.map(|question| Message::Ask { from, question }));
            }
            ANSWER => {
                let part = Part::read(&mut head)?;
                let mut bytes = Vec::new();
                while let Some(mut body) = next_one(&mut records)? {
                    bytes = body.rest().to_vec();
                }
                Message::Answer { from, part, bytes }
            }
            RELAY => {
                let mut reports = Vec::new();
                while let Some(mut body) = next_one(&mut records)? {
                    reports.extend(Report::read(&mut body)?);
                }
                Message::Relay { from, reports }
            }
            REACH => {
                let mut reaches = Vec::new();
                while let Some(mut body) = next_one(&mut records)? {
                    reaches.push(Reach::read(&mut body)?);
                }
                Message::Reach { from, reaches }
            }
            _ => return Ok(None),
        }))
    }
}

/// The next record of the one kind that is known.
fn next_one<'a>(records: &mut Reader<'a>) -> Result<Option<Reader<'a>>, BadMessage> {
    while let Some((kind, body)) = records.record()? {
        if kind == ONE {
            return Ok(Some(body));
        }
    }
    Ok(None)
}

fn read_batch(reader: &mut Reader<'_>) -> Result<u64, BadMessage> {
    Some(reader.number()?).filter(|&number| number <= BATCH_MAX).ok_or(BadMessage::Garbled)
}

fn write_ledger(writer: &mut Writer, ledger: &Ledger) {
    let mut before = 0;
    for (&number, trip) in &ledger.trips {
        writer.record(TRIP, |writer| {
            writer.number(number - before);
            write_trip(writer, trip);
        });
        before = number;
    }
    for (&worker, advice) in &ledger.advice {
        writer.record(ADVICE, |writer| {
            writer.hash(worker);
            writer.number(advice.version);
            writer.byte(advice.health as u8);
            writer.number(advice.emptied.into());
        });
    }
}

fn read_ledger(open_from: u64, records: &mut Reader<'_>) -> Result<Ledger, BadMessage> {
    let mut ledger = Ledger { open_from, ..Ledger::default() };
    let mut number = 0_u64;
    while let Some((kind, mut body)) = records.record()? {
        match kind {
            TRIP => {
                number = number.checked_add(body.number()?).ok_or(BadMessage::Garbled)?;
                ledger.trips.insert(number, read_trip(&mut body)?);
            }
            ADVICE => {
                let worker = body.hash()?;
                ledger.advice.extend(read_advice(&mut body)?.map(|advice| (worker, advice)));
            }
            _ => {}
        }
    }
    Ok(ledger)
}

/// Nothing where what was found has no name here.
fn read_advice(reader: &mut Reader<'_>) -> Result<Option<Advice>, BadMessage> {
    let version = reader.number()?;
    let health = match reader.byte()? {
        0 => Some(Health::Well),
        1 => Some(Health::Failing),
        _ => None,
    };
    let emptied = reader.small()?;
    Ok(health.map(|health| Advice { version, health, emptied }))
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
    use crate::{ReportKind, Want, Wanted};
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
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
        (numbers, 0..=u32::MAX - 1)
            .prop_flat_map(|(numbers, at)| (Just(numbers), Just(at), at + 1..=u32::MAX))
            .prop_map(|((ticket, asked_at_us, answer), at, of)| Part { ticket, asked_at_us, answer, at, of })
    }

    fn question() -> impl Strategy<Value = Question> {
        let hole = (any::<u32>(), any::<u32>())
            .prop_map(|(start, more)| u64::from(start)..=u64::from(start) + u64::from(more));
        let stream = (any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(worker, source, from_seq)| Want::Stream(Wanted { worker, source, from_seq }));
        let want = prop_oneof![
            proptest::collection::vec(hole, 0..5).prop_map(Want::Batches),
            Just(Want::View),
            stream
        ];
        (any::<u64>(), any::<u64>(), want, proptest::collection::vec(any::<u32>(), 0..5))
            .prop_map(|(ticket, asked_at_us, want, parts)| Question { ticket, asked_at_us, want, parts })
    }

    fn message() -> impl Strategy<Value = Message> {
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
            (from.clone(), question()).prop_map(|(from, question)| Message::Ask { from, question }),
            (from.clone(), part(), proptest::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(from, part, bytes)| Message::Answer { from, part, bytes }),
            (from.clone(), proptest::collection::vec(report(), 0..4))
                .prop_map(|(from, reports)| Message::Relay { from, reports }),
            (from, proptest::collection::vec(reach(), 0..4))
                .prop_map(|(from, reaches)| Message::Reach { from, reaches }),
        ]
    }

    /// The same message as a later version may say it: more at the end of its head and of every record, and records that nobody knows.
    fn of_tomorrow(bytes: &[u8]) -> Vec<u8> {
        let (front, mut reader) = (&bytes[2..11], Reader::new(&bytes[11..]));
        let mut body = reader.block().unwrap();
        let mut writer = Writer { bytes: vec![NEEDED, SPOKEN + 1] };
        writer.bytes.extend_from_slice(front);
        writer.block(|writer| {
            let grown = |writer: &mut Writer, mut old: Reader<'_>| {
                writer.block(|writer| {
                    writer.bytes.extend_from_slice(old.rest());
                    writer.bytes.extend_from_slice(b"more");
                });
            };
            grown(writer, body.block().unwrap());
            writer.record(200, |writer| writer.text(b"what nobody knows"));
            while let Some((kind, mut old)) = body.record().unwrap() {
                writer.byte(kind);
                match bytes[2] {
                    // Its one record is what it carries.
                    ANSWER => writer.text(old.rest()),
                    _ => grown(writer, old),
                }
                writer.record(201, |_| {});
            }
        });
        writer.bytes
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(message in message()) {
            prop_assert_eq!(Message::sender(&message.encode()), Some(message.from()));
            prop_assert_eq!(Message::decode(&message.encode()), Ok(Some(message)));
        }

        #[test]
        fn what_a_later_version_says_is_understood_but_for_what_is_new(message in message()) {
            let bytes = of_tomorrow(&message.encode());
            prop_assert_eq!((Message::spoken(&bytes), Message::sender(&bytes)), (2, Some(message.from())));
            prop_assert_eq!(Message::decode(&bytes), Ok(Some(message)));
        }

        #[test]
        fn half_a_message_is_none(message in message(), part in 0.0..1.0_f64) {
            let bytes = message.encode();
            let part = &bytes[..(bytes.len() as f64 * part) as usize];
            prop_assert!(Message::decode(part).is_err());
        }

        #[test]
        fn garbage_is_read_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 1_u8..8) {
            _ = Message::decode(&bytes);
            if bytes.len() > 12 {
                (bytes[0], bytes[2]) = (NEEDED, kind);
                // As long as it is, where that is a byte.
                bytes[11] = (bytes.len() - 12) as u8 & 0x7f;
            }
            _ = Message::decode(&bytes);
        }
    }

    #[test]
    fn a_message_of_another_kind_is_passed_over_and_what_needs_a_later_version_refused() {
        let ask = |want| Question { ticket: 1, asked_at_us: 2, want, parts: vec![0] };
        let bytes = Message::Ask { from: RouterId(7), question: ask(Want::View) }.encode();
        let with = |at: usize, byte| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Message::decode(&bytes)
        };
        assert!(matches!(with(1, 9), Ok(Some(_))), "it speaks a later version, and this does not need it");
        assert_eq!(with(2, 99), Ok(None), "a message of another kind");
        assert_eq!(with(15, 99), Ok(None), "a question for something else");
        assert_eq!(with(0, 2), Err(BadMessage::Version(2)));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// These bytes are frozen: routers of this version say and understand them, whatever later ones do.
    #[test]
    fn the_language_is_what_it_was() {
        let from = RouterId(0x0102_0304_0506_0708);
        let prompt = Prompt { root: 3, chunk_bytes: 256, chunk_tokens: 64, digests: [5, 6].into() };
        let booked = Booked {
            worker: 9,
            prompt_tokens: 300,
            cached_tokens: 64,
            restorable_tokens: 1,
            delivery: Delivery::Whole,
            prompt: Some(prompt),
        };
        let over = Trip { is_computed: true, over: Some(Over::Found { chunks: 1 }), ..Trip::default() };
        let advice = Advice { version: 4, health: Health::Failing, emptied: 2 };
        let ledger = Ledger {
            open_from: 17,
            trips: [(18, Trip::begun(booked)), (20, over)].into(),
            advice: [(9, advice)].into(),
        };
        let report = Report { worker: 9, source: 8, seq: 7, kind: ReportKind::Begins, bytes: [1, 2].into() };
        let reach = Reach { worker: 9, source: 8, next: 200, at_unix_ms: 1_000 };
        let stream = Want::Stream(Wanted { worker: 9, source: 8, from_seq: 7 });
        let question = |want| Question { ticket: 5, asked_at_us: 300, want, parts: vec![0, 129] };
        let part = Part { ticket: 5, asked_at_us: 300, answer: 2, at: 1, of: 3 };
        let frozen = [
            (Message::Batch { from, number: 130, news: ledger.clone() }, BATCH_BYTES),
            (Message::State { from, up_to: 130, state: ledger }, STATE_BYTES),
            (Message::Ask { from, question: question(Want::Batches(vec![3..=5, 9..=9])) }, ASK_BATCHES_BYTES),
            (Message::Ask { from, question: question(Want::View) }, ASK_VIEW_BYTES),
            (Message::Ask { from, question: question(stream) }, ASK_STREAM_BYTES),
            (Message::Answer { from, part, bytes: vec![1, 2, 3] }, ANSWER_BYTES),
            (Message::Relay { from, reports: vec![report] }, RELAY_BYTES),
            (Message::Reach { from, reaches: vec![reach] }, REACH_BYTES),
        ];
        let said: Vec<String> = frozen.iter().map(|(message, _)| hex(&message.encode())).collect();
        assert_eq!(said, frozen.map(|(_, bytes)| bytes.to_owned()));
    }

    const BATCH_BYTES: &str = "01010108070605040302014203820111012a12830900000000000000ac02400103000000000000008002\
        4002050000000000000006000000000000000103021c01020b0900000000000000040102";
    const STATE_BYTES: &str = "01010208070605040302014203820111012a12830900000000000000ac02400103000000000000008002\
        4002050000000000000006000000000000000103021c01020b0900000000000000040102";
    const ASK_BATCHES_BYTES: &str = "0101030807060504030201120305ac020105020302090004010004028101";
    const ASK_VIEW_BYTES: &str = "01010308070605040302010d0305ac02020004010004028101";
    const ASK_STREAM_BYTES: &str =
        "01010308070605040302011e0305ac020311090000000000000008000000000000000704010004028101";
    const ANSWER_BYTES: &str = "01010408070605040302010c0605ac020201030103010203";
    const RELAY_BYTES: &str = "010105080706050403020118000115090000000000000008000000000000000701020102";
    const REACH_BYTES: &str = "01010608070605040302011700011409000000000000000800000000000000c801e807";
}
