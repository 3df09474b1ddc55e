//! Rates of a run: answers and tokens per second.

use warmroute_types::Micros;

use crate::slo::Slo;
use crate::{Outcome, Record};

/// Rates over the whole run, or over the saturated part of a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Answers per second.
    pub throughput_rps: f64,
    /// Answers within the SLO, per second.
    pub goodput_rps: f64,
    /// Output tokens per second.
    pub output_tokens_per_s: f64,
}

impl Rates {
    /// Rates of a run. A closed loop counts the answers that ended while all clients were busy: the end of a
    /// run, when fewer requests are in flight, does not lower its rates.
    pub fn of(outcome: &Outcome, slo: Slo) -> Rates {
        let until = outcome.saturated.unwrap_or(Micros(u64::MAX));
        let ended: Vec<&Record> = outcome.records.iter().filter(|record| record.ended() <= until).collect();
        // At least a microsecond, so that rates are finite.
        let span_us = outcome.saturated.map_or_else(|| span_us(&outcome.records), |span| span.0).max(1);
        let per_s = |count: u64| count as f64 / (span_us as f64 / 1e6);
        Rates {
            throughput_rps: per_s(ended.len() as u64),
            goodput_rps: per_s(ended.iter().filter(|record| slo.is_met(record)).count() as u64),
            output_tokens_per_s: per_s(ended.iter().map(|record| u64::from(record.output_tokens)).sum()),
        }
    }
}

/// Time from the first request to the last answer.
fn span_us(records: &[Record]) -> u64 {
    let first = records.iter().map(|record| record.asked_us).min().unwrap_or(0);
    let last = records.iter().map(|record| record.ended().0).max().unwrap_or(0);
    last.saturating_sub(first)
}
