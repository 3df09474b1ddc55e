//! Faults on request: what a replica does wrong, to test a gateway.
//!
//! One fault is active at a time; a new one replaces it and `none` ends it. Dying and restarting are events, not
//! states: a restarted replica is healthy.

use serde::Deserialize;
use thiserror::Error;
use tokio::sync::watch;

/// A fault, as `POST /fault` accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// No fault.
    None,
    /// The process dies: the replica accepts nothing any more and resets every connection.
    Die,
    /// The replica accepts connections, answers nothing and generates no token.
    Hang,
    /// The engine takes this many times as long.
    Slow {
        /// 10 is ten times slower.
        factor: f64,
    },
    /// Generation endpoints respond with this status at once.
    Status {
        /// An HTTP error, mostly 429 or 503.
        code: u16,
        /// The Retry-After header, in seconds.
        retry_after_s: Option<u32>,
    },
    /// Answers are cut off with a TCP reset.
    Reset {
        /// Output tokens before the reset; with 0 not even the response head is sent.
        #[serde(default)]
        after_tokens: u32,
        /// Number of affected answers; all of them if missing.
        times: Option<u32>,
    },
    /// The process restarts: every connection is reset and the cache is empty.
    Restart,
    /// Answers report absurd usage: billions of tokens, and more of them cached than there are.
    Lie,
    /// KV events are disturbed on their way; the engine itself is healthy.
    Events(EventFaults),
}

/// Disturbances of published batches. Lost and late batches are still in the replay memory, as limited by
/// `replay_batches`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EventFaults {
    /// Delay in milliseconds.
    pub lag_ms: u32,
    /// Share of batches that never arrive, 0 to 1.
    pub loss: f64,
    /// Share of batches that arrive after the next one.
    pub reorder: f64,
    /// Share of batches that arrive twice.
    pub duplicate: f64,
    /// Replays contain only this many batches: the last ones.
    pub replay_batches: Option<u32>,
    /// Whether removals are reported.
    pub removals: Removals,
    /// How stores are reported.
    pub stores: Stores,
}

/// How the engine reports stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stores {
    /// As they happen.
    #[default]
    Told,
    /// The engine reports all blocks of a prompt and its answer with the first one, including blocks that it may
    /// never fill.
    Ahead,
}

/// Whether the engine reports evictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removals {
    /// As they happen.
    #[default]
    Told,
    /// Never: the engine claims blocks that it has evicted.
    Hidden,
}

/// Why a fault's numbers are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum FaultError {
    /// Time would stop or run backwards.
    #[error("factor must be greater than 0, not {0}")]
    Factor(f64),
    /// The value is not a share.
    #[error("{0} must be from 0 to 1")]
    Share(&'static str),
    /// The status is not an error.
    #[error("code must be an HTTP error (400 to 599), not {0}")]
    Code(u16),
}

impl Fault {
    /// Checks the numbers.
    pub fn validate(&self) -> Result<(), FaultError> {
        match *self {
            Fault::Slow { factor } if !(factor.is_finite() && factor > 0.0) => {
                Err(FaultError::Factor(factor))
            }
            Fault::Status { code, .. } if !(400..600).contains(&code) => Err(FaultError::Code(code)),
            Fault::Events(faults) => faults.validate(),
            _ => Ok(()),
        }
    }
}

impl EventFaults {
    fn validate(&self) -> Result<(), FaultError> {
        let shares = [("loss", self.loss), ("reorder", self.reorder), ("duplicate", self.duplicate)];
        match shares.into_iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            Some((name, _)) => Err(FaultError::Share(name)),
            None => Ok(()),
        }
    }
}

/// The present fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Condition {
    standing: Fault,
}

impl Condition {
    /// The disturbance of KV events.
    pub(crate) fn events(&self) -> EventFaults {
        match self.standing {
            Fault::Events(faults) => faults,
            _ => EventFaults::default(),
        }
    }

    /// Whether the usage in answers is a lie.
    fn lies(&self) -> bool {
        self.standing == Fault::Lie
    }

    /// The speed of engine time compared with a healthy engine.
    pub(crate) fn pace(&self) -> f64 {
        match self.standing {
            Fault::Hang => 0.0,
            Fault::Slow { factor } => 1.0 / factor,
            _ => 1.0,
        }
    }
}

/// The condition, shared by handlers and drivers.
pub(crate) struct Faults {
    condition: watch::Sender<Condition>,
}

impl Faults {
    /// A healthy replica.
    pub(crate) fn new() -> Faults {
        Faults { condition: watch::Sender::new(Condition { standing: Fault::None }) }
    }

