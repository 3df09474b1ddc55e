//! The longest that one call keeps others waiting, with ten million spans resident.
//!
//! A call that takes the writer's lock once is measured by its own CPU time, which is all the time that it can hold the
//! lock. One that gives the lock away in between (clear, cut, expire) is measured from outside: another thread asks for
//! the lock again and again, and reads how much CPU time the first one used while it waited. CPU time in both cases,
//! because on a busy machine the clock on the wall mostly shows when a thread was not running. The second figure also counts
//! what was done while the asking thread was not running, and misses holds during which it did not ask: it is neither an
//! upper nor a lower bound. So all of its range is printed, over several times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use warmroute_index::{Config, HolderId, Index, NamedSpan, Namespace, Parent, Prompt, RootKey, Source, Span};
use warmroute_types::Micros;

use crate::clock::{self, ThreadClock, timed};
use crate::ours::root;
use crate::stream::Random;

const EVENT: usize = 48;
const CHAIN: usize = 480;
const WORKERS: usize = 16;
/// How often each call that gives the lock away is made.
const TIMES: usize = 8;

pub fn run(resident: usize) {
    println!("\n## The longest that one call holds the lock, {resident} spans resident\n");
    println!("| call | calls | mean us | longest us | |");
    println!("|---|---|---|---|---|");
    reported(resident);
    presumed(resident);
}

/// The costs of many calls of one kind.
#[derive(Default)]
struct Calls {
    count: u64,
    sum_ns: u64,
    longest_ns: u64,
}

impl Calls {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (result, ns) = timed(work);
        self.count += 1;
        self.sum_ns += ns;
        self.longest_ns = self.longest_ns.max(ns);
        result
    }

    fn print(&self, label: &str, what: &str) {
        let mean = self.sum_ns as f64 / self.count as f64 / 1e3;
        println!("| {label} | {} | {mean:.1} | {:.0} | {what} |", self.count, self.longest_ns as f64 / 1e3);
    }
}

/// A chain that is not shared.
fn chain(number: u64) -> Vec<NamedSpan> {
    let mut random = Random(number);
    let mut span =
        || NamedSpan { name: random.next(), span: Span { digest: random.next(), bytes: 64, tokens: 16 } };
    (0..CHAIN).map(|_| span()).collect()
}

fn reported(resident: usize) {
    let index = Index::new(&Config { budget_bytes: 64 << 30, ..Config::default() });
    let (mut stores, mut removes) = (Calls::default(), Calls::default());
    let chains = resident / CHAIN;
    for number in 0..chains {
        let (worker, spans) = (HolderId((number % WORKERS) as u16), chain(number as u64));
        let mut parent = Parent::Root(root());
        for event in spans.chunks(EVENT) {
            let stored = stores.time(|| index.store(worker, parent, event));
            assert!(stored.is_ok_and(|stored| stored.placed == event.len()), "there is room");
            parent = Parent::Name(event[event.len() - 1].name);
        }
    }
    stores.print("store", "48 blocks an event, from none to all");
    // Heads below which many chains hang, as with system prompts.
    let wide = HolderId(WORKERS as u16);
    let heads: Vec<Vec<NamedSpan>> = (0..TIMES as u64).map(|number| chain(u64::MAX - number)).collect();
    for head in &heads {
        index.store(wide, Parent::Root(root()), head).expect("a holder id within the limit");
    }
    for number in 0..chains / 2 {
        let (head, spans) = (&heads[number % TIMES], chain((1 << 40) + number as u64));
        index
            .store(wide, Parent::Name(head[CHAIN - 1].name), &spans[..64])
            .expect("a holder id within the limit");
    }
    waits(&index, "cut", "a prompt with everything that continues it", |time| {
        let digests: Vec<u64> = heads[time].iter().map(|named| named.span.digest).collect();
        index.cut(wide, root(), Prompt::Chunks(&digests), 0);
    });
    waits(&index, "clear", "a sixteenth of all spans", |time| index.clear(HolderId(time as u16)));
    for number in (0..chains).filter(|number| number % WORKERS >= TIMES) {
        let names: Vec<u64> = chain(number as u64).iter().rev().map(|named| named.name).collect();
        for event in names.chunks(EVENT) {
            removes.time(|| index.remove(HolderId((number % WORKERS) as u16), event));
        }
    }
    removes.print("remove", "48 blocks an event, from all to none");
    assert_eq!(index.stats().spans, 0);
}

