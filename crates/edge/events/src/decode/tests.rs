//! The decoder on payloads that real engines sent, and on payloads that no engine would send.

use serde_json::Value;
use warmroute_types::{Attention, Group, Medium, RemovedBlocks, StoredBlocks, UnfollowedKind};

use super::*;

fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(value).collect();
    let mut bytes = Vec::new();
    for four in digits.chunks(4) {
        let bits =
            four.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

/// A hash as a capture's decoder wrote it.
fn name(value: &Value) -> u64 {
    match value {
        Value::Object(bytes) => {
            let hex = bytes["bytes_hex"].as_str().unwrap();
            let pairs = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
            super::fields::digest_name(&pairs.collect::<Vec<_>>())
        }
        number => number.as_u64().unwrap_or_else(|| number.as_i64().unwrap() as u64),
    }
}

/// A field of an event in either encoding.
fn field<'a>(event: &'a Value, at: usize, key: &str) -> &'a Value {
    match event {
        Value::Array(fields) => fields.get(at).unwrap_or(&Value::Null),
        map => &map[key],
    }
}

fn names(event: &Value) -> Vec<u64> {
    field(event, 1, "block_hashes").as_array().unwrap().iter().map(name).collect()
}

/// The result of an independent decoder, in our types. Consecutive removals are one event.
fn expected(decoded: &Value) -> Vec<CacheEvent> {
    let mut events: Vec<CacheEvent> = Vec::new();
    for event in decoded[1].as_array().unwrap() {
        let next = match field(event, 0, "type").as_str().unwrap() {
            "BlockStored" => CacheEvent::Stored(expected_stored(event)),
            "BlockRemoved" => {
                CacheEvent::Removed(RemovedBlocks { names: names(event), ..RemovedBlocks::default() })
            }
            _ => CacheEvent::Cleared,
        };
        match (events.last_mut(), next) {
            (Some(CacheEvent::Removed(last)), CacheEvent::Removed(next)) => last.names.extend(next.names),
            (_, next) => events.push(next),
        }
    }
    events
}

fn expected_stored(event: &Value) -> StoredBlocks {
    let parent = field(event, 2, "parent_block_hash");
    let tokens = field(event, 3, "token_ids").as_array().unwrap();
    let names = names(event);
    StoredBlocks {
        text_blocks: names.len() as u32,
        names,
        parent: (!parent.is_null()).then(|| name(parent)),
        tokens: tokens.iter().map(|token| token.as_u64().unwrap() as u32).collect(),
        block_tokens: field(event, 4, "block_size").as_u64().unwrap() as u32,
        salt: field(event, 8, "extra_keys")[0][0].as_str().map(Into::into),
        ..StoredBlocks::default()
    }
}

#[track_caller]
fn check(label: &str, capture: &Value) {
    let batch = decode(&base64(capture["payload_b64"].as_str().unwrap())).unwrap();
    let decoded = &capture["decoded"];
    assert_eq!(batch.events, expected(decoded), "{label}");
    let late_s = batch.at_unix_s - decoded[0].as_f64().unwrap();
    assert!(late_s.abs() < 1e-5, "{label}: decimal digits lose the last bit, {late_s}");
    assert_eq!(batch.rank.map(u64::from), decoded[2].as_u64(), "{label}");
    assert_eq!(batch.unreadable, 0, "{label}");
}

#[test]
fn every_version_from_vllm_0_9_and_sglang_0_4_is_read() {
    let fixtures: Vec<Value> =
        serde_json::from_str(include_str!("../../tests/captures/schema_fixtures.json")).unwrap();
    assert_eq!(fixtures.len(), 16);
    fixtures.iter().for_each(|fixture| check(fixture["name"].as_str().unwrap(), fixture));
}

