//! Values of an option that have names.

/// An enum that is an option. Flags, configuration files, help texts and errors all use its one list of names.
pub trait OptionValue: Copy + Eq + Send + Sync + 'static {
    /// Every value with its name and its meaning, in the order of the help text.
    const VALUES: &'static [(Self, &'static str, &'static str)];

    /// The value's name.
    fn name(self) -> &'static str {
        Self::VALUES.iter().find(|(value, _, _)| *value == self).map_or("", |(_, name, _)| name)
    }

    /// The value of this name.
    fn named(name: &str) -> Option<Self> {
        Self::VALUES.iter().find(|(_, known, _)| *known == name).map(|(value, _, _)| *value)
    }
}
