//! Encoding of a batch of engine events for relaying: block names and keyed digests, never tokens.

use std::sync::Arc;

use warmroute_types::{
    Attention, CacheEvent, Cut, EventBatch, Group, Medium, RemovedBlocks, Restored, StoredBlocks,
};

use crate::codec::{BadMessage, Reader, Writer};

const STORED: u8 = 0;
const REMOVED: u8 = 1;
const CLEARED: u8 = 2;
const RESTORED: u8 = 3;

/// Longest name of a LoRA adapter.
const LORA_BYTES_MAX: usize = 1_024;

/// Encodes a batch. It contains block contents only as digests, never tokens or salts.
pub fn pack_events(batch: &EventBatch) -> Arc<[u8]> {
    let mut writer = Writer::default();
    writer.hash(batch.at_unix_s.to_bits());
    writer.hash(batch.print);
    writer.optional(batch.rank.map(u64::from));
    writer.varint(batch.unreadable.into());
    writer.varint(batch.events.len() as u64);
    batch.events.iter().for_each(|event| writer.block(|writer| write_event(writer, event)));
    writer.bytes.into()
}

/// Decodes the output of [`pack_events`]. Events of a later version count as unreadable.
pub fn unpack_events(bytes: &[u8]) -> Result<EventBatch, BadMessage> {
    let reader = &mut Reader::new(bytes);
    let at_unix_s = Some(f64::from_bits(reader.hash()?)).filter(|at| at.is_finite());
    let mut batch = EventBatch {
        at_unix_s: at_unix_s.ok_or(BadMessage::Malformed)?,
        print: reader.hash()?,
        rank: reader.optional()?.map(short).transpose()?,
        unreadable: reader.varint_u32()?,
        events: Vec::new(),
    };
    for _ in 0..reader.varint()? {
        match read_event(&mut reader.block()?)? {
            Some(event) => batch.events.push(event),
            None => batch.unreadable = batch.unreadable.saturating_add(1),
        }
    }
    Ok(batch)
}

fn short(number: u64) -> Result<u16, BadMessage> {
    u16::try_from(number).map_err(|_| BadMessage::Malformed)
}

fn write_event(writer: &mut Writer, event: &CacheEvent) {
    match event {
        CacheEvent::Stored(stored) => write_stored(writer, stored),
        CacheEvent::Removed(removed) => {
            writer.byte(REMOVED);
            writer.hashes(&removed.names);
            writer.byte(removed.medium as u8);
            writer.varint(removed.group.into());
        }
        CacheEvent::Cleared => writer.byte(CLEARED),
        CacheEvent::Restored(known) => {
            writer.byte(RESTORED);
            writer.optional(known.group.map(u64::from));
            writer.varint(known.floor_seq);
            writer.sized_bytes(&known.bytes);
        }
    }
}

fn write_stored(writer: &mut Writer, stored: &StoredBlocks) {
    writer.byte(STORED);
    writer.hashes(&stored.names);
    writer.byte(stored.parent.is_some().into());
    stored.parent.iter().for_each(|&parent| writer.hash(parent));
    writer.byte(stored.cut.is_some().into());
    if let Some(cut) = &stored.cut {
        writer.hash(cut.root);
        writer.varint(cut.spans.len() as u64);
        for &(digest, bytes) in &cut.spans {
            writer.hash(digest);
            writer.varint(bytes.into());
        }
    }
    writer.varint(stored.block_tokens.into());
    writer.varint(stored.text_blocks.into());
    writer.byte(stored.lora.is_some().into());
    stored.lora.iter().for_each(|lora| writer.sized_bytes(lora.as_bytes()));
    writer.byte(stored.medium as u8);
    writer.varint(stored.group.index.into());
    writer.byte((stored.group.attention == Attention::Other).into());
}

