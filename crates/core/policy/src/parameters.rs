//! Reads a policy: its name, and parameters after it: `weighted_score:affinity=3:queue=2`.

use std::str::FromStr;

use warmroute_types::OptionValue;

use crate::{
    BadPolicy, CacheAware, CostTerm, ExpectedTtft, HitRule, LeastLoaded, LoadBound, Standard,
    StickyLeastLoaded, WeightedScore,
};

impl FromStr for Standard {
    type Err = BadPolicy;

    /// A name, and parameters after colons: `cache_aware:threshold=0.5:balance=either`.
    fn from_str(text: &str) -> Result<Standard, BadPolicy> {
        let mut parts = text.split(':');
        let mut policy = Standard::named(parts.next().unwrap_or_default())?;
        let bad = |why| BadPolicy::Parameter { policy: text.to_owned(), why };
        parts.try_for_each(|parameter| set(&mut policy, parameter)).map_err(bad)?;
        Ok(policy)
    }
}

/// Sets one parameter, written as `key=value`. The error says why it is invalid.
fn set(policy: &mut Standard, parameter: &str) -> Result<(), String> {
    if let (Standard::StickyLeastLoaded(rule), "literal") = (&mut *policy, parameter) {
        rule.rule = HitRule::Literal;
        return Ok(());
    }
    let (key, value) = parameter.split_once('=').ok_or_else(|| format!("`{parameter}` is not key=value"))?;
    match policy {
        Standard::ExpectedTtft(rule) => set_expected_ttft(rule, key, value),
        Standard::LeastLoaded(rule) => set_least_loaded(rule, key, value),
        Standard::WeightedScore(score) => set_score(score, key, value),
        Standard::CacheAware(rule) => set_cache_aware(rule, key, value),
        Standard::StickyLeastLoaded(rule) => set_sticky(rule, key, value),
        Standard::SessionAffinity(rule) => set_bound(&mut rule.bound, key, value),
        Standard::PrefixAffinity(rule) => set_bound(&mut rule.bound, key, value),
        Standard::DualChoice(rule) => set_bound(&mut rule.bound, key, value),
        _ => Err("this policy has no parameters".to_owned()),
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

fn set_expected_ttft(rule: &mut ExpectedTtft, key: &str, value: &str) -> Result<(), String> {
    let term = TERMS.iter().find(|(name, _)| key == "without" && *name == value);
    let unknown = || {
        let names = TERMS.map(|(name, _)| name).join(", ");
        format!("`{key}={value}`: known is without, of {names}")
    };
    rule.without = Some(term.ok_or_else(unknown)?.1);
    Ok(())
}

fn set_least_loaded(rule: &mut LeastLoaded, key: &str, value: &str) -> Result<(), String> {
    match key {
        "signal" => rule.signal = named(key, value)?,
        _ => return Err(format!("`{key}`: known is signal")),
    }
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
    match (key, value.replace('-', "_").as_str()) {
        ("preset", "high_affinity") => *rule = CacheAware::HIGH_AFFINITY,
        ("preset", "balanced") => *rule = CacheAware::BALANCED,
        ("preset", "load_focused") => *rule = CacheAware::LOAD_FOCUSED,
        ("threshold", _) => rule.cache_threshold = number(value)?,
        ("abs", _) => {
            rule.balance_abs = value.parse().map_err(|_| format!("`{value}` is no number of requests"))?;
        }
        ("rel", _) => rule.balance_rel = number(value)?,
        ("balance", _) => rule.balance = named(key, value)?,
        ("worth", _) => rule.worth = named(key, value)?,
        _ => {
            return Err(format!("`{key}={value}`: known are preset, threshold, abs, rel, balance and worth"));
        }
    }
    rule.validate()
}

fn set_sticky(rule: &mut StickyLeastLoaded, key: &str, value: &str) -> Result<(), String> {
    match key {
        "threshold" => rule.hit_threshold = share(value)?,
        "factor" => rule.bound.factor = number(value)?,
        _ => return Err(format!("`{key}`: known are threshold, factor and literal")),
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

fn share(value: &str) -> Result<f64, String> {
    number(value)
        .ok()
        .filter(|share| *share <= 1.0)
        .ok_or_else(|| format!("`{value}` is no number from 0 to 1"))
}

fn named<T: OptionValue>(key: &str, value: &str) -> Result<T, String> {
    let names = || T::VALUES.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
    T::named(value).ok_or_else(|| format!("`{key}={value}`: known are {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Balance, LoadSignal, Worth};

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

    #[test]
    fn parameters_that_are_not_understood_are_refused() {
        for (text, why) in [
            ("weighted_score:affinity", "not key=value"),
            ("weighted_score:affinity=-1", "no number"),
            ("weighted_score:queue=nan", "no number"),
            ("weighted_score:speed=1", "neither"),
            ("random:x=1", "no parameters"),
            ("least_loaded:signal=guess", "known are in-flight, waiting"),
            ("cache_aware:preset=wild", "known are"),
            ("cache_aware:worth=maybe", "known are on, off"),
            ("cache_aware:literal", "not key=value"),
            (
                "expected_ttft:without=luck",
                "known is without, of queue, behind, followers, step, eviction, lacking, ties",
            ),
            ("expected_ttft:with=queue", "known is without"),
            ("sticky_least_loaded:threshold=2", "from 0 to 1"),
            ("sticky_least_loaded:speed=2", "known are threshold, factor and literal"),
            ("cache_aware:balance=wild", "known are both, either, dynamic"),
            ("cache_aware:threshold=1.5", "between 0 and 1"),
            ("cache_aware:rel=0.5", "at least 1"),
            ("cache_aware:abs=1.5", "no number of requests"),
        ] {
            let error = text.parse::<Standard>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(text), "{text}: {error}");
        }
    }
}
