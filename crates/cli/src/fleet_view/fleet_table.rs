//! The fleet as a table, as wide as the terminal.

use std::collections::HashMap;

use super::fleet_reading::{FleetReading, WorkerCounts, WorkerReading};
use crate::text_table::{Column, ColumnKind, TextTable};

/// The columns. A narrow terminal shows the state, the load and the hits.
const COLUMNS: [Column; 10] = [
    Column::new("worker", "worker", ColumnKind::Address, 0),
    Column::new("state", "state", ColumnKind::Left, 0),
    Column::new("view", "view", ColumnKind::Left, 6),
    Column::new("in flight", "flight", ColumnKind::Right, 1),
    Column::new("waiting", "wait", ColumnKind::Right, 7),
    Column::new("running", "run", ColumnKind::Right, 8),
    Column::new("KV %", "KV %", ColumnKind::Right, 4),
    Column::new("queue ms", "queue ms", ColumnKind::Right, 3),
    Column::new("hit %", "hit %", ColumnKind::Right, 2),
    Column::new("share %", "share %", ColumnKind::Right, 5),
];

/// By what rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    Worker,
    InFlight,
    Queue,
    Share,
}

/// A fleet with what happened since an earlier reading, or since the gateway started.
pub struct FleetTable<'a> {
    now: &'a FleetReading,
    since: HashMap<&'a str, WorkerCounts>,
    /// Seconds between the readings; `None` without an earlier one.
    seconds: Option<f64>,
}

impl<'a> FleetTable<'a> {
    pub fn new(now: &'a FleetReading, earlier: Option<&'a FleetReading>) -> FleetTable<'a> {
        let before: HashMap<&str, WorkerCounts> =
            earlier.iter().flat_map(|e| &e.workers).map(|worker| (&*worker.label, worker.counts)).collect();
        let since = now.workers.iter().map(|worker| {
            let before = before.get(&*worker.label).copied().unwrap_or_default();
            (&*worker.label, worker.counts.since(before))
        });
        let seconds = earlier.map(|earlier| now.at.duration_since(earlier.at).as_secs_f64());
        FleetTable { since: since.collect(), now, seconds }
    }

    /// The line above the table, no wider than `width` unless the gateway's own words are.
    pub fn headline(&self, width: usize) -> String {
        let reading = self.now;
        let (ready, all) = (reading.ready_workers(), reading.workers.len());
        let (in_flight, waiting) = (reading.in_flight(), reading.waiting());
        let total = self.total();
        let hits = format!("hit {} %", percent(total.cached_tokens, total.prompt_tokens));
        let rate = self.seconds.filter(|&seconds| seconds > 0.0);
        let rate = rate.map(|seconds| format!("{:.1} requests/s", total.requests / seconds));
        let joined = |workers: String, waiting: String| {
            let parts = [workers, format!("{in_flight} in flight"), waiting, hits.clone()];
            parts.into_iter().chain(rate.clone()).collect::<Vec<_>>()
        };
        let long = joined(
            format!("{}: {ready} of {all} workers take requests", reading.readiness),
            format!("{waiting} waiting in engines"),
        );
        if fits(&long, width) {
            return long.join(", ");
        }
        let mut short =
            joined(format!("{}: {ready}/{all} workers", reading.readiness), format!("{waiting} waiting"));
        while short.len() > 1 && !fits(&short, width) {
            short.pop();
        }
        short.join(", ")
    }

    /// Requests that ended since the earlier reading.
    pub fn requests(&self) -> f64 {
        self.total().requests
    }

    fn total(&self) -> WorkerCounts {
        self.since.values().fold(WorkerCounts::default(), |sum, counts| sum.plus(*counts))
    }

    /// The workers in this order.
    pub fn sorted(&self, sort: SortKey) -> Vec<&'a WorkerReading> {
        let mut workers: Vec<&WorkerReading> = self.now.workers.iter().collect();
        let falling = |value: fn(&FleetTable<'_>, &WorkerReading) -> f64| {
            move |a: &&WorkerReading, b: &&WorkerReading| value(self, b).total_cmp(&value(self, a))
        };
        match sort {
            SortKey::Worker => {}
            SortKey::InFlight => workers.sort_by(falling(|_, worker| worker.in_flight as f64)),
            SortKey::Queue => workers.sort_by(falling(|_, worker| worker.queue_ms)),
            SortKey::Share => workers.sort_by(falling(|table, worker| table.since[&*worker.label].requests)),
        }
        workers
    }

    /// The head of the table and a line for each of these workers.
    pub fn lines(&self, workers: &[&WorkerReading], width: usize) -> Vec<String> {
        let rows = workers.iter().map(|worker| self.cells(worker)).collect();
        TextTable { columns: &COLUMNS, rows }.lines(width)
    }

    fn cells(&self, worker: &WorkerReading) -> [String; 10] {
        let since = self.since[&*worker.label];
        let kv_use = worker.load.and_then(|load| load.kv_use);
        let reported = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        [
            worker.label.clone(),
            worker.state.clone(),
            worker.view.clone(),
            worker.in_flight.to_string(),
            reported(worker.load.map(|load| load.waiting)),
            reported(worker.load.map(|load| load.running)),
            kv_use.map_or_else(|| "-".to_owned(), |kv_use| format!("{:.0}", kv_use * 100.0)),
            format!("{:.0}", worker.queue_ms),
            percent(since.cached_tokens, since.prompt_tokens),
            percent(since.requests, self.total().requests),
        ]
    }

    /// The whole table as text.
    pub fn text(&self, sort: SortKey, width: usize) -> String {
        let lines = self.lines(&self.sorted(sort), width);
        format!("{}\n\n{}\n", self.headline(width), lines.join("\n"))
    }
}