fn read_event(reader: &mut Reader<'_>) -> Result<Option<CacheEvent>, BadMessage> {
    Ok(match reader.byte()? {
        STORED => read_stored(reader)?.map(CacheEvent::Stored),
        REMOVED => {
            let names = reader.hashes()?.to_vec();
            let medium = read_medium(reader)?;
            let group = short(reader.varint()?)?;
            medium.map(|medium| CacheEvent::Removed(RemovedBlocks { names, medium, group }))
        }
        CLEARED => Some(CacheEvent::Cleared),
        RESTORED => Some(CacheEvent::Restored(Restored {
            group: reader.optional()?.map(short).transpose()?,
            floor_seq: reader.varint()?,
            bytes: reader.sized_bytes()?.into(),
        })),
        _ => None,
    })
}

fn read_stored(reader: &mut Reader<'_>) -> Result<Option<StoredBlocks>, BadMessage> {
    let names = reader.hashes()?.to_vec();
    let parent = if reader.presence()? { Some(reader.hash()?) } else { None };
    let cut = if reader.presence()? { Some(read_cut(reader, names.len())?) } else { None };
    let (block_tokens, text_blocks) = (reader.varint_u32()?, reader.varint_u32()?);
    let lora = if reader.presence()? { Some(read_lora(reader)?) } else { None };
    let medium = read_medium(reader)?;
    let index = short(reader.varint()?)?;
    let attention = if reader.presence()? { Attention::Other } else { Attention::Full };
    let group = Group { index, attention };
    let (tokens, salt) = (Vec::new(), None);
    let stored = |medium| StoredBlocks {
        names,
        parent,
        tokens,
        cut,
        block_tokens,
        text_blocks,
        lora,
        salt,
        medium,
        group,
    };
    Ok(medium.map(stored))
}

/// Reads one span per block.
fn read_cut(reader: &mut Reader<'_>, blocks: usize) -> Result<Cut, BadMessage> {
    let root = reader.hash()?;
    if reader.varint()? != blocks as u64 {
        return Err(BadMessage::Malformed);
    }
    let mut spans = Vec::with_capacity(blocks);
    for _ in 0..blocks {
        spans.push((reader.hash()?, reader.varint_u32()?));
    }
    Ok(Cut { root, spans })
}

fn read_lora(reader: &mut Reader<'_>) -> Result<Box<str>, BadMessage> {
    let text = Some(reader.sized_bytes()?).filter(|text| text.len() <= LORA_BYTES_MAX);
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    text.map(Into::into).ok_or(BadMessage::Malformed)
}

