//! How urgent a request is: as its sender says, as far as he may.

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

    /// The class of this name, if there is one.
    pub fn named(name: &str) -> Option<Class> {
        let is_meant = |class: &Class| name.trim().eq_ignore_ascii_case(class.as_str());
        Class::ALL.into_iter().find(is_meant)
    }

    /// This one, or the highest that is allowed.
    pub fn at_most(self, highest: Class) -> Class {
        // The most urgent is the least.
        self.max(highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_known_by_its_name() {
        assert_eq!(Class::named(" High "), Some(Class::High));
        assert_eq!(Class::named("low"), Some(Class::Low));
        assert_eq!(Class::named("urgent!"), None);
    }

    #[test]
    fn nobody_is_more_urgent_than_he_may_be_and_anybody_less() {
        assert_eq!(Class::High.at_most(Class::Normal), Class::Normal);
        assert_eq!(Class::High.at_most(Class::High), Class::High);
        assert_eq!(Class::Low.at_most(Class::Normal), Class::Low);
        assert_eq!(Class::Normal.at_most(Class::Low), Class::Low);
    }
}
