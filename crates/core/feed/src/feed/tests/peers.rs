//! A peer's state in place of a replay.

use warmroute_types::Restored;

use super::*;

/// A peer's state of a process from one batch up to another.
fn known(process: u64, seq: u64, floor_seq: u64) -> EventBatch {
    let known = Restored { bytes: [].into(), group: None, floor_seq };
    EventBatch { events: vec![CacheEvent::Restored(known)], ..batch(process, seq) }
}

impl Script {
    fn restore(&mut self, process: u64, seq: u64, floor_seq: u64) -> bool {
        self.feed.restored(seq, known(process, seq, floor_seq), self.now, &mut self.steps)
    }
}

#[test]
fn live_batches_continue_from_a_peers_state() {
    let mut script = Script::new();
    script.connect();
    script.hear(1, 5);
    script.hear(1, 6);
    script.hear(1, 7);
    script.expect("?0");
    assert!(script.restore(1, 5, 0));
    script.expect("=0 +1006 +1007 reported");
    assert_eq!(script.feed.counters().next_seq, Some(8));
    script.hear(1, 5);
    script.expect("");
    assert_eq!(script.feed.extent().map(|known| (known.seq, known.floor_seq)), Some((7, 0)));
}

#[test]
fn a_gap_between_a_peers_state_and_live_batches_is_requested() {
    let mut script = Script::new();
    script.connect();
    script.hear(1, 9);
    script.steps.clear();
    assert!(script.restore(1, 5, 0));
    script.expect("=0 ?6 reported");
    assert!(!script.restore(1, 5, 0), "it fills no gap");
    script.expect("+1009 uncertain");
}

#[test]
fn a_peers_state_of_another_process_is_detected() {
    let mut script = Script::new();
    script.connect();
    script.hear(2, 3);
    script.steps.clear();
    assert!(script.restore(1, 50, 0));
    script.expect("=0 ! ?0");
}

#[test]
fn a_peers_state_that_begins_no_earlier_is_ignored() {
    let mut script = Script::new();
    script.connect();
    script.replay(1, 4);
    script.end(ReplayEnd::Complete);
    script.steps.clear();
    script.feed.request_history(&mut script.steps);
    script.hear(1, 5);
    script.expect("?0");
    assert!(!script.restore(1, 5, 4));
    script.expect("+1005");
    script.feed.request_history(&mut script.steps);
    script.expect("?0");
    assert!(script.restore(1, 5, 2));
    script.expect("=2");
    assert_eq!((script.feed.view(), script.feed.counters().floor_seq), (View::Reported, Some(2)));
    assert!(!script.restore(1, 9, 0), "no replay was requested");
}
