//! The routing thread: one request after another, each at its own time.
//!
//! On a busy machine the thread itself waits for a core. The kernel counts that time (`schedstat`), and it is
//! subtracted: what remains is the thread's own work and its waits for locks. A holder of a lock that loses its core
//! still counts, so the bench should run with a priority above that of other work. Waits behind earlier decisions are
//! computed from the net times, as in a queue with one server.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warmroute_policy::Standard;
use warmroute_router::{Decision, Outcome, Router, Scratch};
use warmroute_types::Micros;

use crate::thread_time::RunQueue;
use crate::world::{self, RequestText};

/// Time between requests.
const PERIOD: Duration = Duration::from_micros(250);

/// Requests in flight.
const IN_FLIGHT: usize = 64;

/// Conversations that come again.
const CONVERSATIONS: u64 = 4_096;

/// One decision, in nanoseconds.
pub struct Sample {
    pub decision_ns: u64,
    pub wait_ns: u64,
}

/// Whether an event is going on. Odd: yes. A decision counts if an event went on at its begin or end.
#[derive(Default)]
pub struct Window(AtomicU64);

impl Window {
    pub fn set_open(&self, is_open: bool) {
        let turn = self.0.fetch_add(1, SeqCst) + 1;
        assert_eq!(turn % 2 == 1, is_open, "windows open and close in turn");
    }

    fn turn(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// Routes until it is over. Returns the decisions made during events.
pub fn route(router: &Router<Standard>, window: &Window, is_over: &AtomicBool) -> Vec<Sample> {
    let queueing = RunQueue::of_this_thread();
    let (mut scratch, mut text, mut open) = (Scratch::default(), RequestText::default(), VecDeque::new());
    let (mut samples, mut free_at) = (Vec::new(), Duration::ZERO);
    let began = Instant::now();
    for number in 0_u64.. {
        let due = PERIOD * u32::try_from(number).expect("the bench ends before");
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        if is_over.load(SeqCst) {
            break;
        }
        // Every second request is new, the others come again.
        let conversation = if number % 2 == 0 { number } else { number * 7_919 % CONVERSATIONS };
        text.fill(conversation);
        let texts = [text.text(router)];
        let request = text.request(&texts);
        let now = Micros(world::BEGIN.0 + began.elapsed().as_micros() as u64);
        let (turn, queued, since) = (window.turn(), queueing.ns(), Instant::now());
        let decision = router.route(&request, &mut scratch, now, number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let wall = since.elapsed();
        let net = wall.saturating_sub(Duration::from_nanos(queueing.ns() - queued));
        let start = due.max(free_at);
        free_at = start + net;
        if turn % 2 == 1 || window.turn() % 2 == 1 {
            let wait_ns = (start - due).as_nanos() as u64;
            samples.push(Sample { decision_ns: net.as_nanos() as u64, wait_ns });
        }
        open.extend(decision.ok());
        answer(router, &mut open, now);
    }
    samples
}

/// Answers the oldest request in flight.
fn answer(router: &Router<Standard>, open: &mut VecDeque<Decision>, at: Micros) {
    if open.len() > IN_FLIGHT
        && let Some(mut decision) = open.pop_front()
    {
        router.observe(&mut decision, Outcome::FirstToken { at });
        router.observe(&mut decision, Outcome::Ended { answered: None });
    }
}
