//! Fuzz target: whatever an engine or a reporter tells, nothing in it is made larger than it is.

use std::sync::Arc;

use warmroute_feed::Step;
use warmroute_types::{Address, CacheEvent, EventBatch};

use crate::json::{read_json, read_msgpack};
use crate::{
    Accepted, Inbox, InboxConfig, Listener, Refused, decode, read_server_info, read_vllm_sources, trtllm,
};

const URL: &str = "http://10.0.0.7:8000";

/// A payload, a post, or an answer of an engine: each is tried as each.
pub fn batch(input: &[u8]) {
    if let Ok(batch) = decode(input) {
        batch_is_no_larger_than(&batch, input.len());
        assert_eq!(decode(input), Ok(batch), "the same bytes, the same events");
    }
    for post in [read_json(input), read_msgpack(input)].into_iter().flatten() {
        batch_is_no_larger_than(&post.batch, input.len());
    }
    let mut window_max = 0;
    for told in trtllm::read(input, &mut window_max).into_iter().flatten() {
        batch_is_no_larger_than(&told.batch, input.len());
    }
    for sources in [read_vllm_sources(input, URL), read_server_info(input, URL)] {
        match sources {
            Ok(sources) => assert!(sources.len() <= 1_024.max(input.len())),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
    posts_are_taken_once(input);
}

/// Every name, token and event was written by somebody, in a byte at least.
fn batch_is_no_larger_than(batch: &EventBatch, bytes: usize) {
    let parts: usize = batch.events.iter().map(parts).sum();
    assert!(parts <= bytes, "{parts} parts of {bytes} bytes");
    assert!(batch.at_unix_s.is_finite());
}

fn parts(event: &CacheEvent) -> usize {
    match event {
        CacheEvent::Stored(stored) => stored.names.len() + stored.tokens.len(),
        CacheEvent::Removed(removed) => removed.names.len(),
        CacheEvent::Cleared | CacheEvent::Restored(_) => 1,
    }
}

/// Applies nothing, and remembers nothing.
struct Deaf;

impl Listener for Deaf {
    fn hear(&self, _: &Address, steps: &mut Vec<Step>) {
        steps.clear();
    }
}

/// A post that was taken is not asked for again, and one that was refused has a reason.
fn posts_are_taken_once(input: &[u8]) {
    for content_type in ["application/json", "application/msgpack"] {
        let inbox = Inbox::new(InboxConfig::default(), Arc::new(Deaf));
        let post = || inbox.post(&Address::new(URL), content_type, input);
        match post() {
            Ok(Accepted { next_seq, .. }) => {
                assert!(next_seq > 0);
                assert_eq!(post().map(|accepted| accepted.next_seq), Ok(next_seq));
            }
            Err(Refused::Gap { expected }) => assert_eq!(expected, 0, "nothing was taken yet"),
            Err(refused) => assert!(!refused.to_string().is_empty() && refused.status() >= 400),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_that_is_told_is_made_larger_than_it_is() {
        warmroute_fuzz::try_out("batch", super::batch);
    }
}
