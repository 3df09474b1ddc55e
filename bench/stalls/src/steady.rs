//! The routing thread: one request after another, each at its own time.
//!
//! On a busy machine the thread itself waits for a core. That is not a stall: a decision counts with its CPU time, and, if
//! the thread waited for something else than a core (a lock), with its time less the waits for a core, which the kernel
//! counts. A holder of a lock that loses its core still counts, so the bench should run with a priority above that of
//! other work. Waits behind earlier decisions are computed from these times, as in a queue with one server.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use warmroute_policy::Standard;
use warmroute_router::{Decision, Outcome, Router, Scratch};
use warmroute_types::Micros;

use crate::thread_time::{ThreadCounters, cpu_ns};
use crate::world::{self, RequestText};

/// Time between requests.
const PERIOD: Duration = Duration::from_micros(250);

/// Requests in flight.
const IN_FLIGHT: usize = 64;

/// Conversations that come again.
const CONVERSATIONS: u64 = 4_096;

/// One decision, in nanoseconds.
pub struct Sample {
    /// On a core, or waiting for something else than a core.
    pub decision_ns: u64,
    pub cpu_ns: u64,
    pub wait_ns: u64,
    /// It waited for something else than a core.
    pub is_blocked: bool,
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
    let counters = ThreadCounters::of_this_thread();
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
        let (turn, blocked, queued) = (window.turn(), counters.blocked(), counters.queued_ns());
        let (since, cpu) = (Instant::now(), cpu_ns());
        let decision = router.route(&request, &mut scratch, now, number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (wall, cpu) = (since.elapsed(), Duration::from_nanos(cpu_ns() - cpu));
        let queued = Duration::from_nanos(counters.queued_ns() - queued);
        let is_blocked = counters.blocked() > blocked;
        let net = if is_blocked { wall.saturating_sub(queued).max(cpu) } else { cpu };
        let start = due.max(free_at);
        free_at = start + net;
        if turn % 2 == 1 || window.turn() % 2 == 1 {
            let wait_ns = (start - due).as_nanos() as u64;
            let decision_ns = net.as_nanos() as u64;
            samples.push(Sample { decision_ns, cpu_ns: cpu.as_nanos() as u64, wait_ns, is_blocked });
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
