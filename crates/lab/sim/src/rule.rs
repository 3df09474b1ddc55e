//! Policy of a run by name and parameters: `least_loaded`, `weighted_score:affinity=3:queue=2`.
//!
//! A rule builds one policy instance per router. Rules of other projects are in [`crate::BASELINES`];
//! external rules come through [`Rule::made_by`].

use std::sync::Arc;

use thiserror::Error;
use warmroute_policy::{BadPolicy, Policy, Standard};

use crate::baselines::Baseline;
use crate::built_rule::{BuiltRule, Needs};
use crate::key_span::KeySpan;

/// A policy's constructor, with its inputs.
#[derive(Clone)]
pub struct Rule {
    name: String,
    needs: Needs,
    key_span: KeySpan,
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
            _ => BadRule::Parameter(bad),
        }
    }
}

impl Rule {
    /// Parses a production policy with parameters after colons, or a baseline. `key=SPAN` sets the part of the
    /// prompt that makes the prefix key, which is an option of its own in production.
    pub fn parse(text: &str) -> Result<Rule, BadRule> {
        let (plain, key) = without_key(text);
        let rule = Rule::parse_plain(&plain, text)?;
        let Some(key) = key else { return Ok(rule) };
        let bad = |why| BadRule::Parameter(BadPolicy::Parameter { policy: text.to_owned(), why });
        if !rule.needs.prefix_key {
            return Err(bad("`key` is a parameter of policies that hash the prompt's beginning".to_owned()));
        }
        Ok(Rule { key_span: key.parse().map_err(bad)?, ..rule })
    }

    fn parse_plain(plain: &str, name: &str) -> Result<Rule, BadRule> {
        if let Some(baseline) = Baseline::named(plain) {
            let make = Arc::new(baseline.make);
            let key_span = KeySpan::default();
            return Ok(Rule { name: name.to_owned(), needs: baseline.needs, key_span, make });
        }
        let policy: Standard = plain.parse()?;
        let needs = Needs {
            overlap: policy.needs_overlap(),
            prefix_key: policy.needs_prefix_key(),
            session_key: policy.needs_session_key(),
        };
        Ok(Rule::made_by(name, needs, move || Box::new(policy)))
    }

    /// A rule with a custom constructor.
    pub fn made_by(
        name: impl Into<String>,
        needs: Needs,
        make: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Rule {
        let make = move || BuiltRule { policy: make(), watcher: None };
        Rule { name: name.into(), needs, key_span: KeySpan::default(), make: Arc::new(make) }
    }

    /// Rule as written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Inputs of the policy.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Part of the prompt that makes the prefix key.
    pub fn key_span(&self) -> KeySpan {
        self.key_span
    }

    /// Builds an instance.
    pub fn make(&self) -> BuiltRule {
        (self.make)()
    }
}

/// Takes the parameter `key` off a rule.
fn without_key(text: &str) -> (String, Option<&str>) {
    let key = text.split(':').find_map(|part| part.strip_prefix("key="));
    let others = text.split(':').filter(|part| !part.starts_with("key="));
    (others.collect::<Vec<_>>().join(":"), key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_prefix_is_a_parameter_of_policies_that_hash_it() {
        let rule = Rule::parse("prefix_affinity:key=system:factor=2").unwrap();
        assert_eq!((rule.key_span(), rule.name()), (KeySpan::System, "prefix_affinity:key=system:factor=2"));
        assert_eq!(Rule::parse("chwbl:key=tokens=256").unwrap().key_span(), KeySpan::Tokens(256));
        assert_eq!(Rule::parse("dual_choice").unwrap().key_span(), KeySpan::Tokens(1_024));
        for (text, why) in [
            ("random:key=system", "hash the prompt's beginning"),
            ("chwbl:key=words", "key takes system, windows"),
        ] {
            let error = Rule::parse(text).err().unwrap().to_string();
            assert!(error.contains(why) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn parameters_are_understood_or_refused() {
        assert!(Rule::parse("weighted_score:affinity=3:queue=0.5").unwrap().needs().overlap);
        assert!(!Rule::parse("least_loaded").unwrap().needs().overlap);
        for (text, why) in [
            ("best", "unknown policy"),
            ("best", "preble_e2, dynamo_cost"),
            ("lbgr:x=1", "unknown policy"),
            ("weighted_score:affinity", "affinity takes a number"),
            ("weighted_score:affinity=-1", "affinity takes a number"),
            ("weighted_score:speed=1", "takes affinity and queue"),
            ("random:x=1", "no parameters"),
            ("cache_aware:preset=wild", "preset takes high_affinity"),
        ] {
            let error = Rule::parse(text).err().unwrap().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