#[test]
fn captures_of_running_engines_are_read() {
    for (label, lines, count) in [
        ("0.15.1", include_str!("../../tests/captures/vllm-0.15.1.jsonl"), 14),
        ("0.32.0", include_str!("../../tests/captures/vllm-0.32.0.jsonl"), 15),
        ("rank 0", include_str!("../../tests/captures/vllm-0.32.0-dp2-rank0.jsonl"), 3),
        ("rank 1", include_str!("../../tests/captures/vllm-0.32.0-dp2-rank1.jsonl"), 2),
    ] {
        let captures: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(captures.len(), count, "{label}");
        captures.iter().for_each(|capture| check(label, capture));
    }
}

/// A writer of MessagePack, for events that no capture contains.
#[derive(Default)]
struct Pack(Vec<u8>);

impl Pack {
    fn batch(events: &[Pack]) -> Vec<u8> {
        let mut pack = Pack(vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90 | events.len() as u8]);
        events.iter().for_each(|event| pack.0.extend(&event.0));
        pack.0.push(0x03);
        pack.0
    }

    fn array(count: u8) -> Pack {
        Pack(vec![0x90 | count])
    }

    fn map(count: u8) -> Pack {
        Pack(vec![0x80 | count])
    }

    fn with(mut self, bytes: &[u8]) -> Pack {
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(mut self, text: &str) -> Pack {
        self.0.extend([0xd9, text.len() as u8]);
        self.0.extend_from_slice(text.as_bytes());
        self
    }
}

const NIL: &[u8] = &[0xc0];

/// `["BlockStored", [1, 2], nil, [7, 8], 1, nil, …]` with these further fields.
fn stored_array(more: &[Pack]) -> Pack {
    let mut event = Pack::array(6 + more.len() as u8).text("BlockStored");
    event = event.with(&[0x92, 1, 2]).with(NIL).with(&[0x92, 7, 8]).with(&[1]).with(NIL);
    more.iter().for_each(|field| event.0.extend(&field.0));
    event
}

fn stored(event: Pack) -> StoredBlocks {
    let batch = decode(&Pack::batch(&[event])).unwrap();
    assert_eq!((batch.unreadable, batch.rank), (0, Some(3)));
    match batch.events.as_slice() {
        [CacheEvent::Stored(stored)] => stored.clone(),
        other => panic!("{other:?}"),
    }
}

fn text(text: &str) -> Pack {
    Pack::default().text(text)
}

fn nil() -> Pack {
    Pack::default().with(NIL)
}

#[test]
fn media_are_tiers() {
    for (name, medium) in [
        ("GPU", Medium::Gpu),
        ("CPU", Medium::Host),
        ("CPU_PINNED", Medium::Host),
        ("DISK", Medium::Disk),
        ("STORAGE", Medium::Disk),
        ("EXTERNAL", Medium::External),
        ("SOMETHING_NEW", Medium::External),
    ] {
        assert_eq!(stored(stored_array(&[text(name)])).medium, medium, "{name}");
    }
    let remote = Pack::map(6).text("type").text("BlockStored").text("block_hashes").with(&[0x91, 1]);
    let remote = remote.text("token_ids").with(&[0x91, 7]).text("block_size").with(&[1]);
    let remote = remote.text("medium").text("GPU").text("locality").text("REMOTE");
    assert_eq!(stored(remote).medium, Medium::External);
}

/// vLLM's offloading connector: a digest where other events have a number, no tokens, a block size of zero.
#[test]
fn blocks_in_slower_memory_may_be_reported_by_name() {
    let digest = Pack::default().with(&[0x91, 0xc4, 10, 9, 9]).with(&0x0102_0304_0506_0708_u64.to_be_bytes());
    let offloaded = |medium: &str| {
        let event = Pack::map(6).text("type").text("BlockStored").text("block_hashes").with(&digest.0);
        let event = event.text("parent_block_hash").with(NIL).text("token_ids").with(&[0x90]);
        stored(event.text("block_size").with(&[0]).text("medium").text(medium))
    };
    let host = offloaded("CPU");
    assert_eq!((host.names.as_slice(), host.medium), (&[0x0102_0304_0506_0708][..], Medium::Host));
    assert!(host.is_by_name() && host.group.attention == Attention::Full);
    assert_eq!(offloaded("GPU").group.attention, Attention::Unplaced, "there nothing is known by name");
}

