//! Fuzz target: nothing that an engine or a reporter sends becomes larger than its bytes.

use std::sync::Arc;

use warmroute_feed::Step;
use warmroute_types::{Address, CacheEvent, EventBatch};

use crate::json::{read_json, read_msgpack};
use crate::{
    Accepted, EventSink, InboxConfig, PostRefused, ReportInbox, decode, read_server_info, read_vllm_sources,
    trtllm,
};

const URL: &str = "http://10.0.0.7:8000";

/// A payload, a post, or an engine's response: each input is tried as each.
pub fn batch(input: &[u8]) {
    if let Ok(batch) = decode(input) {
        batch_is_no_larger_than(&batch, input.len());
        assert_eq!(decode(input), Ok(batch), "the same bytes, the same events");
    }
    for post in [read_json(input), read_msgpack(input)].into_iter().flatten() {
        batch_is_no_larger_than(&post.batch, input.len());
    }
    let mut window_max = 0;
    for outcome in trtllm::read(input, &mut window_max).into_iter().flatten() {
        batch_is_no_larger_than(&outcome.batch, input.len());
    }
    for sources in [read_vllm_sources(input, URL), read_server_info(input, URL)] {
        match sources {
            Ok(sources) => assert!(sources.len() <= 1_024.max(input.len())),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
    posts_are_applied_once(input);
}

/// Every name, token and event takes at least one byte of input.
fn batch_is_no_larger_than(batch: &EventBatch, bytes: usize) {
    let parts: usize = batch.events.iter().map(parts).sum();
    assert!(parts <= bytes, "{parts} parts of {bytes} bytes");
    assert!(batch.at_unix_s.is_finite());
}

fn parts(event: &CacheEvent) -> usize {
    match event {
        CacheEvent::Stored(stored) => stored.names.len() + stored.tokens.len() + stored.media.len(),
        CacheEvent::Removed(removed) => removed.names.len(),
        CacheEvent::Cleared => 1,
    }
}

/// A sink that applies nothing.
struct NullSink;

impl EventSink for NullSink {
    fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
        steps.clear();
    }
}

/// An accepted post is not requested again, and a refused one has a reason.
fn posts_are_applied_once(input: &[u8]) {
    for content_type in ["application/json", "application/msgpack"] {
        let inbox = ReportInbox::new(InboxConfig::default(), Arc::new(NullSink));
        let post = || inbox.post(&Address::new(URL), content_type, input);
        match post() {
            Ok(Accepted { next_seq, .. }) => {
                assert!(next_seq > 0);
                assert_eq!(post().map(|accepted| accepted.next_seq), Ok(next_seq));
            }
            Err(PostRefused::Gap { expected }) => assert_eq!(expected, 0, "nothing was taken yet"),
            Err(refused) => assert!(!refused.to_string().is_empty() && refused.status() >= 400),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_input_becomes_larger_than_its_bytes() {
        warmroute_fuzz::try_out("batch", super::batch);
    }
}
