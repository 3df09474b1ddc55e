//! How long a peer takes to answer, as far as it has answered.
//!
//! Questions carry the asker's own time and answers repeat it, so every answer tells, whichever of several questions it is to, and nobody's
//! clock is compared with another's.

use warmroute_types::Micros;

/// Nobody is asked again sooner.
const PATIENCE_MIN: Micros = Micros::from_millis(100);

/// Nor is anybody given longer than this before, or what was lost would not be made good in two seconds.
const PATIENCE_MAX: Micros = Micros::from_millis(1_500);

/// The usual time between a question and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    /// Smoothed, and how far it swings: as TCP does it (RFC 6298).
    usual: Option<Micros>,
    swing: Micros,
}

impl RoundTrip {
    /// An answer has come so long after its question.
    pub fn note(&mut self, took: Micros) {
        let took = took.min(PATIENCE_MAX);
        let Some(usual) = self.usual else {
            (self.usual, self.swing) = (Some(took), Micros(took.0 / 2));
            return;
        };
        self.swing = Micros((3 * self.swing.0 + usual.0.abs_diff(took.0)) / 4);
        self.usual = Some(Micros((7 * usual.0 + took.0) / 8));
    }

    /// Nothing before the first answer.
    pub fn usual(&self) -> Option<Micros> {
        self.usual
    }

    /// How long to wait before asking again, after so many times in vain.
    pub fn patience(&self, in_vain: u32) -> Micros {
        let once = self.usual.map_or(PATIENCE_MIN, |usual| usual + Micros(4 * self.swing.0));
        Micros(once.max(PATIENCE_MIN).0 << in_vain.min(8)).min(PATIENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_answers_and_doubles_without_one() {
        let mut trip = RoundTrip::default();
        let in_vain = [0, 1, 2, 3, 4, 60].map(|times| trip.patience(times).0 / 1_000);
        assert_eq!(in_vain, [100, 200, 400, 800, 1_500, 1_500]);
        (0..40).for_each(|_| trip.note(Micros::from_millis(300)));
        assert_eq!(trip.usual(), Some(Micros::from_millis(300)));
        assert!((300..320).contains(&(trip.patience(0).0 / 1_000)), "it is always the same");
        trip.note(Micros::from_millis(600));
        assert!(trip.patience(0) > Micros::from_millis(600), "it swings");
        (0..60).for_each(|_| trip.note(Micros::from_millis(1)));
        assert_eq!(trip.patience(0), PATIENCE_MIN);
    }
}
