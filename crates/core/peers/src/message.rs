//! Messages between routers, and their encoding.
//!
//! ```text
//! needed version, own version, kind, from, length | head: length, fields | record: kind, length, fields | …
//! ```
//!
//! This layout never changes. A message states the protocol version that is needed to understand it, and the newest version
//! that its sender supports. A later version may append fields to heads and records, and add kinds of records and messages;
//! older routers skip them. Only a change that older routers would misunderstand raises the needed version.

use warmroute_admission::LimitMessage;
use warmroute_types::{Delivery, RouterId};

use crate::codec::{BadMessage, Reader, Writer};
use crate::limit_records::{read_limits, write_limits};
use crate::{
    AnswerPart, Assignment, AssignmentEnd, BookingRecord, Ledger, PromptDigests, Query, StoredResponse,
    WorkerFinding, WorkerHealth,
};

/// The newest protocol version that this build supports: 2 adds messages about limits.
const VERSION_OURS: u8 = 2;

/// The version that is needed to understand this build's messages.
const VERSION_NEEDED: u8 = 1;

/// Peers from this version on share limits.
pub(crate) const VERSION_LIMITS: u8 = 2;

/// Longest message in bytes. Transports may reject longer ones.
pub const MESSAGE_MAX: usize = 1 << 20;

/// Larger messages take milliseconds to apply.
const LARGE_BYTES: usize = 32 << 10;

const BATCH: u8 = 1;
const STATE: u8 = 2;
const QUERY: u8 = 3;
const ANSWER: u8 = 4;
// 5 and 6 relayed engine events in earlier builds of version 1; they must not get another meaning.
const LIMITS: u8 = 7;
const REPORT: u8 = 8;

/// Kinds of records in a ledger.
const ASSIGNMENT: u8 = 1;
const FINDING: u8 = 2;
const STORED: u8 = 3;

/// The only kind of record in other messages.
const PAYLOAD: u8 = 1;

/// Batches count from 1, about fifty per second, so a larger number is not genuine and could overflow.
const BATCH_MAX: u64 = 1 << 62;

/// Bits that state which parts of an assignment follow.
const FLAG_BOOKING: u8 = 1;
const FLAG_PROMPT: u8 = 2;
const FLAG_PREFILLED: u8 = 4;
const END_SHIFT: u8 = 3;
const END_MASK: u8 = 3;
const FLAG_UNRENDERED: u8 = 64;
const FLAG_WHOLE: u8 = 128;

/// A message between routers.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// Changes of the sender's ledger. Batches count from 1; an empty one is a heartbeat with the number of
    /// the last batch.
    Batch {
        /// The sender.
        from: RouterId,
        /// Number of this batch; in a heartbeat, of the last one.
        number: u64,
        /// The changes; empty in a heartbeat.
        updates: Ledger,
    },
    /// All open assignments. Sent only inside an answer, because it may be large.
    State {
        /// The sender.
        from: RouterId,
        /// It replaces all batches up to this one.
        up_to: u64,
        /// Open assignments and findings.
        state: Ledger,
    },
    /// A query to one peer.
    Query {
        /// The sender.
        from: RouterId,
        /// The requested state and parts.
        query: Query,
    },
    /// One part of an answer.
    Answer {
        /// The sender.
        from: RouterId,
        /// Which part of which answer.
        part: AnswerPart,
        /// The bytes of this part.
        bytes: Vec<u8>,
    },
    /// Messages about tenants' limits, since protocol version 2.
    Limits {
        /// The sender.
        from: RouterId,
        /// The messages, in order.
        messages: Vec<LimitMessage>,
    },
    /// A report to one peer about a request that the peer routed. What it says is the drivers' matter.
    Report {
        /// The sender.
        from: RouterId,
        /// The report.
        bytes: Vec<u8>,
    },
}

impl PeerMessage {
    /// The sender.
    pub fn from(&self) -> RouterId {
        match self {
            PeerMessage::Batch { from, .. }
            | PeerMessage::State { from, .. }
            | PeerMessage::Query { from, .. }
            | PeerMessage::Answer { from, .. }
            | PeerMessage::Limits { from, .. }
            | PeerMessage::Report { from, .. } => *from,
        }
    }

