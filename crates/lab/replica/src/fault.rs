//! Faults on order: what a replica does wrong, so that a gateway can be seen to do right.
//!
//! One fault stands at a time; a new one takes its place and `none` heals. Dying and restarting are not states but
//! events: a restarted replica is well.

use serde::Deserialize;
use thiserror::Error;
use tokio::sync::watch;

/// What goes wrong, as `POST /fault` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// All is well again.
    None,
    /// The process dies: nothing is accepted any more and every connection is reset.
    Die,
    /// Connections are accepted and nothing is answered, no token comes.
    Hang,
    /// The engine takes this many times as long.
    Slow {
        /// 10 is ten times slower.
        factor: f64,
    },
    /// Generation endpoints answer with this status at once.
    Status {
        /// An HTTP error, 429 or 503 most likely.
        code: u16,
        /// The Retry-After header, in seconds.
        retry_after_s: Option<u32>,
    },
    /// Answers are cut with a TCP reset.
    Reset {
        /// Output tokens until then; with 0 not even the response's head is sent.
        #[serde(default)]
        after_tokens: u32,
        /// How many answers; all of them when left out.
        times: Option<u32>,
    },
    /// The process restarts: every connection is reset and the cache is empty.
    Restart,
    /// KV events go wrong on their way; the engine itself is well.
    Events(EventFaults),
}

/// What becomes of published batches. What is lost or late here is still remembered for replays, but for `replay_batches`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EventFaults {
    /// They arrive this much later.
    pub lag_ms: u32,
    /// The share of batches that never arrive, 0 to 1.
    pub loss: f64,
    /// The share of batches that arrive after the next one.
    pub reorder: f64,
    /// The share of batches that arrive twice.
    pub duplicate: f64,
    /// Replays have only so many batches: the last ones.
    pub replay_batches: Option<u32>,
    /// What it says about removals.
    pub removals: Removals,
    /// What it says about stores.
    pub stores: Stores,
}

/// Whether the engine tells what it stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stores {
    /// It does.
    #[default]
    Told,
    /// It tells all blocks of a prompt and its answer as soon as it has stored the first, also those it may never fill.
    Ahead,
}

/// Whether the engine tells what it evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removals {
    /// It does.
    #[default]
    Told,
    /// It does not: it lies about what it holds.
    Hidden,
}

/// A fault whose numbers make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum FaultError {
    /// Time would stop or run backwards.
    #[error("factor must be greater than 0, not {0}")]
    Factor(f64),
    /// Not a share.
    #[error("{0} must be from 0 to 1")]
    Share(&'static str),
    /// Not a way to refuse.
    #[error("code must be an HTTP error (400 to 599), not {0}")]
    Code(u16),
}

impl Fault {
    /// Whether it can be done.
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

/// What is wrong at present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Condition {
    standing: Fault,
}

impl Condition {
    /// What becomes of KV events.
    pub(crate) fn events(&self) -> EventFaults {
        match self.standing {
            Fault::Events(faults) => faults,
            _ => EventFaults::default(),
        }
    }

    /// How fast engine time runs compared with a healthy engine.
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

    /// From now on this is wrong. Events leave a healthy replica.
    pub(crate) fn set(&self, fault: Fault) {
        let standing = match fault {
            Fault::Die | Fault::Restart => Fault::None,
            standing => standing,
        };
        self.condition.send_replace(Condition { standing });
    }

    /// Returns once the replica does not hang.
    pub(crate) async fn until_answering(&self) {
        if self.condition.borrow().standing == Fault::Hang {
            // It cannot fail: the sender is part of self.
            let _ = self.watch().wait_for(|condition| condition.standing != Fault::Hang).await;
        }
    }

    /// The status that generation endpoints answer with, and its Retry-After.
    pub(crate) fn status(&self) -> Option<(u16, Option<u32>)> {
        match self.condition.borrow().standing {
            Fault::Status { code, retry_after_s } => Some((code, retry_after_s)),
            _ => None,
        }
    }

    /// After how many tokens the answer that is beginning now must be cut, if it must. It counts as one of `times`.
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
    fn an_unknown_kind_is_told_the_valid_ones() {
        let error = parse(r#"{"kind":"explode"}"#).unwrap_err();
        for kind in ["none", "die", "hang", "slow", "status", "reset", "restart", "events"] {
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
    fn numbers_without_sense_are_refused() {
        assert_eq!(Fault::Slow { factor: 0.0 }.validate(), Err(FaultError::Factor(0.0)));
        assert_eq!(Fault::Status { code: 200, retry_after_s: None }.validate(), Err(FaultError::Code(200)));
        let loss = EventFaults { loss: 1.5, ..EventFaults::default() };
        assert_eq!(Fault::Events(loss).validate(), Err(FaultError::Share("loss")));
        assert_eq!(Fault::Status { code: 503, retry_after_s: None }.validate(), Ok(()));
    }
}
