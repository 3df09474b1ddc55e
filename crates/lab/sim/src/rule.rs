//! Policy of a run by name and parameters: `least_loaded`, `weighted_score:affinity=3:queue=2`.
//!
//! A rule builds one policy instance per router. Rules of other projects are in [`crate::BASELINES`];
//! external rules come through [`Rule::made_by`].

use std::sync::Arc;

use thiserror::Error;
use warmroute_policy::{BadPolicy, Policy, Standard};

use crate::baselines::Baseline;
use crate::built_rule::{BuiltRule, Needs};

/// A policy's constructor, with its inputs.
#[derive(Clone)]
pub struct Rule {
    name: String,
    needs: Needs,
    make: Arc<Maker>,
}

type Maker = dyn Fn() -> BuiltRule + Send + Sync;

/// Error of an invalid rule. The message contains the whole cause, so it has no `source`: error chains would print it
/// twice.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadRule {
    /// Unknown policy name.
    #[error("{0}; of other routers, in the lab only: {names}", names = Baseline::names())]
    Unknown(BadPolicy),
    /// Unknown parameter or invalid value.
    #[error("{0}")]
    Parameter(BadPolicy),
}

impl From<BadPolicy> for BadRule {
    fn from(bad: BadPolicy) -> BadRule {
        match bad {
            BadPolicy::Unknown(_) => BadRule::Unknown(bad),
            BadPolicy::Parameter { .. } => BadRule::Parameter(bad),
        }
    }
}

impl Rule {
    /// Parses a production policy with parameters after colons, or a baseline.
    pub fn parse(text: &str) -> Result<Rule, BadRule> {
        if let Some(baseline) = Baseline::named(text) {
            return Ok(Rule { name: text.to_owned(), needs: baseline.needs, make: Arc::new(baseline.make) });
        }
        let policy: Standard = text.parse()?;
        let needs = Needs {
            overlap: policy.needs_overlap(),
            prefix_key: policy.needs_prefix_key(),
            session_key: policy.needs_session_key(),
        };
        Ok(Rule::made_by(text, needs, move || Box::new(policy)))
    }

    /// A rule with a custom constructor.
    pub fn made_by(
        name: impl Into<String>,
        needs: Needs,
        make: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Rule {
        let make = move || BuiltRule { policy: make(), watcher: None };
        Rule { name: name.into(), needs, make: Arc::new(make) }
    }

    /// Rule as written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Inputs of the policy.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Builds an instance.
    pub fn make(&self) -> BuiltRule {
        (self.make)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_understood_or_refused() {
        assert!(Rule::parse("weighted_score:affinity=3:queue=0.5").unwrap().needs().overlap);
        assert!(!Rule::parse("least_loaded").unwrap().needs().overlap);
        for (text, why) in [
            ("best", "unknown policy"),
            ("best", "preble_e2, dynamo_cost"),
            ("lbgr:x=1", "unknown policy"),
            ("weighted_score:affinity", "not key=value"),
            ("weighted_score:affinity=-1", "no number"),
            ("weighted_score:speed=1", "neither"),
            ("random:x=1", "no parameters"),
            ("cache_aware:preset=wild", "known are"),
        ] {
            let error = Rule::parse(text).err().unwrap().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