    /// For drivers: the condition and its changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    /// Sets a fault. Dying and restarting leave a healthy replica.
    pub(crate) fn set(&self, fault: Fault) {
        let standing = match fault {
            Fault::Die | Fault::Restart => Fault::None,
            standing => standing,
        };
        self.condition.send_replace(Condition { standing });
    }

    /// Whether the usage in answers is a lie.
    pub(crate) fn lies(&self) -> bool {
        self.condition.borrow().lies()
    }

    /// Waits while the replica hangs.
    pub(crate) async fn until_answering(&self) {
        if self.condition.borrow().standing == Fault::Hang {
            // This cannot fail: the sender is part of self.
            let _ = self.watch().wait_for(|condition| condition.standing != Fault::Hang).await;
        }
    }

    /// The status of generation endpoints, and its Retry-After.
    pub(crate) fn status(&self) -> Option<(u16, Option<u32>)> {
        match self.condition.borrow().standing {
            Fault::Status { code, retry_after_s } => Some((code, retry_after_s)),
            _ => None,
        }
    }

    /// The number of tokens after which the answer that begins now must be cut off, if it must. It counts towards
    /// `times`.
    pub(crate) fn claim_reset(&self) -> Option<u32> {
        if !matches!(self.condition.borrow().standing, Fault::Reset { .. }) {
            return None;
        }
        let mut claimed = None;
        self.condition.send_modify(|condition| claimed = condition.claim_reset());
        claimed
    }
}

impl Condition {
    fn claim_reset(&mut self) -> Option<u32> {
        let Fault::Reset { after_tokens, times } = &mut self.standing else { return None };
        let after_tokens = *after_tokens;
        let left = times.as_mut().map(|times| {
            let before = *times;
            *times = before.saturating_sub(1);
            before
        });
        match left {
            Some(0) => None,
            _ => Some(after_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Fault, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn faults_are_read_from_json() {
        for (json, fault) in [
            (r#"{"kind":"none"}"#, Fault::None),
            (r#"{"kind":"die"}"#, Fault::Die),
            (r#"{"kind":"hang"}"#, Fault::Hang),
            (r#"{"kind":"restart"}"#, Fault::Restart),
            (r#"{"kind":"lie"}"#, Fault::Lie),
            (r#"{"kind":"slow","factor":10}"#, Fault::Slow { factor: 10.0 }),
            (
                r#"{"kind":"status","code":429,"retry_after_s":1}"#,
                Fault::Status { code: 429, retry_after_s: Some(1) },
            ),
            (r#"{"kind":"reset","after_tokens":3}"#, Fault::Reset { after_tokens: 3, times: None }),
            (r#"{"kind":"reset","times":2}"#, Fault::Reset { after_tokens: 0, times: Some(2) }),
            (
                r#"{"kind":"events","loss":0.5,"removals":"hidden"}"#,
                Fault::Events(EventFaults {
                    loss: 0.5,
                    removals: Removals::Hidden,
                    ..EventFaults::default()
                }),
            ),
        ] {
            assert_eq!(parse(json), Ok(fault), "{json}");
        }
    }

    #[test]
    fn an_unknown_kind_error_lists_the_valid_ones() {
        let error = parse(r#"{"kind":"explode"}"#).unwrap_err();
        for kind in ["none", "die", "hang", "slow", "status", "reset", "restart", "lie", "events"] {
            assert!(error.contains(&format!("`{kind}`")), "{error}");
        }
    }

    #[test]
    fn a_reset_for_some_answers_heals_itself() {
        let faults = Faults::new();
        faults.set(Fault::Reset { after_tokens: 3, times: Some(2) });
        assert_eq!([(); 3].map(|()| faults.claim_reset()), [Some(3), Some(3), None]);
        faults.set(Fault::Reset { after_tokens: 1, times: None });
        assert_eq!([(); 3].map(|()| faults.claim_reset()), [Some(1); 3]);
    }

    #[test]
    fn invalid_numbers_are_refused() {
        assert_eq!(Fault::Slow { factor: 0.0 }.validate(), Err(FaultError::Factor(0.0)));
        assert_eq!(Fault::Status { code: 200, retry_after_s: None }.validate(), Err(FaultError::Code(200)));
        let loss = EventFaults { loss: 1.5, ..EventFaults::default() };
        assert_eq!(Fault::Events(loss).validate(), Err(FaultError::Share("loss")));
        assert_eq!(Fault::Status { code: 503, retry_after_s: None }.validate(), Ok(()));
    }
}
