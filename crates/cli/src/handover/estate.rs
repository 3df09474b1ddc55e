//! What a process leaves to the next one beside its listeners.
//!
//! ```text
//! warmroute-handover-1 12 clients admin activated=clients watchdog-usec=30000000 notify=/run/systemd/notify
//! ```
//!
//! One line. The names are those of the listeners that come along, in order; whatever stands behind them an older process does not read.

use std::fmt;

use super::Purpose;

/// What is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estate {
    /// How many requests might still have been sent again. The next one's are the same clients', and a process that has served nobody
    /// yet has earned none: with a worker that fails, the first of them would be lost.
    pub retries_left: u64,
    /// Where systemd is told what becomes of the service, which whoever was not started by it does not know.
    pub notify: Option<String>,
    /// How often it wants a sign of life.
    pub watchdog_us: Option<u64>,
    /// Which of the listeners it has opened.
    pub activated: Vec<Purpose>,
}

impl Estate {
    /// Reads the words behind the listeners' names.
    pub fn read<'a>(retries_left: u64, words: impl Iterator<Item = &'a str>) -> Estate {
        let mut estate = Estate { retries_left, ..Estate::default() };
        for word in words {
            match word.split_once('=') {
                Some(("watchdog-usec", us)) => estate.watchdog_us = us.parse().ok(),
                Some(("activated", name)) => estate.activated.extend(Purpose::named(name)),
                Some(("notify", name)) => estate.notify = Some(name.to_owned()),
                _ => {}
            }
        }
        estate
    }
}

/// As [`Estate::read`] has it, each word behind a space.
impl fmt::Display for Estate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activated = self.activated.iter().map(|purpose| purpose.name());
        activated.into_iter().try_for_each(|name| write!(f, " activated={name}"))?;
        self.watchdog_us.iter().try_for_each(|us| write!(f, " watchdog-usec={us}"))?;
        // A name with spaces could not be told from words; systemd has none such.
        let names = self.notify.iter().filter(|name| !name.contains(char::is_whitespace));
        names.into_iter().try_for_each(|name| write!(f, " notify={name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_unknown_words_are_skipped() {
        let estate = Estate {
            retries_left: 7,
            notify: Some("@/org/x=y".to_owned()),
            watchdog_us: Some(30_000_000),
            activated: vec![Purpose::Clients, Purpose::Mesh],
        };
        let line = " activated=clients activated=mesh watchdog-usec=30000000 notify=@/org/x=y";
        assert_eq!(estate.to_string(), line);
        let line = format!("later=1 {estate} more");
        assert_eq!(Estate::read(7, line.split_whitespace()), estate);
        let odd = Estate { notify: Some("a b".to_owned()), ..Estate::default() };
        assert_eq!(odd.to_string(), "");
    }
}
