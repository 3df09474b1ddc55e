//! The encoding of messages about tenants' limits: one record each.

use warmroute_admission::{Exceeded, HeldLease, Limit, LimitMessage, Limits, TenantLevel};

use crate::codec::{BadMessage, Reader, Writer};

const ASK: u8 = 1;
const ANSWER: u8 = 2;
const EXTEND: u8 = 3;
const SETTLE: u8 = 4;
const HELD: u8 = 5;
const LEVEL: u8 = 6;
const RETURN: u8 = 7;

/// Levels are sent in thousandths.
const LEVEL_UNITS: f64 = 1_000.0;

/// Larger levels are not genuine, and could not be read as they were written.
const LEVEL_UNITS_MAX: i64 = 1 << 48;

pub(crate) fn write_limits(writer: &mut Writer, messages: &[LimitMessage]) {
    messages.iter().for_each(|message| write_one(writer, message));
}

fn write_one(writer: &mut Writer, message: &LimitMessage) {
    match message {
        LimitMessage::Ask { id, tenant, limits, tokens } => writer.record(ASK, |writer| {
            write_lease(writer, &HeldLease { id: *id, tenant: *tenant, limits: *limits, tokens: *tokens });
        }),
        LimitMessage::Answer { id, refused } => writer.record(ANSWER, |writer| {
            writer.varint(*id);
            writer.byte(refused.map_or(0, |refused| limit_code(refused.limit)));
            writer.varint(refused.map_or(0, |refused| refused.retry_after_s).into());
        }),
        LimitMessage::Extend { id, tokens } => writer.record(EXTEND, |writer| {
            writer.varint(*id);
            writer.varint((*tokens).into());
        }),
        LimitMessage::Settle { id, tokens } => writer.record(SETTLE, |writer| {
            writer.varint(*id);
            writer.varint((*tokens).into());
        }),
        LimitMessage::Return { id } => writer.record(RETURN, |writer| writer.varint(*id)),
        LimitMessage::Held { first, last, leases, pending } => writer.record(HELD, |writer| {
            writer.varint(*first);
            writer.varint(*last);
            writer.varint(leases.len() as u64);
            leases.iter().for_each(|lease| write_lease(writer, lease));
            writer.varint(pending.len() as u64);
            pending.iter().for_each(|&id| writer.varint(id));
        }),
        LimitMessage::Level { tenant, level } => writer.record(LEVEL, |writer| {
            writer.hash(*tenant);
            write_limit_numbers(writer, level.limits);
            [level.requests, level.tokens].into_iter().for_each(|level| write_level(writer, level));
        }),
    }
}

fn write_lease(writer: &mut Writer, lease: &HeldLease) {
    writer.varint(lease.id);
    writer.hash(lease.tenant);
    write_limit_numbers(writer, lease.limits);
    writer.varint(lease.tokens.into());
}

fn write_limit_numbers(writer: &mut Writer, limits: Limits) {
    let Limits { requests_per_minute, tokens_per_minute, concurrent } = limits;
    [requests_per_minute, tokens_per_minute, concurrent]
        .into_iter()
        .for_each(|number| writer.varint(number.into()));
}

/// A number that may be negative, with its sign in the lowest bit.
fn write_level(writer: &mut Writer, level: f64) {
    let units = ((level * LEVEL_UNITS).round() as i64).clamp(-LEVEL_UNITS_MAX, LEVEL_UNITS_MAX);
    writer.varint((units << 1 ^ units >> 63) as u64);
}

/// Reads the records of a message; unknown kinds are skipped.
pub(crate) fn read_limits(records: &mut Reader<'_>) -> Result<Vec<LimitMessage>, BadMessage> {
    let mut messages = Vec::new();
    while let Some((kind, mut body)) = records.record()? {
        messages.extend(read_one(kind, &mut body)?);
    }
    Ok(messages)
}

fn read_one(kind: u8, body: &mut Reader<'_>) -> Result<Option<LimitMessage>, BadMessage> {
    Ok(Some(match kind {
        ASK => {
            let HeldLease { id, tenant, limits, tokens } = read_lease(body)?;
            LimitMessage::Ask { id, tenant, limits, tokens }
        }
        ANSWER => {
            let (id, code, retry_after_s) = (body.varint()?, body.byte()?, body.varint_u32()?);
            let limit = read_limit(code)?;
            LimitMessage::Answer { id, refused: limit.map(|limit| Exceeded { limit, retry_after_s }) }
        }
        EXTEND => LimitMessage::Extend { id: body.varint()?, tokens: body.varint_u32()? },
        SETTLE => LimitMessage::Settle { id: body.varint()?, tokens: body.varint_u32()? },
        RETURN => LimitMessage::Return { id: body.varint()? },
        HELD => {
            let (first, last) = (body.varint()?, body.varint()?);
            let mut leases = Vec::new();
            for _ in 0..body.varint()? {
                leases.push(read_lease(body)?);
            }
            let mut pending = Vec::new();
            for _ in 0..body.varint()? {
                pending.push(body.varint()?);
            }
            LimitMessage::Held { first, last, leases, pending }
        }
        LEVEL => {
            let (tenant, limits) = (body.hash()?, read_limit_numbers(body)?);
            let level = TenantLevel { limits, requests: read_level(body)?, tokens: read_level(body)? };
            LimitMessage::Level { tenant, level }
        }
        _ => return Ok(None),
    }))
}