fn presumed_root() -> RootKey {
    let namespace = Namespace { model: "m", lora: None, salt: None, cut: 256, source: Source::Presumed };
    RootKey::of(&namespace)
}

fn presumed(resident: usize) {
    let (chunks, ttl) = (64, Micros::from_secs(1_800));
    // A quarter more is sent than there is room for.
    let budget_bytes = resident * 12;
    let config = Config { budget_bytes, presumed_tokens: u64::MAX, presumed_ttl: ttl, ..Config::default() };
    let index = Index::new(&config);
    let (mut presumes, mut confirms) = (Calls::default(), Calls::default());
    for number in 0..resident / chunks * 5 / 4 {
        let mut random = Random(number as u64);
        let spans: Vec<Span> =
            (0..chunks).map(|_| Span { digest: random.next(), bytes: 256, tokens: 64 }).collect();
        let worker = HolderId((number % WORKERS) as u16);
        let handle = presumes.time(|| index.presume(worker, presumed_root(), &spans, Micros(number as u64)));
        let handle = handle.expect("a holder id within the limit and a presumed root");
        confirms.time(|| index.confirm(handle));
    }
    presumes.print("presume", "64 chunks, past the budget");
    confirms.print("confirm", "");
    let stats = index.stats();
    println!(
        "| | | | | {} spans then, {:.2} of the budget, {} evicted |",
        stats.spans,
        stats.bytes.total() as f64 / budget_bytes as f64,
        stats.evicted_by_budget
    );
    waits(&index, "set_capacity", "half of one worker's spans go", |time| {
        let worker = HolderId((WORKERS - 1 - time) as u16);
        index.set_capacity(worker, index.presumed_tokens(worker) / 2).expect("a holder id within the limit");
    });
    waits(&index, "clear", "a sixteenth of all spans", |time| index.clear(HolderId(time as u16)));
    let sent = resident / chunks * 5 / 4;
    waits(&index, "expire", "an eighth of what was sent", |time| {
        index.expire(Micros(ttl.0 + (sent / TIMES * (time + 1)) as u64));
    });
    index.expire(Micros(ttl.0 * 2));
    assert_eq!(index.stats().spans, 0);
}

/// Does something several times while another thread asks for the lock; prints how much was done while that one waited.
fn waits(index: &Index, label: &str, what: &str, work: impl Fn(usize)) {
    let waited: Vec<(u64, u64)> = (0..TIMES).map(|time| longest_wait(index, || work(time))).collect();
    let (least, most) = waited
        .iter()
        .fold((u64::MAX, 0), |(least, most), &(wait_ns, _)| (least.min(wait_ns), most.max(wait_ns)));
    let took_ns: u64 = waited.iter().map(|&(_, took_ns)| took_ns).sum();
    println!(
        "| {label}: wait beside it | {TIMES} | {:.0} | {:.0} to {:.0} | {what} |",
        took_ns as f64 / TIMES as f64 / 1e3,
        least as f64 / 1e3,
        most as f64 / 1e3
    );
}

/// CPU nanoseconds of some work: the most while another thread waited for the lock, and all.
fn longest_wait(index: &Index, work: impl FnOnce()) -> (u64, u64) {
    let is_over = AtomicBool::new(false);
    let clock = ThreadClock::mine();
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            clock::hurry();
            let mut longest_ns = 0;
            while !is_over.load(Ordering::Relaxed) {
                let start = clock.ns();
                index.bytes();
                longest_ns = longest_ns.max(clock.ns() - start);
            }
            longest_ns
        });
        let ((), took_ns) = timed(work);
        is_over.store(true, Ordering::Relaxed);
        (asking.join().expect("asking does not fail"), took_ns)
    })
}
