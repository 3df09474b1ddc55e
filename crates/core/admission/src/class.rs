//! The priority of a request: as its sender states it, up to the allowed maximum.

/// A priority class. A higher class mostly goes first: see [`AdmissionQueue`](crate::AdmissionQueue) for the
/// exception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Interactive: a person waits for the answer.
    High,
    /// No class was stated.
    #[default]
    Normal,
    /// Batch work without urgency.
    Low,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Class; 3] = [Class::High, Class::Normal, Class::Low];

    /// The class's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::High => "high",
            Class::Normal => "normal",
            Class::Low => "low",
        }
    }

    /// The class with this name, if there is one.
    pub fn named(name: &str) -> Option<Class> {
        let is_meant = |class: &Class| name.trim().eq_ignore_ascii_case(class.as_str());
        Class::ALL.into_iter().find(is_meant)
    }

    /// This class, or the highest allowed one.
    pub fn at_most(self, highest: Class) -> Class {
        // The most urgent class is the smallest value.
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
    fn a_class_is_capped_at_the_allowed_one_and_may_be_lower() {
        assert_eq!(Class::High.at_most(Class::Normal), Class::Normal);
        assert_eq!(Class::High.at_most(Class::High), Class::High);
        assert_eq!(Class::Low.at_most(Class::Normal), Class::Low);
        assert_eq!(Class::Normal.at_most(Class::Low), Class::Low);
    }
}