    /// The sender that the header names, without checking the rest.
    pub fn claimed_sender(bytes: &[u8]) -> Option<RouterId> {
        let mut reader = Reader::new(bytes.get(3..)?);
        reader.hash().ok().map(RouterId)
    }

    /// The newest protocol version that the sender supports.
    pub fn protocol_version(bytes: &[u8]) -> u8 {
        bytes.get(1).copied().unwrap_or(0)
    }

    /// Whether applying the message may take milliseconds: it is large, is a query, or may complete a large
    /// answer.
    pub fn is_expensive(bytes: &[u8]) -> bool {
        bytes.len() > LARGE_BYTES || matches!(bytes.get(2), Some(&(QUERY | ANSWER)))
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.byte(VERSION_NEEDED);
        writer.byte(VERSION_OURS);
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
            PeerMessage::Batch { .. } => BATCH,
            PeerMessage::State { .. } => STATE,
            PeerMessage::Query { .. } => QUERY,
            PeerMessage::Answer { .. } => ANSWER,
            PeerMessage::Limits { .. } => LIMITS,
            PeerMessage::Report { .. } => REPORT,
        }
    }

    fn write_head(&self, writer: &mut Writer) {
        match self {
            PeerMessage::Batch { number, updates: ledger, .. }
            | PeerMessage::State { up_to: number, state: ledger, .. } => {
                writer.varint(*number);
                writer.varint(ledger.low_water);
            }
            PeerMessage::Query { query, .. } => query.write_head(writer),
            PeerMessage::Answer { part, .. } => part.write(writer),
            PeerMessage::Limits { .. } => {}
            PeerMessage::Report { .. } => {}
        }
    }

    fn write_records(&self, writer: &mut Writer) {
        match self {
            PeerMessage::Batch { updates: ledger, .. } | PeerMessage::State { state: ledger, .. } => {
                write_ledger(writer, ledger);
            }
            PeerMessage::Query { query, .. } => query.write_records(writer),
            PeerMessage::Limits { messages, .. } => write_limits(writer, messages),
            PeerMessage::Answer { bytes, .. } | PeerMessage::Report { bytes, .. } if bytes.is_empty() => {}
            PeerMessage::Answer { bytes, .. } | PeerMessage::Report { bytes, .. } => {
                writer.record(PAYLOAD, |writer| writer.bytes.extend_from_slice(bytes));
            }
        }
    }

    /// Decodes a message; `None` for a kind that this version does not know.
    pub fn decode(bytes: &[u8]) -> Result<Option<PeerMessage>, BadMessage> {
        let mut reader = Reader::new(bytes);
        let needed = reader.byte()?;
        if needed > VERSION_OURS {
            return Err(BadMessage::Version(needed));
        }
        let _sender_version = reader.byte()?;
        let (kind, from) = (reader.byte()?, RouterId(reader.hash()?));
        let mut records = reader.block()?;
        if !reader.is_empty() {
            return Err(BadMessage::Malformed);
        }
        let head = records.block()?;
        PeerMessage::read(kind, from, head, records)
    }

    fn read(
        kind: u8,
        from: RouterId,
        mut head: Reader<'_>,
        mut records: Reader<'_>,
    ) -> Result<Option<PeerMessage>, BadMessage> {
        Ok(Some(match kind {
            BATCH => {
                let number = read_batch(&mut head)?;
                PeerMessage::Batch { from, number, updates: read_ledger(head.varint()?, &mut records)? }
            }
            STATE => {
                let up_to = read_batch(&mut head)?;
                PeerMessage::State { from, up_to, state: read_ledger(head.varint()?, &mut records)? }
            }
            QUERY => {
                let query = Query::read(&mut head, &mut records)?;
                return Ok(query.map(|query| PeerMessage::Query { from, query }));
            }
            ANSWER => {
                let part = AnswerPart::read(&mut head)?;
                PeerMessage::Answer { from, part, bytes: read_payload(&mut records)? }
            }
            LIMITS => PeerMessage::Limits { from, messages: read_limits(&mut records)? },
            REPORT => PeerMessage::Report { from, bytes: read_payload(&mut records)? },
            _ => return Ok(None),
        }))
    }
}

