//! The worker with the least to do: join the shortest queue.
//!
//! "To do" is what this router has in flight there, counted at the moment of decision. Counting what waits inside the
//! engines instead sees other clients' load too, but from reports that are old when they are read; what was sent since
//! the report is added, so that a burst between two reports does not herd.

use crate::numbers::least_by;
use crate::{Ask, Candidate, Choice, Policy};

/// What counts as load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadSignal {
    /// Requests that this router has in flight.
    #[default]
    InFlight,
    /// Requests that wait inside the engine; in-flight decides between equals, and alone where any worker has no
    /// fresh report.
    Waiting,
}

/// Fewest requests, by the chosen signal; equals by lot.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded {
    /// What counts as load.
    pub signal: LoadSignal,
}

impl Policy for LeastLoaded {
    fn name(&self) -> &'static str {
        "least_loaded"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let reports = self.signal == LoadSignal::Waiting && candidates.iter().all(|c| c.waiting.is_some());
        let waiting = |c: &Candidate| if reports { c.waiting.unwrap_or(0) } else { 0 };
        let index = least_by(candidates, ask.random, |c| (waiting(c), c.in_flight));
        Choice { index, reason: if reports { "least_waiting" } else { "least_in_flight" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    /// Requests in flight, and the engine's waiting count where there is one.
    type Row = (u32, Option<u32>);

    fn with_waiting(rows: &[Row]) -> Vec<Candidate> {
        let rows = rows.iter().enumerate();
        rows.map(|(seat, &(n, waiting))| Candidate { waiting, ..candidate(seat as u16, n) }).collect()
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
            let choice = LeastLoaded { signal }.choose(&drawn(7), &with_waiting(rows));
            assert_eq!(choice, Choice { index, reason }, "{signal:?} {rows:?}");
        }
    }
}
