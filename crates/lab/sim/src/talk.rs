//! How routers of one run hear of each other, if they do.

use std::str::FromStr;

use thiserror::Error;
use warmroute_types::Micros;

/// The network between routers.
#[derive(Clone, Debug, PartialEq)]
pub struct Talk {
    /// One way.
    pub delay: Micros,
    /// Share of messages that are lost.
    pub loss: f64,
    /// When half of the routers cannot reach the other half.
    pub cuts: Vec<Cut>,
}

/// A stretch of time without a connection. Written `60..90`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// From then on.
    pub from: Micros,
    /// Until then.
    pub until: Micros,
}

/// Who is before the routers, and which of them a request meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balancer {
    /// They take turns: it knows no sessions.
    #[default]
    Turns,
    /// The same one for all requests of a session, by a hash of who asks.
    Session,
}

impl Talk {
    /// Whether a message from one router to another passes at this time, as far as cuts go.
    pub fn passes(&self, from: usize, to: usize, routers: usize, now: Micros) -> bool {
        let side = |router: usize| 2 * router < routers;
        let is_cut = |cut: &Cut| (cut.from..cut.until).contains(&now);
        side(from) == side(to) || !self.cuts.iter().any(is_cut)
    }
}

/// Words that are no stretch of time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no stretch of time: expected two seconds, as in 60..90")]
pub struct BadCut(String);

impl FromStr for Cut {
    type Err = BadCut;

    fn from_str(text: &str) -> Result<Cut, BadCut> {
        let seconds = |word: &str| {
            let seconds: f64 = word.parse().ok()?;
            (seconds.is_finite() && seconds >= 0.0).then(|| Micros::from_millis_f64(seconds * 1_000.0))
        };
        let (from, until) = text.split_once("..").ok_or_else(|| BadCut(text.to_owned()))?;
        match (seconds(from), seconds(until)) {
            (Some(from), Some(until)) if from < until => Ok(Cut { from, until }),
            _ => Err(BadCut(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_parts_one_half_from_the_other_and_ends() {
        let cut: Cut = "60..90.5".parse().unwrap();
        assert_eq!(cut, Cut { from: Micros::from_secs(60), until: Micros::from_millis(90_500) });
        let talk = Talk { delay: Micros::ZERO, loss: 0.0, cuts: vec![cut] };
        let passes = |from, to, at| talk.passes(from, to, 3, Micros::from_secs(at));
        assert!(passes(0, 1, 70) && !passes(0, 2, 70) && !passes(2, 1, 70));
        assert!(passes(0, 2, 59) && passes(0, 2, 91));
        for bad in ["60", "90..60", "a..b", "-1..3", "1..inf"] {
            assert!(bad.parse::<Cut>().is_err(), "{bad}");
        }
    }
}
