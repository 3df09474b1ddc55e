//! The least loaded worker (join the shortest queue).
//!
//! Load is the number of requests that this router has in flight, counted at decision time. The waiting count
//! of the engines also includes other clients' requests, but comes from reports that are old when they are
//! read. Requests sent since the report are added, so that a burst between two reports does not herd.

use warmroute_types::OptionValue;

use crate::numbers::least_by;
use crate::{Candidate, Choice, Policy, PolicyRequest};

/// What counts as load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadSignal {
    /// Requests that this router has in flight.
    #[default]
    InFlight,
    /// Requests that wait inside the engine, then requests in flight. Only requests in flight when any worker
    /// lacks a fresh report.
    Waiting,
}

impl OptionValue for LoadSignal {
    const VALUES: &'static [(LoadSignal, &'static str, &'static str)] = &[
        (LoadSignal::InFlight, "in-flight", "Requests that this router has in flight"),
        (LoadSignal::Waiting, "waiting", "Waiting requests that the engines report"),
    ];
}

/// Fewest requests by the chosen signal; ties are random.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded {
    /// What counts as load.
    pub signal: LoadSignal,
}

impl Policy for LeastLoaded {
    fn name(&self) -> &'static str {
        "least_loaded"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let reports = self.signal == LoadSignal::Waiting && candidates.iter().all(|c| c.waiting.is_some());
        let waiting = |c: &Candidate| if reports { c.waiting.unwrap_or(0) } else { 0 };
        let index = least_by(candidates, request.random, |c| (waiting(c), c.in_flight));
        Choice { index, reason: if reports { "least_waiting" } else { "least_in_flight" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    /// (requests in flight, the engine's waiting count if reported)
    type Row = (u32, Option<u32>);

    fn with_waiting(rows: &[Row]) -> Vec<Candidate> {
        let rows = rows.iter().enumerate();
        rows.map(|(index, &(n, waiting))| Candidate { waiting, ..candidate(index as u16, n) }).collect()
    }

    #[test]
    fn the_shortest_queue_is_joined() {
        use LoadSignal::{InFlight, Waiting};
        let cases: [(LoadSignal, &[Row], usize, &str); 5] = [
            (InFlight, &[(3, None), (1, None), (2, None)], 1, "least_in_flight"),
            (InFlight, &[(3, Some(0)), (1, Some(9))], 1, "least_in_flight"),
            (Waiting, &[(3, Some(0)), (1, Some(9))], 0, "least_waiting"),
            (Waiting, &[(3, Some(4)), (1, Some(4))], 1, "least_waiting"),
            (Waiting, &[(3, Some(0)), (1, None)], 1, "least_in_flight"),
        ];
        for (signal, rows, index, reason) in cases {
            let choice = LeastLoaded { signal }.choose(&request_with_random(7), &with_waiting(rows));
            assert_eq!(choice, Choice { index, reason }, "{signal:?} {rows:?}");
        }
    }
}
