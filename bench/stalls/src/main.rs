//! How long routing stands still while something large happens: `cargo run --release -- [ROUNDS] [NAME...]`.
//!
//! One thread routes at a steady rate and answers what it routed. Another thread makes one event after another: a full
//! worker leaves, a burst of KV events arrives, a snapshot is written. Decisions during an event are measured.

mod events;
mod overload;
mod steady;
mod thread_time;
mod world;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::events::{EVENTS, Event};
use crate::steady::{Sample, Window};

/// Time before an event.
const WARM_UP: Duration = Duration::from_millis(100);

/// Least time that one event is observed.
const WINDOW_MIN: Duration = Duration::from_millis(400);

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let rounds = args.next_if(|arg| arg.parse::<u32>().is_ok()).map_or(10, |arg| arg.parse().unwrap_or(10));
    let wanted: Vec<String> = args.collect();
    println!(
        "{:<26}{:>9}{:>8}  {:>34}  {:>34}",
        "", "event", "", "decision, µs", "wait behind earlier decisions, µs"
    );
    println!(
        "{:<26}{:>9}{:>8}  {:>7}{:>7}{:>10}{:>10}  {:>7}{:>7}{:>10}{:>10}",
        "event", "ms", "routed", "p50", "p99", "p99.99", "max", "p50", "p99", "p99.99", "max"
    );
    for event in
        EVENTS.iter().filter(|event| wanted.is_empty() || wanted.iter().any(|name| name == event.name))
    {
        let (samples, took_ms) = observe(event, rounds);
        show(event.name, &samples, took_ms);
    }
    if wanted.is_empty() || wanted.iter().any(|name| name == "overload") {
        overload::run();
    }
}

/// Makes the event `rounds` times, each time with a new router, while another thread routes. Returns the decisions
/// during events, and the mean duration of an event.
fn observe(event: &Event, rounds: u32) -> (Vec<Sample>, f64) {
    let (mut samples, mut took) = (Vec::new(), Duration::ZERO);
    for _ in 0..rounds {
        let mut world = (event.world)();
        let router = world.router();
        let (window, is_over) = (Window::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let routing = scope.spawn(|| steady::route(&router, &window, &is_over));
            std::thread::sleep(WARM_UP);
            let opened = Instant::now();
            window.set_open(true);
            (event.happen)(&mut world);
            took += opened.elapsed();
            std::thread::sleep(WINDOW_MIN.saturating_sub(opened.elapsed()));
            window.set_open(false);
            is_over.store(true, SeqCst);
            samples.extend(routing.join().expect("the routing thread does not panic"));
        });
    }
    (samples, took.as_secs_f64() * 1e3 / f64::from(rounds))
}

fn show(name: &str, samples: &[Sample], took_ms: f64) {
    let column = |read: fn(&Sample) -> u64| {
        let mut values: Vec<u64> = samples.iter().map(read).collect();
        values.sort_unstable();
        let at = |part: f64| {
            let last = values.len().saturating_sub(1);
            values.get((last as f64 * part).round() as usize).map_or(0.0, |&ns| ns as f64 / 1e3)
        };
        format!("{:>7.1}{:>7.1}{:>10.1}{:>10.1}", at(0.5), at(0.99), at(0.9999), at(1.0))
    };
    let (decision, wait) = (column(|sample| sample.decision_ns), column(|sample| sample.wait_ns));
    println!("{name:<26}{took_ms:>9.1}{:>8}  {decision}  {wait}", samples.len());
}
