//! The policy of a run, by name and with its parameters: `least_loaded`, `weighted_score:affinity=3:queue=2`.
//!
//! A rule can be made any number of times, one for each router of a run. Other routers' rules are in [`crate::PEERS`]; rules
//! that are not in Rust come through [`Rule::made_by`].

use std::sync::Arc;

use thiserror::Error;
use warmroute_policy::{
    Balance, CacheAware, CostTerm, ExpectedTtft, LoadBound, Policy, Standard, UnknownPolicy, WeightedScore,
};

use crate::peers::Peer;
use crate::watch::Watcher;

/// How to make a policy, and what it wants to know.
#[derive(Clone)]
pub struct Rule {
    name: String,
    needs: Needs,
    make: Arc<Maker>,
}

type Maker = dyn Fn() -> Made + Send + Sync;

/// A policy, and who in it wants to be told more than a choice's numbers.
pub struct Made {
    /// What the router asks.
    pub policy: Box<dyn Policy>,
    /// What the gate tells.
    pub watcher: Option<Arc<dyn Watcher>>,
}

/// What a policy looks at. The router is told only that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// What workers hold.
    pub overlap: bool,
    /// The hash of the prompt's beginning.
    pub prefix_key: bool,
    /// The session.
    pub session_key: bool,
}

/// A rule that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadRule {
    /// No policy has this name.
    #[error("{0}; of other routers, in the lab only: {names}", names = Peer::names())]
    Unknown(UnknownPolicy),
    /// The policy has no such parameter, or the value is none.
    #[error("`{rule}`: {why}")]
    Parameter {
        /// As it was written.
        rule: String,
        /// What is wrong.
        why: String,
    },
}

/// It is told whole, and so is nobody's source: whoever prints a row of causes would print it twice.
impl From<UnknownPolicy> for BadRule {
    fn from(unknown: UnknownPolicy) -> BadRule {
        BadRule::Unknown(unknown)
    }
}

impl Rule {
    /// A rule of production, with parameters after colons, or another router's.
    pub fn parse(text: &str) -> Result<Rule, BadRule> {
        if let Some(peer) = Peer::named(text) {
            return Ok(Rule { name: text.to_owned(), needs: peer.needs, make: Arc::new(peer.make) });
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

    /// A rule made by somebody else.
    pub fn made_by(
        name: impl Into<String>,
        needs: Needs,
        make: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Rule {
        let make = move || Made { policy: make(), watcher: None };
        Rule { name: name.into(), needs, make: Arc::new(make) }
    }

    /// As it was written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it looks at.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// One of it.
    pub fn make(&self) -> Made {
        (self.make)()
    }
}

/// Sets one parameter, or says why not.
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
