//! The policies of a router, as options name them.

use warmroute_types::{BadSetting, check_settings};

use crate::{BadPolicy, Policy, Standard};

/// The active policy, the shadow policies, and thresholds that are options of their own, as in other routers.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySettings {
    /// The active policy: its name and parameters.
    pub active: String,
    /// Policies that are evaluated without acting.
    pub shadows: Vec<String>,
    /// Threshold of `cache_aware`; it wins over the policy's preset.
    pub cache_threshold: Option<f64>,
    /// `balance_abs` of `cache_aware`; it wins over the policy's preset.
    pub balance_abs: Option<u32>,
    /// `balance_rel` of `cache_aware`; it wins over the policy's preset.
    pub balance_rel: Option<f64>,
}

impl Default for PolicySettings {
    fn default() -> PolicySettings {
        PolicySettings {
            active: "expected_ttft".to_owned(),
            shadows: Vec::new(),
            cache_threshold: None,
            balance_abs: None,
            balance_rel: None,
        }
    }
}

impl PolicySettings {
    /// Checks the thresholds whether or not the policy uses them, so that a later change of policy finds no mistake.
    pub fn validate(&self) -> Result<(), BadSetting> {
        let (share, factor) = (self.cache_threshold.unwrap_or(0.0), self.balance_rel.unwrap_or(1.0));
        let is_factor = factor.is_finite() && factor >= 1.0;
        check_settings(&[
            ("cache-threshold", (0.0..=1.0).contains(&share), "must be between 0 and 1"),
            ("balance-rel-threshold", is_factor, "must be a number of at least 1"),
        ])
    }

    /// A policy by name and parameters, with the thresholds.
    pub fn policy(&self, text: &str) -> Result<Standard, BadPolicy> {
        let mut policy = text.parse()?;
        if let Standard::CacheAware(rule) = &mut policy {
            rule.cache_threshold = self.cache_threshold.unwrap_or(rule.cache_threshold);
            rule.balance_abs = self.balance_abs.unwrap_or(rule.balance_abs);
            rule.balance_rel = self.balance_rel.unwrap_or(rule.balance_rel);
        }
        Ok(policy)
    }

    /// The shadow policies. They must differ from the active one and from each other.
    pub fn shadow_policies(&self, active: &Standard) -> Result<Vec<Standard>, BadPolicy> {
        let mut shadows: Vec<Standard> = Vec::new();
        for text in &self.shadows {
            let shadow = self.policy(text)?;
            if [active].into_iter().chain(&shadows).any(|taken| taken.name() == shadow.name()) {
                return Err(BadPolicy::Twice(text.clone()));
            }
            shadows.push(shadow);
        }
        Ok(shadows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_win_over_a_preset_and_are_checked_for_every_policy() {
        let settings = PolicySettings { balance_abs: Some(7), ..PolicySettings::default() };
        let Ok(Standard::CacheAware(rule)) = settings.policy("cache_aware:preset=load_focused") else {
            panic!()
        };
        assert_eq!((rule.cache_threshold, rule.balance_abs, rule.balance_rel), (0.5, 7, 1.2));
        let settings = PolicySettings { balance_rel: Some(f64::NAN), ..settings };
        assert_eq!(settings.validate().unwrap_err().option, "balance-rel-threshold");
    }

    #[test]
    fn shadows_differ_from_the_active_policy_and_from_each_other() {
        let active = "product".parse().unwrap();
        let shadows = |shadows: &[&str]| {
            let shadows = shadows.iter().map(|shadow| (*shadow).to_owned()).collect();
            PolicySettings { shadows, ..PolicySettings::default() }.shadow_policies(&active)
        };
        assert_eq!(shadows(&["random", "round_robin"]).unwrap().len(), 2);
        assert_eq!(shadows(&["random", "random"]).unwrap_err(), BadPolicy::Twice("random".to_owned()));
        assert_eq!(shadows(&["lmetric"]).unwrap_err(), BadPolicy::Twice("lmetric".to_owned()));
    }
}
