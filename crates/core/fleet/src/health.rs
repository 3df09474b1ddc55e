//! The health of a worker: its lifecycle stage and, while it serves, its [`Breaker`].
//!
//! ```text
//! starting ──answered──▶ ready / unhealthy / recovering, as the breaker is closed, open or half-open
//!     ready, recovering ◀──▶ unready, while its source says that it is not ready
//!     ready, recovering ◀──▶ sleeping, while its engine sleeps
//!     any state ──drain requested──▶ draining
//! ```
//!
//! One answered probe makes a worker ready: it is better evidence than any waiting period. Several failures
//! in a row make it unhealthy, because one lost probe is not an outage.

use warmroute_types::{Micros, SourceReadiness, WorkerState};

use crate::breaker::{Breaker, BreakerState, OpenReason};

/// When a worker becomes unhealthy.
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

/// The result of a health probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The worker answered that it is healthy.
    Answered,
    /// The worker did not answer, or answered that it is not healthy.
    Failed,
    /// The worker answered that it is healthy and that its engine sleeps.
    Asleep,
}

/// How far an answer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerProgress {
    /// The first token arrived.
    Begun,
    /// The answer ended, or the engine refused the request without being at fault.
    Complete,
}

/// One worker's health.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthTracker {
    stage: Stage,
    breaker: Breaker,
    readiness: SourceReadiness,
    is_asleep: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Stage {
    /// No probe has completed yet.
    #[default]
    Unprobed,
    /// No probe has been answered yet.
    Starting,
    Serving,
    /// The worker is leaving, healthy or not.
    Draining,
}

impl HealthTracker {
    /// The current state.
    pub fn state(&self) -> WorkerState {
        match (self.stage, self.breaker.state()) {
            (Stage::Unprobed | Stage::Starting, _) => WorkerState::Starting,
            (Stage::Draining, _) => WorkerState::Draining,
            (Stage::Serving, BreakerState::Open(_)) => WorkerState::Unhealthy,
            (Stage::Serving, _) if self.readiness == SourceReadiness::NotReady => WorkerState::Unready,
            (Stage::Serving, _) if self.is_asleep => WorkerState::Sleeping,
            (Stage::Serving, BreakerState::Closed) => WorkerState::Ready,
            (Stage::Serving, BreakerState::HalfOpen) => WorkerState::Recovering,
        }
    }

    /// The circuit breaker.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Whether no probe has completed yet; the state is known as soon as one has.
    pub fn is_unprobed(&self) -> bool {
        self.stage == Stage::Unprobed
    }

    /// Whether connections to the worker fail.
    pub fn is_unreachable(&self) -> bool {
        self.breaker.state() == BreakerState::Open(OpenReason::Unreachable)
    }

    /// Records the result of a probe.
    pub fn probed(&mut self, result: ProbeResult, config: HealthConfig, now: Micros) {
        self.is_asleep = match result {
            ProbeResult::Answered => false,
            ProbeResult::Asleep => true,
            ProbeResult::Failed => self.is_asleep,
        };
        match (self.stage, result) {
            // Never healthy, so still starting.
            (Stage::Unprobed | Stage::Starting, ProbeResult::Failed) => self.stage = Stage::Starting,
            (Stage::Unprobed | Stage::Starting, _) => self.stage = Stage::Serving,
            (_, ProbeResult::Failed) => self.breaker.unreached(config.failures_max),
            (_, ProbeResult::Answered | ProbeResult::Asleep) => self.breaker.reached(now),
        }
    }

    /// Records what the worker's source says.
    pub fn set_readiness(&mut self, readiness: SourceReadiness) {
        self.readiness = readiness;
    }

    /// Records a failed request.
    pub fn failed(&mut self, config: HealthConfig, now: Micros) {
        self.breaker.fault(now, config.failures_max);
    }

    /// Records an answer.
    pub fn answered(&mut self, answer: AnswerProgress, config: HealthConfig) {
        match answer {
            AnswerProgress::Begun => self.breaker.began(config.failures_max),
            AnswerProgress::Complete => self.breaker.answered(),
        }
    }

    /// Stops new requests to the worker.
    pub fn drain(&mut self) {
        self.stage = Stage::Draining;
    }
}

#[cfg(test)]
mod tests {
    use super::ProbeResult::{Answered, Asleep, Failed};
    use super::WorkerState::{Draining, Ready, Recovering, Sleeping, Starting, Unhealthy, Unready};
    use super::*;

    fn after(results: &[ProbeResult]) -> WorkerState {
        let mut health = HealthTracker::default();
        results.iter().for_each(|&result| health.probed(result, HealthConfig::default(), Micros::ZERO));
        health.state()
    }

    #[test]
    fn probes_decide_the_state() {
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
        let mut away = HealthTracker::default();
        away.probed(Answered, HealthConfig::default(), Micros::ZERO);
        (0..3).for_each(|_| away.probed(Failed, HealthConfig::default(), Micros::ZERO));
        assert!(away.is_unreachable());
        assert_eq!(after(&[Answered, Failed, Failed, Failed, Answered]), Ready);
    }

    #[test]
    fn a_worker_is_unprobed_until_the_first_probe() {
        let mut health = HealthTracker::default();
        assert!(health.is_unprobed());
        health.probed(Failed, HealthConfig::default(), Micros::ZERO);
        assert!(!health.is_unprobed());
    }

    #[test]
    fn a_worker_whose_requests_fail_recovers_by_a_trial_request() {
        let (mut health, config) = (HealthTracker::default(), HealthConfig::default());
        health.probed(Answered, config, Micros::ZERO);
        (0..3).for_each(|_| health.failed(config, Micros::ZERO));
        assert_eq!(health.state(), Unhealthy);
        health.probed(Answered, config, Micros::from_secs(1));
        assert_eq!(health.state(), Recovering);
        health.answered(AnswerProgress::Complete, config);
        assert_eq!(health.state(), Ready);
    }

    #[test]
    fn a_sleeping_engine_is_out_until_it_wakes() {
        assert_eq!(after(&[Asleep]), Sleeping, "a sleeping engine has started");
        assert_eq!(after(&[Answered, Asleep]), Sleeping);
        assert_eq!(after(&[Asleep, Failed]), Sleeping, "one lost probe says nothing");
        assert_eq!(after(&[Asleep, Failed, Failed, Failed]), Unhealthy);
        assert_eq!(after(&[Asleep, Answered]), Ready);
    }

    #[test]
    fn a_worker_that_its_source_calls_unready_gets_nothing_whatever_probes_say() {
        let (mut health, config) = (HealthTracker::default(), HealthConfig::default());
        health.set_readiness(SourceReadiness::NotReady);
        assert_eq!(health.state(), Starting, "not probed yet");
        health.probed(Answered, config, Micros::ZERO);
        assert_eq!(health.state(), Unready);
        health.set_readiness(SourceReadiness::Ready);
        assert_eq!(health.state(), Ready);
        health.set_readiness(SourceReadiness::NotReady);
        (0..3).for_each(|_| health.probed(Failed, config, Micros::ZERO));
        assert_eq!(health.state(), Unhealthy);
        health.set_readiness(SourceReadiness::Ready);
        assert_eq!(health.state(), Unhealthy, "a source cannot bring back a worker that does not answer");
    }

    #[test]
    fn a_draining_worker_stays_draining() {
        let mut health = HealthTracker::default();
        health.drain();
        health.probed(Answered, HealthConfig::default(), Micros::ZERO);
        assert_eq!(health.state(), Draining);
    }
}
