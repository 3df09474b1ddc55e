//! Is this worker well? A small state machine over what probes and requests saw.
//!
//! ```text
//! starting ──answered──▶ ready ──failed N times in a row──▶ unhealthy ──answered──▶ ready
//!     any state ──told to drain──▶ draining
//! ```
//!
//! One success makes a worker ready: a probe that reached the engine and was answered is better evidence than any
//! waiting period. Several failures in a row make it unhealthy, because one lost probe is not an outage.

use warmroute_types::WorkerState;

/// When a worker is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// Failures in a row that make a worker unhealthy; at least 1.
    pub failures_max: u32,
}

impl Default for HealthConfig {
    fn default() -> HealthConfig {
        HealthConfig { failures_max: 3 }
    }
}

/// What somebody who tried the worker saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It answered that it is well.
    Answered,
    /// It did not answer, or said that it is not well.
    Failed,
}

/// One worker's health: its state and how often in a row it failed.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    state: WorkerState,
    failures: u32,
}

impl Default for Health {
    fn default() -> Health {
        Health { state: WorkerState::Starting, failures: 0 }
    }
}

impl Health {
    /// The state now.
    pub fn state(&self) -> WorkerState {
        self.state
    }

    /// Takes in one result. A draining worker keeps draining: it leaves, however well it is.
    pub fn saw(&mut self, result: ProbeResult, config: HealthConfig) -> WorkerState {
        match result {
            ProbeResult::Answered => self.failures = 0,
            ProbeResult::Failed => self.failures = self.failures.saturating_add(1),
        }
        self.state = match (self.state, result) {
            (WorkerState::Draining, _) => WorkerState::Draining,
            (_, ProbeResult::Answered) => WorkerState::Ready,
            (WorkerState::Ready, ProbeResult::Failed) if self.failures >= config.failures_max => {
                WorkerState::Unhealthy
            }
            (state, ProbeResult::Failed) => state,
        };
        self.state
    }

    /// It gets nothing new from now on.
    pub fn drain(&mut self) {
        self.state = WorkerState::Draining;
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Answered, Failed};
    use super::WorkerState::{Draining, Ready, Starting, Unhealthy};
    use super::*;

    fn after(results: &[ProbeResult]) -> WorkerState {
        let mut health = Health::default();
        results.iter().for_each(|&result| _ = health.saw(result, HealthConfig::default()));
        health.state()
    }

    #[test]
    fn states_follow_what_was_seen() {
        assert_eq!(after(&[]), Starting);
        assert_eq!(after(&[Failed; 9]), Starting, "never well, so still starting");
        assert_eq!(after(&[Failed, Answered]), Ready);
        assert_eq!(after(&[Answered, Failed, Failed]), Ready, "two failures are not an outage");
        assert_eq!(
            after(&[Answered, Failed, Failed, Answered, Failed]),
            Ready,
            "only failures in a row count"
        );
        assert_eq!(after(&[Answered, Failed, Failed, Failed]), Unhealthy);
        assert_eq!(after(&[Answered, Failed, Failed, Failed, Answered]), Ready);
    }

    #[test]
    fn a_draining_worker_is_not_called_back() {
        let mut health = Health::default();
        health.drain();
        assert_eq!(health.saw(Answered, HealthConfig::default()), Draining);
    }
}