#[test]
fn sglangs_salt_is_a_map_where_the_adapters_name_would_be() {
    let salt = Pack::map(1).text("cache_salt").text("tenant");
    assert_eq!(stored(stored_array(&[text("GPU"), salt])).salt.as_deref(), Some("tenant"));
}

#[test]
fn adapters_have_a_name_or_a_number() {
    assert_eq!(stored(stored_array(&[text("GPU"), text("poet")])).lora.as_deref(), Some("poet"));
    let mut numbered = stored_array(&[]);
    *numbered.0.last_mut().unwrap() = 4;
    assert_eq!(stored(numbered).lora.as_deref(), Some("#4"));
}

#[test]
fn matching_ends_at_the_first_image_and_the_salt_is_read() {
    let keys = |first: Pack, second: Pack| Pack::array(2).with(&first.0).with(&second.0);
    let image = Pack::array(1).with(&Pack::array(2).text("a1b2").with(&[3]).0);
    let event = stored(stored_array(&[
        text("GPU"),
        text("poet"),
        keys(Pack::array(2).text("poet").text("salt"), image),
    ]));
    assert_eq!(
        (event.text_blocks, event.salt.as_deref(), event.lora.as_deref()),
        (1, Some("salt"), Some("poet"))
    );
    assert_eq!((event.media_blocks, event.media.len()), (0, 0), "it begins outside its block");
    let bare_hash = Pack::array(1).text(&"ab".repeat(32));
    let event = stored(stored_array(&[text("GPU"), nil(), keys(bare_hash, nil())]));
    assert_eq!((event.text_blocks, event.salt), (0, None), "until 0.18 an image was a bare hash");
}

#[test]
fn media_are_read_with_their_places() {
    let medium = |hash: &str, offset: u8| Pack::array(2).text(hash).with(&[offset]);
    let of = |first: Pack, second: Pack| {
        let event = Pack::map(6).text("type").text("BlockStored").text("block_hashes").with(&[0x92, 3, 4]);
        let event = event.text("parent_block_hash").with(NIL).text("token_ids").with(&[0x94, 1, 2, 3, 4]);
        let event = event.text("block_size").with(&[2]).text("extra_keys");
        stored(event.with(&Pack::array(2).with(&first.0).with(&second.0).0))
    };
    let one = |medium: Pack| Pack::array(1).with(&medium.0);
    // One medium from the second token on, which the second block continues: its start is one token before it.
    let event = of(one(medium("a1", 1)), one(medium("a1", 0xff)));
    assert_eq!((event.text_blocks, event.media_blocks), (0, 2));
    assert_eq!(event.media.iter().map(|start| start.token).collect::<Vec<_>>(), [1]);
    let both = of(one(medium("a1", 0)), one(medium("b2", 1)));
    assert_eq!(both.media.iter().map(|start| start.token).collect::<Vec<_>>(), [0, 3]);
    assert_ne!(both.media[0].hash, both.media[1].hash);
    // A key of another kind ends what the tokens and media determine.
    let unknown = of(one(medium("a1", 0)), Pack::array(1).with(&[0xc4, 2, 9, 9]));
    assert_eq!((unknown.text_blocks, unknown.media_blocks), (0, 1));
    let backwards = of(Pack::array(2).with(&medium("a1", 1).0).with(&medium("b2", 0).0), nil());
    assert_eq!((backwards.media_blocks, backwards.media.len()), (0, 1), "not in order");
}