/// The last payload; empty without one.
fn read_payload(records: &mut Reader<'_>) -> Result<Vec<u8>, BadMessage> {
    let mut bytes = Vec::new();
    while let Some(mut body) = next_record(records)? {
        bytes = body.rest().to_vec();
    }
    Ok(bytes)
}

/// The next record of the only known kind.
fn next_record<'a>(records: &mut Reader<'a>) -> Result<Option<Reader<'a>>, BadMessage> {
    while let Some((kind, body)) = records.record()? {
        if kind == PAYLOAD {
            return Ok(Some(body));
        }
    }
    Ok(None)
}

fn read_batch(reader: &mut Reader<'_>) -> Result<u64, BadMessage> {
    Some(reader.varint()?).filter(|&number| number <= BATCH_MAX).ok_or(BadMessage::Malformed)
}

fn write_ledger(writer: &mut Writer, ledger: &Ledger) {
    let mut before = 0;
    for (&number, assignment) in &ledger.assignments {
        writer.record(ASSIGNMENT, |writer| {
            writer.varint(number - before);
            write_trip(writer, assignment);
        });
        before = number;
    }
    for (&worker, finding) in &ledger.findings {
        writer.record(FINDING, |writer| {
            writer.hash(worker);
            writer.varint(finding.version);
            writer.byte(finding.health as u8);
            writer.varint(finding.clears.into());
        });
    }
    for (&id, stored) in &ledger.stored {
        writer.record(STORED, |writer| {
            writer.hash(id as u64);
            writer.hash((id >> 64) as u64);
            writer.hash(stored.owner);
            writer.hash(stored.worker);
        });
    }
}

fn read_ledger(low_water: u64, records: &mut Reader<'_>) -> Result<Ledger, BadMessage> {
    let mut ledger = Ledger { low_water, ..Ledger::default() };
    let mut number = 0_u64;
    while let Some((kind, mut body)) = records.record()? {
        match kind {
            ASSIGNMENT => {
                number = number.checked_add(body.varint()?).ok_or(BadMessage::Malformed)?;
                ledger.assignments.insert(number, read_trip(&mut body)?);
            }
            FINDING => {
                let worker = body.hash()?;
                ledger.findings.extend(read_finding(&mut body)?.map(|finding| (worker, finding)));
            }
            STORED => {
                let id = u128::from(body.hash()?) | u128::from(body.hash()?) << 64;
                let stored = StoredResponse { owner: body.hash()?, worker: body.hash()? };
                ledger.stored.insert(id, stored);
            }
            _ => {}
        }
    }
    Ok(ledger)
}

/// `None` for a health value that this version does not know.
fn read_finding(reader: &mut Reader<'_>) -> Result<Option<WorkerFinding>, BadMessage> {
    let version = reader.varint()?;
    let health = match reader.byte()? {
        0 => Some(WorkerHealth::Healthy),
        1 => Some(WorkerHealth::Failing),
        _ => None,
    };
    let clears = reader.varint_u32()?;
    Ok(health.map(|health| WorkerFinding { version, health, clears }))
}

fn write_trip(writer: &mut Writer, assignment: &Assignment) {
    let prompt = assignment.booking.as_ref().and_then(|booking| booking.prompt.as_ref());
    let end = match assignment.end {
        None => 0,
        Some(AssignmentEnd::Abandoned) => 1,
        Some(AssignmentEnd::Answered) => 2,
        Some(AssignmentEnd::Stale { .. }) => 3,
    };
    let is_whole = assignment.booking.as_ref().is_some_and(|booking| booking.delivery == Delivery::Whole);
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    writer.byte(
        flag(assignment.booking.is_some(), FLAG_BOOKING)
            | flag(prompt.is_some(), FLAG_PROMPT)
            | flag(assignment.is_prefilled, FLAG_PREFILLED)
            | flag(prompt.is_some_and(|prompt| prompt.is_unrendered), FLAG_UNRENDERED)
            | flag(is_whole, FLAG_WHOLE)
            | end << END_SHIFT,
    );
    if let Some(booking) = &assignment.booking {
        writer.hash(booking.worker);
        writer.varint(booking.prompt_tokens.into());
        writer.varint(booking.cached_tokens.into());
        writer.varint(booking.restorable_tokens.into());
    }
    if let Some(prompt) = prompt {
        writer.hash(prompt.root);
        writer.varint(prompt.chunk_bytes.into());
        writer.varint(prompt.chunk_tokens.into());
        writer.hashes(&prompt.digests);
    }
    if let Some(AssignmentEnd::Stale { found_chunks }) = assignment.end {
        writer.varint(found_chunks.into());
    }
}

