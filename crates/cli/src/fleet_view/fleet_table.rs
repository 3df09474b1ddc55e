//! The fleet as a table, no wider than 100 columns.

use std::collections::HashMap;

use super::fleet_reading::{FleetReading, WorkerCounts, WorkerReading};

/// Longer addresses are cut at the start, because their ends differ.
const WORKER_WIDTH: usize = 28;

/// The columns.
pub const HEADS: [&str; 10] =
    ["worker", "state", "view", "in flight", "waiting", "running", "KV %", "queue ms", "hit %", "share %"];

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

    /// The line above the table.
    pub fn headline(&self) -> String {
        let reading = self.now;
        let (ready, all) = (reading.ready_workers(), reading.workers.len());
        let total = self.total();
        let mut line = format!(
            "{}: {ready} of {all} workers take requests, {} in flight, {} waiting in engines, hit {} %",
            reading.readiness,
            reading.in_flight(),
            reading.waiting(),
            percent(total.cached_tokens, total.prompt_tokens),
        );
        if let Some(seconds) = self.seconds.filter(|&seconds| seconds > 0.0) {
            line.push_str(&format!(", {:.1} requests/s", total.requests / seconds));
        }
        line
    }

    /// Requests that ended since the earlier reading.
    pub fn requests(&self) -> f64 {
        self.total().requests
    }

    fn total(&self) -> WorkerCounts {
        self.since.values().fold(WorkerCounts::default(), |sum, counts| sum.plus(*counts))
    }

    /// The cells of all rows.
    pub fn rows(&self, sort: SortKey) -> Vec<[String; 10]> {
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
        workers.into_iter().map(|worker| self.cells(worker)).collect()
    }

    fn cells(&self, worker: &WorkerReading) -> [String; 10] {
        let since = self.since[&*worker.label];
        let reported = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        [
            cut(&worker.label, WORKER_WIDTH),
            worker.state.clone(),
            worker.view.clone(),
            worker.in_flight.to_string(),
            reported(worker.load.map(|load| load.waiting)),
            reported(worker.load.map(|load| load.running)),
            worker.load.map_or_else(|| "-".to_owned(), |load| format!("{:.0}", load.kv_use * 100.0)),
            format!("{:.0}", worker.queue_ms),
            percent(since.cached_tokens, since.prompt_tokens),
            percent(since.requests, self.total().requests),
        ]
    }

    /// The whole table as text.
    pub fn text(&self, sort: SortKey) -> String {
        let rows = self.rows(sort);
        let mut text = format!("{}\n\n{}", self.headline(), line(&HEADS));
        rows.iter().for_each(|row| text.push_str(&line(&row.each_ref().map(String::as_str))));
        text
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

/// Widths of the columns, the first ones aligned to the left.
const WIDTHS: [usize; 10] = [WORKER_WIDTH, 10, 9, 9, 7, 7, 5, 8, 5, 7];

/// One line of the table.
pub fn line(cells: &[&str; 10]) -> String {
    let mut line = String::new();
    for (index, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let padded = if index < 3 { format!("{cell:<width$} ") } else { format!("{cell:>width$} ") };
        line.push_str(&padded);
    }
    format!("{}\n", line.trim_end())
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.0}", 100.0 * part / whole) } else { "-".to_owned() }
}

fn cut(text: &str, width: usize) -> String {
    let len = text.chars().count();
    if len <= width {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(len + 1 - width)).collect()
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
            load: (requests > 1.0).then_some(EngineLoad { waiting: 3, running: 2, kv_use: 0.5 }),
            counts: WorkerCounts { requests, cached_tokens, prompt_tokens: 100.0, ..WorkerCounts::default() },
        };
        FleetReading { at, readiness: "ready".to_owned(), workers: counts.map(worker).into() }
    }

    #[test]
    fn a_table_shows_totals_and_a_live_one_what_happened_since() {
        let start = Instant::now();
        let first = reading(start, [("http://a:1", 1.0, 0.0), ("http://b:1", 3.0, 50.0)]);
        let text = FleetTable::new(&first, None).text(SortKey::Worker);
        assert!(text.starts_with(
            "ready: 2 of 2 workers take requests, 4 in flight, 3 waiting in engines, hit 25 %\n"
        ));
        let rows: Vec<Vec<&str>> = text.lines().skip(3).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["http://a:1", "ready", "presumed", "1", "-", "-", "-", "99", "0", "25"]);
        assert_eq!(rows[1], ["http://b:1", "ready", "presumed", "3", "3", "2", "50", "97", "50", "75"]);
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");

        let later =
            reading(start + Duration::from_secs(2), [("http://a:1", 11.0, 0.0), ("http://b:1", 3.0, 50.0)]);
        let table = FleetTable::new(&later, Some(&first));
        assert!(table.headline().ends_with("hit - %, 5.0 requests/s"), "{}", table.headline());
        assert_eq!(table.rows(SortKey::Share)[0][9], "100");
        assert_eq!(table.rows(SortKey::Queue)[0][0], "http://b:1");
    }

    #[test]
    fn a_worker_that_came_back_counts_from_zero() {
        let before = WorkerCounts { requests: 9.0, ..WorkerCounts::default() };
        let now = WorkerCounts { requests: 2.0, ..WorkerCounts::default() };
        assert_eq!(now.since(before).requests, 2.0);
    }
}
