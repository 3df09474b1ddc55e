//! Settings that break a rule, by the option that sets them.

/// The rule of settings that must not be zero.
pub const AT_LEAST_1: &str = "must be at least 1";

/// A setting breaks its rule. The text begins with the option's name, which the command replaces by what the user wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} {rule}")]
pub struct BadSetting {
    /// The option that sets it.
    pub option: &'static str,
    /// The rule, such as [`AT_LEAST_1`].
    pub rule: &'static str,
}

/// Refuses the first setting that breaks its rule. Each has its option, whether it keeps the rule, and the rule.
pub fn check_settings(settings: &[(&'static str, bool, &'static str)]) -> Result<(), BadSetting> {
    let broken = settings.iter().find(|(_, is_kept, _)| !is_kept);
    broken.map_or(Ok(()), |&(option, _, rule)| Err(BadSetting { option, rule }))
}
