//! Arrivals recorded by a coarse clock.
//!
//! In a trace whose requests all arrive at multiples of three seconds, every tick would fill the queues. Each
//! request is therefore moved to a random time within its tick.

use warmroute_types::Micros;

use crate::Session;
use crate::random::Random;

/// Shorter ticks are ignored.
const TICK_MIN: Micros = Micros::from_millis(500);

/// Spreads quantised arrivals over their ticks. Returns a note if it did.
pub fn smear(sessions: &mut [Session], seed: u64) -> Option<String> {
    let tick = tick(sessions)?;
    let mut random = Random::new(seed, 802);
    for session in sessions.iter_mut() {
        session.starts = session.starts + Micros(random.between(0, tick.0 - 1));
    }
    let tick_ms = tick.as_millis_f64();
    Some(format!(
        "arrivals were recorded in ticks of {tick_ms} ms: each was put anywhere within its tick, by lot"
    ))
}

/// The clock's tick, if nearly all gaps between arrivals are multiples of it, within 1 %, and ticks have
/// several arrivals.
fn tick(sessions: &[Session]) -> Option<Micros> {
    let mut stamps: Vec<u64> = sessions.iter().map(|session| session.starts.0).collect();
    stamps.sort_unstable();
    stamps.dedup();
    if stamps.len() < 3 || stamps.len() * 2 > sessions.len() {
        return None;
    }
    let mut gaps: Vec<u64> = stamps.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let tick = gaps[gaps.len() / 2];
    let is_multiple = |gap: u64| {
        let off = gap % tick;
        off.min(tick - off) <= tick / 100
    };
    let multiples = gaps.iter().filter(|&&gap| is_multiple(gap)).count();
    (tick >= TICK_MIN.0 && multiples * 10 >= gaps.len() * 9).then_some(Micros(tick))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Piece;

    fn at_ms(times: impl Iterator<Item = u64>) -> Vec<Session> {
        let piece = Piece { content: 1, tokens: 1 };
        times.map(|ms| Session::single(Micros::from_millis(ms), vec![piece], vec![piece])).collect()
    }

    #[test]
    fn quantised_arrivals_are_spread_and_exact_ones_kept() {
        let mut ticking = at_ms((0..300).map(|n| n / 10 * 3_000));
        assert!(smear(&mut ticking, 1).unwrap().contains("3000 ms"));
        for (number, session) in (0_u64..).zip(&ticking) {
            let tick = number / 10 * 3_000_000;
            assert!((tick..tick + 3_000_000).contains(&session.starts.0));
        }
        let mut jittering = at_ms((0..300).map(|n| n / 10 * 3_000 + n / 10 % 3));
        assert!(smear(&mut jittering, 1).is_some(), "a clock that is off by a millisecond still ticks");
        let mut flowing = at_ms((0..300).map(|n| n * 37));
        assert_eq!(smear(&mut flowing, 1), None);
        assert_eq!(flowing, at_ms((0..300).map(|n| n * 37)));
    }
}