#[test]
fn each_kind_of_cache_has_its_rule() {
    use Attention::{Full, State, Unfollowed, Window};
    use UnfollowedKind::{ChunkedLocal, Unknown, Unstated, WindowWithoutSize};
    let of = |kind: Pack, window: Pack| {
        let group = Pack::default().with(&[2]);
        stored(stored_array(&[text("GPU"), nil(), nil(), group, kind, window])).group
    };
    // Every `KVCacheSpecKind` of vLLM 0.22 to 0.32, and the field beside it, in both of its values.
    for (kind, sized, unsized_rule) in [
        ("full_attention", Full, Full),
        ("mla_attention", Full, Full),
        ("sink_full_attention", Full, Full),
        ("sliding_window", Window { tokens: 128 }, Unfollowed(WindowWithoutSize)),
        ("sliding_window_mla", Window { tokens: 128 }, Unfollowed(WindowWithoutSize)),
        ("mamba", State, State),
        ("chunked_local_attention", Unfollowed(ChunkedLocal), Unfollowed(ChunkedLocal)),
        ("encoder_only_attention", Unfollowed(Unknown), Unfollowed(Unknown)),
        ("cross_attention", Unfollowed(Unknown), Unfollowed(Unknown)),
        ("unknown", Unfollowed(Unknown), Unfollowed(Unknown)),
    ] {
        let window = || Pack::default().with(&[0xcc, 128]);
        assert_eq!(of(text(kind), window()), Group { index: 2, attention: sized }, "{kind}");
        assert_eq!(of(text(kind), nil()), Group { index: 2, attention: unsized_rule }, "{kind}");
    }
    assert_eq!(of(nil(), nil()).attention, Unfollowed(Unstated), "a further group of vLLM 0.20 and 0.21");
    assert_eq!(stored(stored_array(&[])).group, Group::default(), "before 0.20 there is one group");
}

/// What vLLM's tests of its hybrid cache publish: two groups, of which the second caches the last blocks only.
#[test]
fn groups_that_name_fewer_blocks_than_their_tokens_fill_keep_their_rule() {
    let window = Pack::map(10).text("type").text("BlockStored").text("block_hashes").with(&[0x92, 3, 4]);
    let window =
        window.text("parent_block_hash").with(NIL).text("token_ids").with(&[0x98, 1, 2, 3, 4, 5, 6, 7, 8]);
    let window = window.text("block_size").with(&[2]).text("lora_id").with(NIL).text("medium").text("GPU");
    let window = window.text("group_idx").with(&[1]).text("kv_cache_spec_kind").text("sliding_window");
    let event = stored(window.text("kv_cache_spec_sliding_window").with(&[4]));
    assert_eq!(event.group, Group { index: 1, attention: Attention::Window { tokens: 4 } });
    assert_eq!((event.names.as_slice(), event.tokens.len()), (&[3, 4][..], 8));
}

#[test]
fn blocks_that_depend_on_tokens_after_them_are_not_followed() {
    let of = |value: &[u8]| {
        let event = Pack::map(6).text("type").text("BlockStored").text("block_hashes").with(&[0x91, 3]);
        let event = event.text("parent_block_hash").with(NIL).text("token_ids").with(&[0x92, 1, 2]);
        let event = event.text("block_size").with(&[2]).text("lookahead_token_ids").with(value);
        stored(event).group.attention
    };
    assert_eq!(of(NIL), Attention::Full);
    assert_eq!(of(&[0x91, 7]), Attention::Unfollowed(UnfollowedKind::Lookahead));
    assert_eq!(of(&[0x91, 0x91, 7]), Attention::Unfollowed(UnfollowedKind::Lookahead));
}

#[test]
fn full_attention_that_names_too_few_blocks_has_no_positions() {
    let mut short = stored_array(&[]);
    let at = short.0.windows(3).position(|window| window == [0x92, 7, 8]).unwrap();
    short.0.splice(at..at + 3, [0x93, 7, 8, 9]);
    assert_eq!(stored(short).group.attention, Attention::Unplaced, "fewer blocks than the tokens fill");
}

