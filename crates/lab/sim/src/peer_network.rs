//! Network between the routers of a run, and the balancer before them.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use warmroute_types::{Micros, OptionValue, parse_time};

/// Network over which routers share state.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerNetwork {
    /// One-way delay.
    pub delay: Micros,
    /// Share of messages lost, from 0 to 1.
    pub loss: f64,
    /// Periods in which half of the routers cannot reach the other half.
    pub partitions: Vec<Partition>,
}

/// A period of network partition. Written `60..90`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Start, inclusive.
    pub from: Micros,
    /// End, exclusive.
    pub until: Micros,
}

/// Rule by which requests are spread over the routers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balancer {
    /// Round robin, without regard to sessions.
    #[default]
    Turns,
    /// One router per session, by a hash of the session key.
    Session,
}

impl OptionValue for Balancer {
    const VALUES: &'static [(Balancer, &'static str, &'static str)] = &[
        (Balancer::Turns, "turns", "In turn"),
        (Balancer::Session, "session", "All requests of a session to the same router"),
    ];
}

impl PeerNetwork {
    /// Whether a message between two routers passes the partitions at this time.
    pub fn passes(&self, from: usize, to: usize, routers: usize, now: Micros) -> bool {
        let side = |router: usize| 2 * router < routers;
        let is_parted = |partition: &Partition| (partition.from..partition.until).contains(&now);
        side(from) == side(to) || !self.partitions.iter().any(is_parted)
    }
}

/// Error for text that is no period.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no stretch of time: expected two times, as in 60..90 (seconds) or 1m..90s")]
pub struct BadPartition(String);

impl FromStr for Partition {
    type Err = BadPartition;

    fn from_str(text: &str) -> Result<Partition, BadPartition> {
        let seconds = |word: &str| parse_time(word, Duration::from_secs(1)).map(Micros::from);
        let (from, until) = text.split_once("..").ok_or_else(|| BadPartition(text.to_owned()))?;
        match (seconds(from), seconds(until)) {
            (Some(from), Some(until)) if from < until => Ok(Partition { from, until }),
            _ => Err(BadPartition(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_separates_the_halves_and_ends() {
        let partition: Partition = "1m..90500ms".parse().unwrap();
        assert_eq!(partition, Partition { from: Micros::from_secs(60), until: Micros::from_millis(90_500) });
        let network = PeerNetwork { delay: Micros::ZERO, loss: 0.0, partitions: vec![partition] };
        let passes = |from, to, at| network.passes(from, to, 3, Micros::from_secs(at));
        assert!(passes(0, 1, 70) && !passes(0, 2, 70) && !passes(2, 1, 70));
        assert!(passes(0, 2, 59) && passes(0, 2, 91));
        for bad in ["60", "90..60", "a..b", "-1..3", "1..inf"] {
            assert!(bad.parse::<Partition>().is_err(), "{bad}");
        }
    }
}