fn read_trip(reader: &mut Reader<'_>) -> Result<Assignment, BadMessage> {
    let flags = reader.byte()?;
    let mut assignment = Assignment { is_prefilled: flags & FLAG_PREFILLED != 0, ..Assignment::default() };
    if flags & FLAG_BOOKING != 0 {
        let mut booking = BookingRecord {
            worker: reader.hash()?,
            prompt_tokens: reader.varint_u32()?,
            cached_tokens: reader.varint_u32()?,
            restorable_tokens: reader.varint_u32()?,
            delivery: if flags & FLAG_WHOLE != 0 { Delivery::Whole } else { Delivery::Streamed },
            prompt: None,
        };
        if flags & FLAG_PROMPT != 0 {
            booking.prompt = Some(PromptDigests {
                root: reader.hash()?,
                chunk_bytes: reader.varint_u32()?,
                chunk_tokens: reader.varint_u32()?,
                digests: reader.hashes()?,
                is_unrendered: flags & FLAG_UNRENDERED != 0,
            });
        }
        assignment.booking = Some(booking);
    }
    assignment.end = match (flags >> END_SHIFT) & END_MASK {
        0 => None,
        1 => Some(AssignmentEnd::Abandoned),
        2 => Some(AssignmentEnd::Answered),
        _ => Some(AssignmentEnd::Stale { found_chunks: reader.varint_u32()? }),
    };
    Ok(assignment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueryKind;
    use proptest::prelude::*;

    fn assignment() -> impl Strategy<Value = Assignment> {
        let prompt =
            (any::<u64>(), any::<u32>(), any::<u32>(), proptest::collection::vec(any::<u64>(), 0..9))
                .prop_map(|(root, chunk_bytes, chunk_tokens, digests)| PromptDigests {
                    root,
                    chunk_bytes,
                    chunk_tokens,
                    digests: digests.into(),
                    is_unrendered: root & 1 != 0,
                });
        let booking = (any::<u64>(), any::<u32>(), any::<u32>(), proptest::option::of(prompt)).prop_map(
            |(worker, prompt_tokens, cached_tokens, prompt)| BookingRecord {
                worker,
                prompt_tokens,
                cached_tokens,
                restorable_tokens: cached_tokens / 2,
                delivery: if worker & 1 == 0 { Delivery::Streamed } else { Delivery::Whole },
                prompt,
            },
        );
        let end = prop_oneof![
            Just(None),
            Just(Some(AssignmentEnd::Abandoned)),
            Just(Some(AssignmentEnd::Answered)),
            any::<u32>().prop_map(|found_chunks| Some(AssignmentEnd::Stale { found_chunks }))
        ];
        (proptest::option::of(booking), any::<bool>(), end)
            .prop_map(|(booking, is_prefilled, end)| Assignment { booking, is_prefilled, end })
    }

    fn ledger() -> impl Strategy<Value = Ledger> {
        let finding = (any::<u64>(), any::<bool>(), any::<u32>()).prop_map(|(version, failing, clears)| {
            WorkerFinding {
                version,
                health: if failing { WorkerHealth::Failing } else { WorkerHealth::Healthy },
                clears,
            }
        });
        let stored =
            (any::<u64>(), any::<u64>()).prop_map(|(owner, worker)| StoredResponse { owner, worker });
        (
            any::<u64>(),
            proptest::collection::btree_map(any::<u64>(), assignment(), 0..6),
            proptest::collection::btree_map(any::<u64>(), finding, 0..3),
            proptest::collection::btree_map(any::<u128>(), stored, 0..3),
        )
            .prop_map(|(low_water, assignments, findings, stored)| Ledger {
                low_water,
                assignments,
                findings,
                stored,
            })
    }

    fn part() -> impl Strategy<Value = AnswerPart> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
        (numbers, 0..=u32::MAX - 1)
            .prop_flat_map(|(numbers, at)| (Just(numbers), Just(at), at + 1..=u32::MAX))
            .prop_map(|((query_id, asked_at_us, answer_id), index, count)| AnswerPart {
                query_id,
                asked_at_us,
                answer_id,
                index,
                count,
            })
    }

    fn query() -> impl Strategy<Value = Query> {
        let gap = (any::<u32>(), any::<u32>())
            .prop_map(|(start, more)| u64::from(start)..=u64::from(start) + u64::from(more));
        let kind = prop_oneof![
            proptest::collection::vec(gap, 0..5).prop_map(QueryKind::Batches),
            Just(QueryKind::Snapshot),
            Just(QueryKind::Ping)
        ];
        (any::<u64>(), any::<u64>(), kind, proptest::collection::vec(any::<u32>(), 0..5))
            .prop_map(|(query_id, asked_at_us, kind, parts)| Query { id: query_id, asked_at_us, kind, parts })
    }

    fn message() -> impl Strategy<Value = PeerMessage> {
        let from = any::<u64>().prop_map(RouterId);
        prop_oneof![
            (from.clone(), 0..=BATCH_MAX, ledger()).prop_map(|(from, number, updates)| PeerMessage::Batch {
                from,
                number,
                updates
            }),
            (from.clone(), 0..=BATCH_MAX, ledger()).prop_map(|(from, up_to, state)| PeerMessage::State {
                from,
                up_to,
                state
            }),
            (from.clone(), query()).prop_map(|(from, query)| PeerMessage::Query { from, query }),
            (from.clone(), part(), proptest::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(from, part, bytes)| PeerMessage::Answer { from, part, bytes }),
            (from, proptest::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(from, bytes)| PeerMessage::Report { from, bytes }),
        ]
    }

    /// The message as a later version could send it: with longer heads and records, and with unknown records.
    fn from_later_version(bytes: &[u8]) -> Vec<u8> {
        let (front, mut reader) = (&bytes[2..11], Reader::new(&bytes[11..]));
        let mut body = reader.block().unwrap();
        let mut writer = Writer { bytes: vec![VERSION_NEEDED, VERSION_OURS + 1] };
        writer.bytes.extend_from_slice(front);
        writer.block(|writer| {
            let extend = |writer: &mut Writer, mut old: Reader<'_>| {
                writer.block(|writer| {
                    writer.bytes.extend_from_slice(old.rest());
                    writer.bytes.extend_from_slice(b"more");
                });
            };
            extend(writer, body.block().unwrap());
            writer.record(200, |writer| writer.sized_bytes(b"unknown record"));
            while let Some((kind, mut old)) = body.record().unwrap() {
                writer.byte(kind);
                match bytes[2] {
                    // The only record of an answer or a report is its payload.
                    ANSWER | REPORT => writer.sized_bytes(old.rest()),
                    _ => extend(writer, old),
                }
                writer.record(201, |_| {});
            }
        });
        writer.bytes
    }

    proptest! {
        #[test]
        fn messages_survive_encoding(message in message()) {
            prop_assert_eq!(PeerMessage::claimed_sender(&message.encode()), Some(message.from()));
            prop_assert_eq!(PeerMessage::decode(&message.encode()), Ok(Some(message)));
        }

        #[test]
        fn additions_of_a_later_version_are_skipped(message in message()) {
            let bytes = from_later_version(&message.encode());
            prop_assert_eq!((PeerMessage::protocol_version(&bytes), PeerMessage::claimed_sender(&bytes)), (VERSION_OURS + 1, Some(message.from())));
            prop_assert_eq!(PeerMessage::decode(&bytes), Ok(Some(message)));
        }

        #[test]
        fn a_truncated_message_is_rejected(message in message(), part in 0.0..1.0_f64) {
            let bytes = message.encode();
            let part = &bytes[..(bytes.len() as f64 * part) as usize];
            prop_assert!(PeerMessage::decode(part).is_err());
        }

        #[test]
        fn garbage_never_panics_when_decoded(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 1_u8..8) {
            _ = PeerMessage::decode(&bytes);
            if bytes.len() > 12 {
                (bytes[0], bytes[2]) = (VERSION_NEEDED, kind);
                // Makes the length field match the input, as far as it fits into one byte.
                bytes[11] = (bytes.len() - 12) as u8 & 0x7f;
            }
            _ = PeerMessage::decode(&bytes);
        }
    }

    #[test]
    fn an_unknown_kind_is_skipped_and_a_needed_later_version_rejected() {
        let query = |kind| Query { id: 1, asked_at_us: 2, kind, parts: vec![0] };
        let bytes = PeerMessage::Query { from: RouterId(7), query: query(QueryKind::Snapshot) }.encode();
        let with = |at: usize, byte| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            PeerMessage::decode(&bytes)
        };
        assert!(matches!(with(1, 9), Ok(Some(_))), "a later version that is not needed");
        assert_eq!(with(2, 99), Ok(None), "an unknown kind of message");
        assert_eq!(with(15, 99), Ok(None), "an unknown kind of query");
        assert_eq!(with(0, VERSION_OURS + 1), Err(BadMessage::Version(VERSION_OURS + 1)));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// These bytes are frozen: routers of protocol version 1 understand them. The second byte is the sender's version.
    #[test]
    fn the_message_encoding_is_frozen() {
        let from = RouterId(0x0102_0304_0506_0708);
        let digests = [5, 6].into();
        let prompt =
            PromptDigests { root: 3, chunk_bytes: 256, chunk_tokens: 64, digests, is_unrendered: false };
        let booking = BookingRecord {
            worker: 9,
            prompt_tokens: 300,
            cached_tokens: 64,
            restorable_tokens: 1,
            delivery: Delivery::Whole,
            prompt: Some(prompt),
        };
        let end = Assignment {
            is_prefilled: true,
            end: Some(AssignmentEnd::Stale { found_chunks: 1 }),
            ..Assignment::default()
        };
        let finding = WorkerFinding { version: 4, health: WorkerHealth::Failing, clears: 2 };
        let ledger = Ledger {
            low_water: 17,
            assignments: [(18, Assignment::new(booking)), (20, end)].into(),
            findings: [(9, finding)].into(),
            ..Ledger::default()
        };
        let stored = StoredResponse { owner: 6, worker: 9 };
        let stored = Ledger { stored: [(7 << 64 | 5, stored)].into(), ..Ledger::default() };
        let query = |kind| Query { id: 5, asked_at_us: 300, kind, parts: vec![0, 129] };
        let part = AnswerPart { query_id: 5, asked_at_us: 300, answer_id: 2, index: 1, count: 3 };
        let frozen = [
            (PeerMessage::Batch { from, number: 130, updates: ledger.clone() }, BATCH_BYTES),
            (PeerMessage::State { from, up_to: 130, state: ledger }, STATE_BYTES),
            (PeerMessage::Batch { from, number: 2, updates: stored }, STORED_BYTES),
            (
                PeerMessage::Query { from, query: query(QueryKind::Batches(vec![3..=5, 9..=9])) },
                QUERY_BATCHES_BYTES,
            ),
            (PeerMessage::Query { from, query: query(QueryKind::Snapshot) }, QUERY_SNAPSHOT_BYTES),
            (PeerMessage::Answer { from, part, bytes: vec![1, 2, 3] }, ANSWER_BYTES),
            (PeerMessage::Report { from, bytes: vec![1, 2, 3] }, REPORT_BYTES),
        ];
        let encoded: Vec<String> = frozen.iter().map(|(message, _)| hex(&message.encode())).collect();
        assert_eq!(encoded, frozen.map(|(_, bytes)| bytes.to_owned()));
    }

    const BATCH_BYTES: &str = "01020108070605040302014203820111012a12830900000000000000ac02400103000000000000008002\
        4002050000000000000006000000000000000103021c01020b0900000000000000040102";
    const STATE_BYTES: &str = "01020208070605040302014203820111012a12830900000000000000ac02400103000000000000008002\
        4002050000000000000006000000000000000103021c01020b0900000000000000040102";
    const STORED_BYTES: &str = "0102010807060504030201250202000320050000000000000007000000000000000600000000000000\
        0900000000000000";
    const QUERY_BATCHES_BYTES: &str = "0102030807060504030201120305ac020105020302090004010004028101";
    const QUERY_SNAPSHOT_BYTES: &str = "01020308070605040302010d0305ac02020004010004028101";
    const ANSWER_BYTES: &str = "01020408070605040302010c0605ac020201030103010203";
    const REPORT_BYTES: &str = "010208080706050403020106000103010203";
}
