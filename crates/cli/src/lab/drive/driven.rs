//! What clients saw during a run.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use warmroute_sim::{LoadSeries, Outcome, Record, Replication, Slo, Summary, Turn, tokens};
use warmroute_types::Usage;

use crate::client::Served;

/// Figures of a simulation that clients can measure, too. The last three need engines that report cached tokens.
const MEASURED: [&str; 14] = [
    "policy",
    "seed",
    "requests",
    "failed",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "output_tokens_per_s",
    "throughput_rps",
    "goodput_rps",
    "output_tokens",
    "token_hit_ratio",
    "request_hit_ratio",
    "prefill_tokens_computed",
];
const OF_CACHES: usize = 3;

/// Tolerated relative difference between the prompts' tokens and the engines' count: a chat template adds a few.
const TOKENS_MARGIN: f64 = 0.1;

/// The results of one or more sessions.
#[derive(Default)]
pub struct Driven {
    pub records: Vec<Record>,
    pub failures: Vec<String>,
    /// Whether any engine reported cached tokens.
    tells_cached: bool,
    /// Prompt tokens as sent, and as counted by the engines.
    asked_tokens: u64,
    counted_tokens: u64,
}

impl Driven {
    pub fn failed(why: String) -> Driven {
        Driven { failures: vec![why], ..Driven::default() }
    }

    pub fn add(&mut self, other: Driven) {
        self.records.extend(other.records);
        self.failures.extend(other.failures);
        self.tells_cached |= other.tells_cached;
        self.asked_tokens += other.asked_tokens;
        self.counted_tokens += other.counted_tokens;
    }

    /// Warns of failures, and of engines that tokenize differently, because their work then differs from the trace.
    pub fn warn(&self, token_bytes: u8) {
        let ratio = self.counted_tokens as f64 / self.asked_tokens.max(1) as f64;
        if self.asked_tokens > 0 && (ratio - 1.0).abs() > TOKENS_MARGIN {
            eprintln!(
                "prompts had {ratio:.2} times the tokens of this traffic: the engines do not make one of {token_bytes} bytes; \
                 try --token-bytes {:.0}",
                f64::from(token_bytes) / ratio
            );
        }
        if let Some(failure) = self.failures.first() {
            eprintln!("{} requests failed, the first with: {failure}", self.failures.len());
        }
    }

    /// Records a request that was served. `engine_us` converts times of this machine.
    pub fn note(
        &mut self,
        engine_us: impl Fn(Duration) -> u64,
        asked: Duration,
        index: usize,
        turn: &Turn,
        served: &Served,
    ) {
        // Without usage, the requested number of tokens is the best estimate.
        let asked_for = Usage {
            prompt_tokens: tokens(&turn.prompt),
            output_tokens: tokens(&turn.answer),
            cached_tokens: None,
        };
        let usage = served.usage.unwrap_or(asked_for);
        self.tells_cached |= usage.cached_tokens.is_some();
        self.asked_tokens += u64::from(asked_for.prompt_tokens);
        self.counted_tokens += u64::from(usage.prompt_tokens);
        self.records.push(Record {
            asked_us: engine_us(asked),
            ttft_us: engine_us(served.ttft),
            e2e_us: engine_us(served.e2e),
            queued_us: 0,
            worker: 0,
            turn: index as u32,
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.output_tokens,
            cached_tokens: usage.cached_tokens.unwrap_or(0),
            predicted_tokens: None,
            held_tokens: None,
            restorable_tokens: 0,
            stale_tokens: 0,
            missed_tokens: 0,
        });
    }

    /// Throughput in the first part of the run, while this many requests were in flight.
    pub fn closed_loop(&self, concurrency: u32, full_us: u64) -> ClosedLoop {
        let ended = self.records.iter().filter(|record| record.ended().0 <= full_us);
        let (requests, output_tokens) = ended.fold((0_u64, 0_u64), |(requests, tokens), record| {
            (requests + 1, tokens + u64::from(record.output_tokens))
        });
        let full_s = full_us as f64 / 1e6;
        let rate = |count: u64| (requests > 0).then(|| count as f64 / full_s);
        ClosedLoop {
            concurrency,
            full_s,
            throughput_rps: rate(requests),
            output_tokens_per_s: rate(output_tokens),
        }
    }

    /// The results in the format of a simulation's.
    pub fn result(self, name: &str, seed: u64, slo: Slo) -> Value {
        let output_tokens: u64 = self.records.iter().map(|record| u64::from(record.output_tokens)).sum();
        let outcome = Outcome {
            records: self.records,
            failed: self.failures.len() as u64,
            totals: Vec::new(),
            load: LoadSeries::default(),
            replication: Replication::default(),
            repeated_prefill_ratio: 0.0,
            saturated: None,
            rejected: 0,
            refused: 0,
            retried: 0,
            index_bytes: 0,
            shared_bytes: 0,
        };
        let mut all = json!(Summary::of(name, seed, &outcome, slo));
        all["output_tokens"] = json!(output_tokens);
        let unknown = if self.tells_cached { 0 } else { OF_CACHES };
        let known = MEASURED[..MEASURED.len() - unknown].iter();
        known.map(|&figure| (figure.to_owned(), all[figure].take())).collect()
    }
}

/// Throughput with a fixed number of requests in flight.
#[derive(Debug, PartialEq, Serialize)]
pub struct ClosedLoop {
    pub concurrency: u32,
    /// Seconds until the first of the clients found no further session. The rates are those of this time.
    pub full_s: f64,
    /// Answers per second; `None` if none ended in that time.
    pub throughput_rps: Option<f64>,
    pub output_tokens_per_s: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(asked_us: u64, e2e_us: u64) -> Record {
        Record {
            asked_us,
            ttft_us: 1,
            e2e_us,
            queued_us: 0,
            worker: 0,
            turn: 0,
            prompt_tokens: 9,
            output_tokens: 30,
            cached_tokens: 0,
            predicted_tokens: None,
            held_tokens: None,
            restorable_tokens: 0,
            stale_tokens: 0,
            missed_tokens: 0,
        }
    }

    #[test]
    fn a_closed_loop_counts_answers_while_all_clients_are_busy() {
        let records = vec![record(0, 1_000_000), record(0, 2_000_000), record(1_500_000, 2_500_000)];
        let driven = Driven { records, ..Driven::default() };
        let closed = driven.closed_loop(2, 2_000_000);
        assert_eq!((closed.throughput_rps, closed.output_tokens_per_s), (Some(1.0), Some(30.0)));
        assert_eq!(driven.closed_loop(4, 0).throughput_rps, None);
    }
}