fn read_lease(reader: &mut Reader<'_>) -> Result<HeldLease, BadMessage> {
    let (id, tenant) = (reader.varint()?, reader.hash()?);
    Ok(HeldLease { id, tenant, limits: read_limit_numbers(reader)?, tokens: reader.varint_u32()? })
}

fn read_limit_numbers(reader: &mut Reader<'_>) -> Result<Limits, BadMessage> {
    Ok(Limits {
        requests_per_minute: reader.varint_u32()?,
        tokens_per_minute: reader.varint_u32()?,
        concurrent: reader.varint_u32()?,
    })
}

fn read_level(reader: &mut Reader<'_>) -> Result<f64, BadMessage> {
    let coded = reader.varint()?;
    let units = (coded >> 1) as i64 ^ -((coded & 1) as i64);
    match (-LEVEL_UNITS_MAX..=LEVEL_UNITS_MAX).contains(&units) {
        true => Ok(units as f64 / LEVEL_UNITS),
        false => Err(BadMessage::Malformed),
    }
}

fn limit_code(limit: Limit) -> u8 {
    match limit {
        Limit::Requests => 1,
        Limit::Tokens => 2,
        Limit::Concurrent => 3,
    }
}

fn read_limit(code: u8) -> Result<Option<Limit>, BadMessage> {
    match code {
        0 => Ok(None),
        1 => Ok(Some(Limit::Requests)),
        2 => Ok(Some(Limit::Tokens)),
        3 => Ok(Some(Limit::Concurrent)),
        _ => Err(BadMessage::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerMessage;
    use proptest::prelude::*;
    use warmroute_types::RouterId;

    fn limits() -> impl Strategy<Value = Limits> {
        (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
            |(requests_per_minute, tokens_per_minute, concurrent)| Limits {
                requests_per_minute,
                tokens_per_minute,
                concurrent,
            },
        )
    }

    fn lease() -> impl Strategy<Value = HeldLease> {
        (any::<u64>(), any::<u64>(), limits(), any::<u32>())
            .prop_map(|(id, tenant, limits, tokens)| HeldLease { id, tenant, limits, tokens })
    }

    fn message() -> impl Strategy<Value = LimitMessage> {
        let limit = prop_oneof![Just(Limit::Requests), Just(Limit::Tokens), Just(Limit::Concurrent)];
        let refused =
            (limit, any::<u32>()).prop_map(|(limit, retry_after_s)| Exceeded { limit, retry_after_s });
        let level =
            (limits(), any::<i32>(), any::<i32>()).prop_map(|(limits, requests, tokens)| TenantLevel {
                limits,
                requests: f64::from(requests) / 1_000.0,
                tokens: f64::from(tokens) / 1_000.0,
            });
        prop_oneof![
            lease().prop_map(|HeldLease { id, tenant, limits, tokens }| LimitMessage::Ask {
                id,
                tenant,
                limits,
                tokens
            }),
            (any::<u64>(), proptest::option::of(refused))
                .prop_map(|(id, refused)| LimitMessage::Answer { id, refused }),
            (any::<u64>(), any::<u32>()).prop_map(|(id, tokens)| LimitMessage::Extend { id, tokens }),
            (any::<u64>(), any::<u32>()).prop_map(|(id, tokens)| LimitMessage::Settle { id, tokens }),
            any::<u64>().prop_map(|id| LimitMessage::Return { id }),
            (
                any::<u64>(),
                any::<u64>(),
                proptest::collection::vec(lease(), 0..5),
                proptest::collection::vec(any::<u64>(), 0..5)
            )
                .prop_map(|(first, last, leases, pending)| LimitMessage::Held {
                    first,
                    last,
                    leases,
                    pending
                }),
            (any::<u64>(), level).prop_map(|(tenant, level)| LimitMessage::Level { tenant, level }),
        ]
    }

    proptest! {
        #[test]
        fn messages_about_limits_mean_the_same_when_read(
            messages in proptest::collection::vec(message(), 0..9),
        ) {
            let sent = PeerMessage::Limits { from: RouterId(7), messages };
            prop_assert_eq!(PeerMessage::decode(&sent.encode()), Ok(Some(sent)));
        }
    }

    #[test]
    fn a_long_count_without_its_entries_is_refused_at_once() {
        let mut writer = Writer::default();
        writer.record(HELD, |writer| [0, 9, u64::MAX].into_iter().for_each(|number| writer.varint(number)));
        assert_eq!(read_limits(&mut Reader::new(&writer.bytes)), Err(BadMessage::Truncated));
    }
}
