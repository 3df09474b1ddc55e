//! Is this worker well? Where it is in its life, and while it serves, where its [`Breaker`] stands.
//!
//! ```text
//! starting ──answered──▶ ready / unhealthy / recovering, as the breaker is closed, open or half-open
//!     any state ──told to drain──▶ draining
//! ```
//!
//! One answer makes a worker ready: a probe that reached the engine is better evidence than any waiting period. Several
//! failures in a row make it unhealthy, because one lost probe is not an outage.

use warmroute_types::{Micros, WorkerState};

use crate::breaker::{Breaker, Open, Position};

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

/// What somebody who tried to reach the worker saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It answered that it is well.
    Answered,
    /// It did not answer, or said that it is not well.
    Failed,
}

/// How far a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To its first token.
    Begun,
    /// To its end, or with a refusal that is no fault.
    Whole,
}

/// One worker's health.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    stage: Stage,
    breaker: Breaker,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Stage {
    /// Nobody has tried to reach it yet.
    #[default]
    Untried,
    /// It has never said that it is well.
    Starting,
    Serving,
    /// It leaves, however well it is.
    Draining,
}

impl Health {
    /// The state now.
    pub fn state(&self) -> WorkerState {
        match (self.stage, self.breaker.position()) {
            (Stage::Untried | Stage::Starting, _) => WorkerState::Starting,
            (Stage::Draining, _) => WorkerState::Draining,
            (Stage::Serving, Position::Closed) => WorkerState::Ready,
            (Stage::Serving, Position::Open(_)) => WorkerState::Unhealthy,
            (Stage::Serving, Position::HalfOpen) => WorkerState::Recovering,
        }
    }

    /// Its breaker.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Whether nobody has tried to reach it yet: how it is will be known in a moment.
    pub fn is_untried(&self) -> bool {
        self.stage == Stage::Untried
    }

    /// Whether nobody reaches it.
    pub fn is_unreachable(&self) -> bool {
        self.breaker.position() == Position::Open(Open::Unreachable)
    }

    /// Somebody tried to reach it.
    pub fn probed(&mut self, result: ProbeResult, config: HealthConfig, now: Micros) {
        match (self.stage, result) {
            (Stage::Untried | Stage::Starting, ProbeResult::Answered) => self.stage = Stage::Serving,
            // Never well, so still starting.
            (Stage::Untried | Stage::Starting, ProbeResult::Failed) => self.stage = Stage::Starting,
            (_, ProbeResult::Answered) => self.breaker.reached(now),
            (_, ProbeResult::Failed) => self.breaker.unreached(config.failures_max),
        }
    }

    /// It failed a request.
    pub fn failed(&mut self, config: HealthConfig, now: Micros) {
        self.breaker.fault(now, config.failures_max);
    }

    /// It answered a request.
    pub fn answered(&mut self, answer: Answer, config: HealthConfig) {
        match answer {
            Answer::Begun => self.breaker.began(config.failures_max),
            Answer::Whole => self.breaker.answered(),
        }
    }

    /// It gets nothing new from now on.
    pub fn drain(&mut self) {
        self.stage = Stage::Draining;
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Answered, Failed};
    use super::WorkerState::{Draining, Ready, Recovering, Starting, Unhealthy};
    use super::*;

    fn after(results: &[ProbeResult]) -> WorkerState {
        let mut health = Health::default();
        results.iter().for_each(|&result| health.probed(result, HealthConfig::default(), Micros::ZERO));
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
        let mut away = Health::default();
        away.probed(Answered, HealthConfig::default(), Micros::ZERO);
        (0..3).for_each(|_| away.probed(Failed, HealthConfig::default(), Micros::ZERO));
        assert!(away.is_unreachable());
        assert_eq!(after(&[Answered, Failed, Failed, Failed, Answered]), Ready);
    }

    #[test]
    fn one_is_untried_until_the_first_probe() {
        let mut health = Health::default();
        assert!(health.is_untried());
        health.probed(Failed, HealthConfig::default(), Micros::ZERO);
        assert!(!health.is_untried());
    }

    #[test]
    fn one_whose_requests_fail_recovers_by_a_request() {
        let (mut health, config) = (Health::default(), HealthConfig::default());
        health.probed(Answered, config, Micros::ZERO);
        (0..3).for_each(|_| health.failed(config, Micros::ZERO));
        assert_eq!(health.state(), Unhealthy);
        health.probed(Answered, config, Micros::from_secs(1));
        assert_eq!(health.state(), Recovering);
        health.answered(Answer::Whole, config);
        assert_eq!(health.state(), Ready);
    }

    #[test]
    fn a_draining_worker_is_not_called_back() {
        let mut health = Health::default();
        health.drain();
        health.probed(Answered, HealthConfig::default(), Micros::ZERO);
        assert_eq!(health.state(), Draining);
    }
}
