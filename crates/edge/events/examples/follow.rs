//! Follows one engine's KV events and prints once a second what is known of its cache:
//!
//! `cargo run -p warmroute-events --example follow -- tcp://127.0.0.1:5557 [tcp://127.0.0.1:5558 [TOPIC]]`

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use warmroute_events::{Config, EventSink, EventSource, Step, subscribe};
use warmroute_types::{Address, CacheEvent};

/// Counts of the names that are held.
#[derive(Default)]
struct Names(Mutex<HashMap<u64, u32>>);

impl EventSink for Names {
    fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
        let mut names = self.0.lock();
        for step in steps.drain(..) {
            match step {
                Step::Apply(events) => events.iter().for_each(|event| apply(&mut names, event)),
                Step::Forget => names.clear(),
                Step::View(view) => println!("view: {view}"),
                Step::AskReplay { .. } => {}
            }
        }
    }
}

fn apply(names: &mut HashMap<u64, u32>, event: &CacheEvent) {
    match event {
        CacheEvent::Stored(stored) => {
            stored.names.iter().for_each(|name| *names.entry(*name).or_default() += 1)
        }
        CacheEvent::Removed(removed) => {
            for name in &removed.names {
                if let Some(count) = names.get_mut(name) {
                    *count -= 1;
                    if *count == 0 {
                        names.remove(name);
                    }
                }
            }
        }
        CacheEvent::Cleared => names.clear(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let endpoint = args.next().ok_or("which endpoint?")?;
    let (replay, topic) = (args.next(), args.next().unwrap_or_default());
    let source =
        EventSource::configured(&endpoint, replay.as_deref(), &topic, 1, "http://127.0.0.1")?.remove(0);
    let names = Arc::new(Names::default());
    let sink = Arc::clone(&names) as Arc<dyn EventSink>;
    let subscriber = subscribe(Address::new(endpoint), source, sink, Config::default());
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let held = names.0.lock().len();
        println!("{held} blocks held, {}, {:?}", subscriber.view(), subscriber.counters());
    }
}
