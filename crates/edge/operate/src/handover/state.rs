//! What a process passes to its successor besides the listeners.
//!
//! ```text
//! warmroute-handover-1 12 clients admin activated=clients watchdog-usec=30000000 notify=/run/systemd/notify
//! ```
//!
//! One line. The names are those of the passed listeners, in order. Older versions ignore the words after them.

use std::fmt;

use super::Purpose;

/// The handover state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandoverState {
    /// Retries left in the budget. A process that has served no request has earned none, so without these its first
    /// failed request would be lost.
    pub retries_left: u64,
    /// systemd's notify socket. A successor that systemd did not start has no other way to know it.
    pub notify: Option<String>,
    /// systemd's watchdog timeout in microseconds.
    pub watchdog_us: Option<u64>,
    /// The listeners that systemd opened.
    pub activated: Vec<Purpose>,
}

impl HandoverState {
    /// Parses the words after the listeners' names.
    pub fn read<'a>(retries_left: u64, words: impl Iterator<Item = &'a str>) -> HandoverState {
        let mut state = HandoverState { retries_left, ..HandoverState::default() };
        for word in words {
            match word.split_once('=') {
                Some(("watchdog-usec", us)) => state.watchdog_us = us.parse().ok(),
                Some(("activated", name)) => state.activated.extend(Purpose::named(name)),
                Some(("notify", name)) => state.notify = Some(name.to_owned()),
                _ => {}
            }
        }
        state
    }
}

/// The inverse of [`HandoverState::read`]: each word follows a space.
impl fmt::Display for HandoverState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let activated = self.activated.iter().map(|purpose| purpose.name());
        activated.into_iter().try_for_each(|name| write!(f, " activated={name}"))?;
        self.watchdog_us.iter().try_for_each(|us| write!(f, " watchdog-usec={us}"))?;
        // A name with spaces cannot be encoded; systemd uses none.
        let names = self.notify.iter().filter(|name| !name.contains(char::is_whitespace));
        names.into_iter().try_for_each(|name| write!(f, " notify={name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_state_reads_back_and_unknown_words_are_skipped() {
        let state = HandoverState {
            retries_left: 7,
            notify: Some("@/org/x=y".to_owned()),
            watchdog_us: Some(30_000_000),
            activated: vec![Purpose::Clients, Purpose::Mesh],
        };
        let line = " activated=clients activated=mesh watchdog-usec=30000000 notify=@/org/x=y";
        assert_eq!(state.to_string(), line);
        let line = format!("later=1 {state} more");
        assert_eq!(HandoverState::read(7, line.split_whitespace()), state);
        let odd = HandoverState { notify: Some("a b".to_owned()), ..HandoverState::default() };
        assert_eq!(odd.to_string(), "");
    }
}