#[test]
fn pairs_of_tokens_are_read_as_their_first() {
    let mut pairs = stored_array(&[]);
    let at = pairs.0.windows(3).position(|window| window == [0x92, 7, 8]).unwrap();
    pairs.0.splice(at..at + 3, [0x92, 0x92, 7, 8, 0x92, 8, 9]);
    assert_eq!(stored(pairs).tokens, [7, 8]);
}

#[test]
fn unknown_kinds_fields_and_positions_are_skipped() {
    let unknown = Pack::array(2).text("BlockMoved").with(&[0x81, 1, 2]);
    let longer = Pack::array(3).text("AllBlocksCleared").with(&[0x91, 5]).with(NIL);
    let fields = Pack::map(2).text("why").with(&[0x91, 0x90]).text("type").text("AllBlocksCleared");
    let batch = decode(&Pack::batch(&[unknown, longer, fields])).unwrap();
    assert_eq!((batch.events.len(), batch.unreadable, batch.rank), (2, 0, Some(3)));
}

#[test]
fn a_bad_event_does_not_affect_the_others() {
    let good = || Pack::array(2).text("BlockRemoved").with(&[0x91, 9]);
    let bad = [
        Pack::array(2).text("BlockRemoved").with(NIL),
        Pack::array(2).text("BlockRemoved").with(&[0x91, 0xc2]),
        Pack::array(1).text("BlockStored"),
        Pack::map(1).text("kind").text("BlockStored"),
        Pack::default().with(&[42]),
        Pack::array(1).with(&[7]),
    ];
    for bad in bad {
        let batch = decode(&Pack::batch(&[good(), bad, good()])).unwrap();
        assert_eq!((batch.unreadable, batch.rank), (1, Some(3)));
        let both = RemovedBlocks { names: vec![9, 9], ..RemovedBlocks::default() };
        assert_eq!(batch.events, [CacheEvent::Removed(both)]);
    }
}

#[test]
fn a_truncated_batch_keeps_the_events_before_the_end() {
    let whole = Pack::batch(&[Pack::array(1).text("AllBlocksCleared"), stored_array(&[]), stored_array(&[])]);
    let batch = decode(&whole[..40]).unwrap();
    assert_eq!((batch.events.as_slice(), batch.unreadable), (&[CacheEvent::Cleared][..], 2));
}

#[test]
fn a_payload_that_is_not_a_batch_is_refused() {
    for bytes in [&b""[..], b"{}", &[0x91, 1], &[0x92, 1, 2], &[0x92, 0xa1, b'x', 0x90]] {
        assert_eq!(decode(bytes), Err(BadBatch), "{bytes:?}");
    }
}

#[test]
fn invalid_times_are_zero() {
    let nan = [&[0x92, 0xcb][..], &f64::NAN.to_be_bytes(), &[0x90]].concat();
    assert_eq!(decode(&nan).unwrap().at_unix_s, 0.0);
}

/// A batch of removals, each of so many blocks with names of one byte.
fn removals(counts: &[u32]) -> Vec<u8> {
    let mut payload = vec![0x92, 1, 0x90 | counts.len() as u8];
    for &count in counts {
        payload.extend_from_slice(b"\x92\xacBlockRemoved\xdd");
        payload.extend_from_slice(&count.to_be_bytes());
        payload.resize(payload.len() + count as usize, 7);
    }
    payload
}

#[test]
fn a_batch_with_too_many_blocks_is_unreadable() {
    let read = |counts: &[u32]| {
        let batch = decode(&removals(counts)).unwrap();
        (batch.blocks().1, batch.unreadable)
    };
    let most = super::fields::BLOCKS_MAX as u32;
    assert_eq!(read(&[most]), (u64::from(most), 0));
    assert_eq!(read(&[most + 1]), (0, 1));
    assert_eq!(read(&[600_000, 600_000, 1]), (600_000, 2), "together they are too many");
}
