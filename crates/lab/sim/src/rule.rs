//! Policy of a run by name and parameters: `least_loaded`, `weighted_score:affinity=3:queue=2`.
//!
//! A rule builds one policy instance per router. Rules of other projects are in [`crate::BASELINES`];
//! external rules come through [`Rule::made_by`].

use std::sync::Arc;

use thiserror::Error;
use warmroute_policy::{
    Balance, CacheAware, CostTerm, ExpectedTtft, LoadBound, Policy, Standard, UnknownPolicy, WeightedScore,
};

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

/// Error of an invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadRule {
    /// Unknown policy name.
    #[error("{0}; of other routers, in the lab only: {names}", names = Baseline::names())]
    Unknown(UnknownPolicy),
    /// Unknown parameter or invalid value.
    #[error("`{rule}`: {why}")]
    Parameter {
        /// Rule as written.
        rule: String,
        /// Reason.
        why: String,
    },
}

/// The message contains the whole cause, so the variant has no `source`: error chains would print it twice.
impl From<UnknownPolicy> for BadRule {
    fn from(unknown: UnknownPolicy) -> BadRule {
        BadRule::Unknown(unknown)
    }
}

impl Rule {
    /// Parses a production policy with parameters after colons, or a baseline.
    pub fn parse(text: &str) -> Result<Rule, BadRule> {
        if let Some(baseline) = Baseline::named(text) {
            return Ok(Rule { name: text.to_owned(), needs: baseline.needs, make: Arc::new(baseline.make) });
        }
        let mut parts = text.split(':');
        let mut policy: Standard = parts.next().unwrap_or_default().parse()?;
        for part in parts {
            let bad = |why: String| BadRule::Parameter { rule: text.to_owned(), why };
            let (key, value) =
                part.split_once('=').ok_or_else(|| bad(format!("`{part}` is not key=value")))?;
            set(&mut policy, key, value).map_err(bad)?;
        }
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

/// Sets one parameter. The error says why it is invalid.
fn set(policy: &mut Standard, key: &str, value: &str) -> Result<(), String> {
    match policy {
        Standard::ExpectedTtft(rule) => set_expected_ttft(rule, key, value),
        Standard::WeightedScore(score) => set_score(score, key, value),
        Standard::CacheAware(rule) => set_cache_aware(rule, key, value),
        Standard::SessionAffinity(rule) => set_bound(&mut rule.bound, key, value),
        Standard::PrefixAffinity(rule) => set_bound(&mut rule.bound, key, value),
        Standard::DualChoice(rule) => set_bound(&mut rule.bound, key, value),
        _ => Err("this policy has no parameters".to_owned()),
    }
}

fn set_expected_ttft(rule: &mut ExpectedTtft, key: &str, value: &str) -> Result<(), String> {
    let part = match (key, value) {
        ("without", "queue") => CostTerm::Queue,
        ("without", "behind") => CostTerm::Followers,
        ("without", "step") => CostTerm::Step,
        ("without", "lacking") => CostTerm::Lacking,
        ("without", "ties") => CostTerm::Ties,
        _ => {
            return Err(format!(
                "`{key}={value}`: known is without, of queue, behind, step, lacking and ties"
            ));
        }
    };
    rule.without = Some(part);
    Ok(())
}

fn set_score(score: &mut WeightedScore, key: &str, value: &str) -> Result<(), String> {
    match key {
        "affinity" => score.affinity_weight = number(value)?,
        "queue" => score.queue_weight = number(value)?,
        _ => return Err(format!("`{key}` is neither affinity nor queue")),
    }
    Ok(())
}

fn set_cache_aware(rule: &mut CacheAware, key: &str, value: &str) -> Result<(), String> {
    match (key, value) {
        ("preset", "high_affinity") => *rule = CacheAware::HIGH_AFFINITY,
        ("preset", "balanced") => *rule = CacheAware::BALANCED,
        ("preset", "load_focused") => *rule = CacheAware::LOAD_FOCUSED,
        ("threshold", _) => rule.cache_threshold = number(value)?,
        ("abs", _) => rule.balance_abs = number(value)? as u32,
        ("rel", _) => rule.balance_rel = number(value)?,
        ("balance", "both") => rule.balance = Balance::Both,
        ("balance", "either") => rule.balance = Balance::Either,
        ("balance", "dynamic") => rule.balance = Balance::Dynamic,
        _ => return Err(format!("`{key}={value}`: known are preset, threshold, abs, rel and balance")),
    }
    Ok(())
}

fn set_bound(bound: &mut LoadBound, key: &str, value: &str) -> Result<(), String> {
    match key {
        "factor" => bound.factor = number(value)?,
        _ => return Err(format!("`{key}`: known is factor")),
    }
    Ok(())
}

fn number(value: &str) -> Result<f64, String> {
    let parsed = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    parsed.ok_or_else(|| format!("`{value}` is no number from 0 on"))
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
