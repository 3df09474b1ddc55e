//! A sibling's knowledge in place of a replay.

use warmroute_types::Restored;

use super::*;

/// What a sibling knows of a process up to a batch, from another one on.
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
fn what_comes_live_goes_on_from_where_a_sibling_ends() {
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
fn what_lies_between_a_sibling_and_what_is_live_is_asked_for() {
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
fn a_sibling_that_knew_another_process_is_found_out() {
    let mut script = Script::new();
    script.connect();
    script.hear(2, 3);
    script.steps.clear();
    assert!(script.restore(1, 50, 0));
    script.expect("=0 ! ?0");
}

#[test]
fn one_that_begins_no_earlier_has_nothing_to_tell() {
    let mut script = Script::new();
    script.connect();
    script.replay(1, 4);
    script.end(ReplayEnd::Complete);
    script.steps.clear();
    script.feed.deepen(&mut script.steps);
    script.hear(1, 5);
    script.expect("?0");
    assert!(!script.restore(1, 5, 4));
    script.expect("+1005");
    script.feed.deepen(&mut script.steps);
    script.expect("?0");
    assert!(script.restore(1, 5, 2));
    script.expect("=2");
    assert_eq!((script.feed.view(), script.feed.counters().floor_seq), (View::Reported, Some(2)));
    assert!(!script.restore(1, 9, 0), "nobody asked");
}