impl WorkerCounts {
    /// What happened since. Counters start again when a worker is removed and added.
    fn since(self, before: WorkerCounts) -> WorkerCounts {
        let more = |now: f64, before: f64| if now >= before { now - before } else { now };
        WorkerCounts {
            requests: more(self.requests, before.requests),
            failures: more(self.failures, before.failures),
            prompt_tokens: more(self.prompt_tokens, before.prompt_tokens),
            cached_tokens: more(self.cached_tokens, before.cached_tokens),
        }
    }

    fn plus(self, other: WorkerCounts) -> WorkerCounts {
        WorkerCounts {
            requests: self.requests + other.requests,
            failures: self.failures + other.failures,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            cached_tokens: self.cached_tokens + other.cached_tokens,
        }
    }
}

/// Whether the parts of a sentence fit.
fn fits(parts: &[String], width: usize) -> bool {
    parts.iter().map(|part| part.chars().count()).sum::<usize>() + 2 * (parts.len() - 1) <= width
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.0}", 100.0 * part / whole) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fleet_view::fleet_reading::EngineLoad;

    fn reading(at: Instant, counts: [(&str, f64, f64); 2]) -> FleetReading {
        let worker = |(label, requests, cached_tokens): (&str, f64, f64)| WorkerReading {
            label: label.to_owned(),
            state: "ready".to_owned(),
            view: "presumed".to_owned(),
            in_flight: requests as u64,
            queue_ms: 100.0 - requests,
            load: (requests > 1.0).then_some(EngineLoad { waiting: 3, running: 2, kv_use: Some(0.5) }),
            counts: WorkerCounts { requests, cached_tokens, prompt_tokens: 100.0, ..WorkerCounts::default() },
        };
        FleetReading { at, readiness: "ready".to_owned(), workers: counts.map(worker).into() }
    }

    #[test]
    fn a_table_shows_totals_and_a_live_one_what_happened_since() {
        let start = Instant::now();
        let first = reading(start, [("http://a:1", 1.0, 0.0), ("http://b:1", 3.0, 50.0)]);
        let text = FleetTable::new(&first, None).text(SortKey::Worker, usize::MAX);
        assert!(text.starts_with(
            "ready: 2 of 2 workers take requests, 4 in flight, 3 waiting in engines, hit 25 %\n"
        ));
        let rows: Vec<Vec<&str>> = text.lines().skip(3).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["http://a:1", "ready", "presumed", "1", "-", "-", "-", "99", "0", "25"]);
        assert_eq!(rows[1], ["http://b:1", "ready", "presumed", "3", "3", "2", "50", "97", "50", "75"]);
        for width in [40, 60, 80, 100] {
            let text = FleetTable::new(&first, None).text(SortKey::Worker, width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }

        let later =
            reading(start + Duration::from_secs(2), [("http://a:1", 11.0, 0.0), ("http://b:1", 3.0, 50.0)]);
        let table = FleetTable::new(&later, Some(&first));
        for (width, headline) in [
            (
                100,
                "ready: 2 of 2 workers take requests, 14 in flight, 6 waiting in engines, hit - %, 5.0 requests/s",
            ),
            (80, "ready: 2/2 workers, 14 in flight, 6 waiting, hit - %, 5.0 requests/s"),
            (40, "ready: 2/2 workers, 14 in flight"),
        ] {
            assert_eq!(table.headline(width), headline);
        }
        assert!(table.text(SortKey::Share, 100).lines().nth(3).unwrap().ends_with(" 100"));
        assert_eq!(table.sorted(SortKey::Queue)[0].label, "http://b:1");
    }

    #[test]
    fn a_worker_that_came_back_counts_from_zero() {
        let before = WorkerCounts { requests: 9.0, ..WorkerCounts::default() };
        let now = WorkerCounts { requests: 2.0, ..WorkerCounts::default() };
        assert_eq!(now.since(before).requests, 2.0);
    }
}