/// `None` for a medium that this version does not know.
fn read_medium(reader: &mut Reader<'_>) -> Result<Option<Medium>, BadMessage> {
    Ok(match reader.byte()? {
        0 => Some(Medium::Gpu),
        1 => Some(Medium::Host),
        2 => Some(Medium::Disk),
        3 => Some(Medium::External),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn medium() -> impl Strategy<Value = Medium> {
        prop_oneof![Just(Medium::Gpu), Just(Medium::Host), Just(Medium::Disk), Just(Medium::External)]
    }

    fn stored() -> impl Strategy<Value = StoredBlocks> {
        let spans = proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u32>()), 0..9);
        let more = (any::<bool>(), any::<u32>(), any::<u16>(), any::<bool>(), medium());
        (spans, proptest::option::of(any::<u64>()), proptest::option::of(".{0,9}"), more).prop_map(
            |(spans, parent, lora, (is_cut, number, index, is_full, medium))| StoredBlocks {
                names: spans.iter().map(|(name, ..)| *name).collect(),
                parent,
                cut: is_cut.then(|| Cut {
                    root: u64::from(number),
                    spans: spans.iter().map(|&(_, digest, bytes)| (digest, bytes)).collect(),
                }),
                block_tokens: number,
                text_blocks: number / 3,
                lora: lora.map(Into::into),
                medium,
                group: Group { index, attention: if is_full { Attention::Full } else { Attention::Other } },
                ..StoredBlocks::default()
            },
        )
    }

    fn event() -> impl Strategy<Value = CacheEvent> {
        let names = proptest::collection::vec(any::<u64>(), 0..9);
        let known =
            (proptest::collection::vec(any::<u8>(), 0..40), proptest::option::of(any::<u16>()), any::<u64>());
        prop_oneof![
            stored().prop_map(CacheEvent::Stored),
            (names, medium(), any::<u16>()).prop_map(|(names, medium, group)| CacheEvent::Removed(
                RemovedBlocks { names, medium, group }
            )),
            Just(CacheEvent::Cleared),
            known.prop_map(|(bytes, group, floor_seq)| {
                CacheEvent::Restored(Restored { bytes: bytes.into(), group, floor_seq })
            }),
        ]
    }

    proptest! {
        #[test]
        fn batches_survive_encoding(
            events in proptest::collection::vec(event(), 0..6), print: u64, unreadable: u32,
            rank in proptest::option::of(any::<u16>()), at_unix_s in 0.0..4e9_f64, part in 0.0..1.0_f64,
        ) {
            let batch = EventBatch { at_unix_s, events, rank, unreadable, print };
            let bytes = pack_events(&batch);
            prop_assert_eq!(unpack_events(&bytes), Ok(batch));
            prop_assert!(unpack_events(&bytes[..(bytes.len() as f64 * part) as usize]).is_err());
        }

        #[test]
        fn garbage_never_panics_when_unpacked(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            _ = unpack_events(&bytes);
        }
    }

    /// The encoding is frozen, like the messages that carry it.
    #[test]
    fn the_event_encoding_is_frozen() {
        let stored = StoredBlocks {
            names: vec![1],
            parent: Some(2),
            cut: Some(Cut { root: 3, spans: vec![(4, 5)] }),
            block_tokens: 16,
            text_blocks: 1,
            lora: Some("a".into()),
            medium: Medium::Host,
            group: Group { index: 1, attention: Attention::Other },
            ..StoredBlocks::default()
        };
        let removed = RemovedBlocks { names: vec![1], medium: Medium::Disk, group: 1 };
        let known = Restored { bytes: [9].into(), group: Some(0), floor_seq: 300 };
        let events = vec![
            CacheEvent::Stored(stored),
            CacheEvent::Removed(removed),
            CacheEvent::Cleared,
            CacheEvent::Restored(known),
        ];
        let batch = EventBatch { at_unix_s: 1.0, events, rank: Some(1), unreadable: 2, print: 7 };
        let encoded: String = pack_events(&batch).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(encoded, FROZEN);
    }

    const FROZEN: &str = "000000000000f03f07000000000000000202042e00010100000000000000010200000000000000010300\
        0000000000000104000000000000000510010101610101010c0101010000000000000002010102060301\
        ac020109";

    #[test]
    fn an_unknown_event_is_counted_and_the_others_are_read() {
        let of = |events| EventBatch { events, print: 7, ..EventBatch::default() };
        let known = pack_events(&of(vec![CacheEvent::Cleared]));
        let mut bytes = pack_events(&of(vec![CacheEvent::Cleared, CacheEvent::Cleared])).to_vec();
        // Makes the first event longer and gives it an unknown kind.
        let at = known.len() - 2;
        bytes.splice(at..at + 2, [4, 77, 1, 2, 3]);
        bytes.extend_from_slice(b"and more at the end");
        let batch = EventBatch { unreadable: 1, ..of(vec![CacheEvent::Cleared]) };
        assert_eq!(unpack_events(&bytes), Ok(batch));
    }

    #[test]
    fn tokens_and_salts_are_never_relayed() {
        let secret = StoredBlocks {
            names: vec![1],
            tokens: vec![0x7071_7273; 16],
            salt: Some("hush".into()),
            ..StoredBlocks::default()
        };
        let batch = EventBatch { events: vec![CacheEvent::Stored(secret)], ..EventBatch::default() };
        let bytes = pack_events(&batch);
        assert!(!bytes.windows(4).any(|four| four == b"hush" || four == b"srqp"));
    }
}
