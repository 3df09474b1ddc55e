//! Reads a policy: its name, and parameters after it: `weighted_score:affinity=3:queue=2`.

use std::str::FromStr;

use warmroute_types::OptionValue;

use crate::{BadPolicy, Balance, CacheAware, CostTerm, HitRule, LoadSignal, Standard, Worth};

impl FromStr for Standard {
    type Err = BadPolicy;

    /// A name, and parameters after colons: `cache_aware:threshold=0.5:balance=either`.
    fn from_str(text: &str) -> Result<Standard, BadPolicy> {
        let mut parts = text.split(':');
        let mut policy = Standard::named(parts.next().unwrap_or_default())?;
        let bad = |why| BadPolicy::Parameter { policy: text.to_owned(), why };
        let mut given = Vec::new();
        for parameter in parts {
            let key = parameter.split_once('=').map_or(parameter, |(key, _)| key);
            if given.contains(&key) {
                return Err(bad(format!("`{key}` is given twice")));
            }
            given.push(key);
            set(&mut policy, parameter).map_err(bad)?;
        }
        Ok(policy)
    }
}

/// Sets one parameter, written as `key=value`. The error says which parameters the policy takes, or which values the
/// parameter takes.
fn set(policy: &mut Standard, parameter: &str) -> Result<(), String> {
    if let (Standard::StickyLeastLoaded(rule), "literal") = (&mut *policy, parameter) {
        rule.rule = HitRule::Literal;
        return Ok(());
    }
    let taken = parameters(policy);
    let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let Some((_, values)) = taken.iter().find(|(name, _)| *name == key) else {
        let names: Vec<&str> = taken.iter().map(|(name, _)| *name).collect();
        return Err(match taken.as_slice() {
            [] => format!("`{parameter}`: this policy has no parameters"),
            [(only, values)] => format!("`{parameter}`: this policy takes {only} only: {values}"),
            _ => format!("`{parameter}`: this policy takes {}", listed(&names, "and")),
        });
    };
    set_value(policy, key, value).ok_or_else(|| format!("`{parameter}`: {key} takes {values}"))
}

/// The parameters of a policy, each with the values that it takes.
fn parameters(policy: &Standard) -> Vec<(&'static str, String)> {
    let factor = || ("factor", "a number from 0 on, such as factor=2".to_owned());
    match policy {
        Standard::ExpectedTtft(_) => vec![("without", listed(&TERMS.map(|(name, _)| name), "or"))],
        Standard::LeastLoaded(_) => vec![("signal", names::<LoadSignal>())],
        Standard::WeightedScore(_) => {
            ["affinity", "queue"].map(|key| (key, format!("a number from 0 on, such as {key}=1.5"))).into()
        }
        Standard::CacheAware(_) => vec![
            ("preset", listed(&PRESETS.map(|(name, _)| name), "or")),
            ("threshold", "a number from 0 to 1, such as threshold=0.3".to_owned()),
            ("abs", "a whole number of requests, such as abs=64".to_owned()),
            ("rel", "a number from 1 on, such as rel=1.5".to_owned()),
            ("balance", names::<Balance>()),
            ("worth", names::<Worth>()),
        ],
        Standard::StickyLeastLoaded(_) => vec![
            ("threshold", "a number from 0 to 1, such as threshold=0.1".to_owned()),
            factor(),
            ("literal", "no value".to_owned()),
        ],
        Standard::SessionAffinity(_) | Standard::PrefixAffinity(_) | Standard::DualChoice(_) => {
            vec![factor()]
        }
        Standard::RoundRobin(_) | Standard::Random(_) | Standard::PowerOfTwo(_) | Standard::Product(_) => {
            Vec::new()
        }
    }
}

/// The terms of `expected_ttft` that `without` can name.
const TERMS: [(&str, CostTerm); 7] = [
    ("queue", CostTerm::Queue),
    ("behind", CostTerm::Behind),
    ("followers", CostTerm::Followers),
    ("step", CostTerm::Step),
    ("eviction", CostTerm::Eviction),
    ("lacking", CostTerm::Lacking),
    ("ties", CostTerm::Ties),
];

/// The thresholds of `cache_aware` that `preset` can name.
const PRESETS: [(&str, CacheAware); 3] = [
    ("high_affinity", CacheAware::HIGH_AFFINITY),
    ("balanced", CacheAware::BALANCED),
    ("load_focused", CacheAware::LOAD_FOCUSED),
];

/// Sets a parameter that the policy has. `None`: it does not take the value.
fn set_value(policy: &mut Standard, key: &str, value: &str) -> Option<()> {
    match (policy, key) {
        (Standard::ExpectedTtft(rule), "without") => rule.without = Some(of_name(&TERMS, value)?),
        (Standard::LeastLoaded(rule), "signal") => rule.signal = OptionValue::named(value)?,
        (Standard::WeightedScore(score), "affinity") => score.affinity_weight = number(value)?,
        (Standard::WeightedScore(score), "queue") => score.queue_weight = number(value)?,
        (Standard::CacheAware(rule), "preset") => *rule = of_name(&PRESETS, &value.replace('-', "_"))?,
        (Standard::CacheAware(rule), "threshold") => rule.cache_threshold = share(value)?,
        (Standard::CacheAware(rule), "abs") => rule.balance_abs = value.parse().ok()?,
        (Standard::CacheAware(rule), "rel") => {
            rule.balance_rel = number(value).filter(|factor| *factor >= 1.0)?;
        }
        (Standard::CacheAware(rule), "balance") => rule.balance = OptionValue::named(value)?,
        (Standard::CacheAware(rule), "worth") => rule.worth = OptionValue::named(value)?,
        (Standard::StickyLeastLoaded(rule), "threshold") => rule.hit_threshold = share(value)?,
        (Standard::StickyLeastLoaded(rule), "factor") => rule.bound.factor = number(value)?,
        (Standard::SessionAffinity(rule), "factor") => rule.bound.factor = number(value)?,
        (Standard::PrefixAffinity(rule), "factor") => rule.bound.factor = number(value)?,
        (Standard::DualChoice(rule), "factor") => rule.bound.factor = number(value)?,
        _ => return None,
    }
    Some(())
}

