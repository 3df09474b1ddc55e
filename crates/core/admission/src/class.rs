//! How urgent a request is, as its sender says.

/// A class of requests. Those of a higher one go first, but not always: see [`Queue`](crate::Queue).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Somebody waits for it.
    High,
    /// Nobody said anything.
    #[default]
    Normal,
    /// It has time.
    Low,
}

impl Class {
    /// All of them, the most urgent first.
    pub const ALL: [Class; 3] = [Class::High, Class::Normal, Class::Low];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::High => "high",
            Class::Normal => "normal",
            Class::Low => "low",
        }
    }

    /// The class that a header names; whatever is no class is normal.
    pub fn named(name: &str) -> Class {
        let is_meant = |class: &Class| name.trim().eq_ignore_ascii_case(class.as_str());
        Class::ALL.into_iter().find(is_meant).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_known_by_its_name() {
        assert_eq!(Class::named(" High "), Class::High);
        assert_eq!(Class::named("low"), Class::Low);
        assert_eq!(Class::named("urgent!"), Class::Normal);
    }
}