fn of_name<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

fn number(value: &str) -> Option<f64> {
    value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)
}

fn share(value: &str) -> Option<f64> {
    number(value).filter(|share| *share <= 1.0)
}

fn names<T: OptionValue>() -> String {
    listed(&T::VALUES.iter().map(|(_, name, _)| *name).collect::<Vec<_>>(), "or")
}

/// `a, b or c`.
fn listed(names: &[&str], last: &str) -> String {
    match names {
        [before @ .., end] if !before.is_empty() => format!("{} {last} {end}", before.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LeastLoaded;

    #[test]
    fn parameters_are_set_in_order() {
        let rule = |text: &str| match text.parse::<Standard>().unwrap() {
            Standard::CacheAware(rule) => (rule.cache_threshold, rule.balance_abs, rule.balance_rel),
            other => panic!("{other:?}"),
        };
        assert_eq!(rule("cache_aware"), (0.3, 64, 1.5));
        assert_eq!(rule("cache_aware:preset=high_affinity"), (0.2, 128, 2.0));
        assert_eq!(rule("cache-aware:preset=load-focused:abs=7"), (0.5, 7, 1.2));
        let waiting = "least_loaded:signal=waiting".parse().unwrap();
        assert!(matches!(waiting, Standard::LeastLoaded(LeastLoaded { signal: LoadSignal::Waiting })));
        let either = "cache_aware:balance=either".parse().unwrap();
        assert!(matches!(either, Standard::CacheAware(rule) if rule.balance == Balance::Either));
        let worthless = "cache_aware:worth=off".parse().unwrap();
        assert!(matches!(worthless, Standard::CacheAware(rule) if rule.worth == Worth::Off));
        let sticky = |text: &str| match text.parse::<Standard>().unwrap() {
            Standard::StickyLeastLoaded(rule) => (rule.rule, rule.hit_threshold, rule.bound.factor),
            other => panic!("{other:?}"),
        };
        assert_eq!(sticky("sticky_least_loaded:literal").0, HitRule::Literal);
        assert_eq!(sticky("sticky_least_loaded:threshold=0.1:factor=3"), (HitRule::Bounded, 0.1, 3.0));
    }

    /// The examples of the errors, and every name in them, are values that the parameter takes.
    #[test]
    fn the_values_that_an_error_names_are_taken() {
        for name in Standard::NAMES {
            for (key, values) in parameters(&name.parse().unwrap()) {
                let examples = match values.split_once("such as ") {
                    Some((_, example)) => vec![example.to_owned()],
                    None if key == "literal" => vec![key.to_owned()],
                    None => values
                        .replace(" or ", ", ")
                        .split(", ")
                        .map(|value| format!("{key}={value}"))
                        .collect(),
                };
                for example in examples {
                    let text = format!("{name}:{example}");
                    assert!(text.parse::<Standard>().is_ok(), "{text}");
                }
            }
        }
    }

    #[test]
    fn parameters_that_are_not_understood_are_refused() {
        for (text, why) in [
            ("weighted_score:affinity", "affinity takes a number from 0 on, such as affinity=1.5"),
            ("weighted_score:affinity=-1", "affinity takes a number from 0 on"),
            ("weighted_score:queue=nan", "queue takes a number from 0 on, such as queue=1.5"),
            ("weighted_score:speed=1", "this policy takes affinity and queue"),
            ("random:x=1", "this policy has no parameters"),
            ("weighted_score:queue=1:queue=2", "`queue` is given twice"),
            ("least_loaded:signal=guess", "signal takes in-flight or waiting"),
            ("cache_aware:preset=hi", "preset takes high_affinity, balanced or load_focused"),
            ("cache_aware:worth=maybe", "worth takes on or off"),
            ("cache_aware:literal", "this policy takes preset, threshold, abs, rel, balance and worth"),
            (
                "expected_ttft:without=luck",
                "without takes queue, behind, followers, step, eviction, lacking or ties",
            ),
            ("expected_ttft:with=queue", "this policy takes without only: queue, behind, followers"),
            (
                "prefix_affinity:window=3",
                "this policy takes factor only: a number from 0 on, such as factor=2",
            ),
            ("prefix_affinity:factor=hi", "factor takes a number from 0 on, such as factor=2"),
            ("sticky_least_loaded:threshold=2", "threshold takes a number from 0 to 1"),
            ("sticky_least_loaded:literal=yes", "literal takes no value"),
            ("sticky_least_loaded:speed=2", "this policy takes threshold, factor and literal"),
            ("cache_aware:balance=wild", "balance takes both, either or dynamic"),
            ("cache_aware:threshold=1.5", "threshold takes a number from 0 to 1, such as threshold=0.3"),
            ("cache_aware:rel=0.5", "rel takes a number from 1 on, such as rel=1.5"),
            ("cache_aware:abs=1.5", "abs takes a whole number of requests, such as abs=64"),
        ] {
            let error = text.parse::<Standard>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(text), "{text}: {error}");
        }
    }
}
