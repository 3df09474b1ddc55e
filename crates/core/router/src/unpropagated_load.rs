//! Work that peers have assigned in decisions that this router has not received yet.
//!
//! The amount follows from the peers' rate of assignments and the message delay; the workers are unknown. It
//! therefore changes no worker's cost but widens ties: candidates within this margin count as equal. The
//! margin is at most one prompt, because the peer's next prompt goes to another worker.

use warmroute_types::Micros;

/// Time constant of the moving sums.
const MEMORY: Micros = Micros::from_secs(10);

/// Probability that a peer has chosen the worker that is best here, as measured in the lab.
const CHANCE: f64 = 0.25;

/// Minimum of peers. With fewer, most load is our own and stepping aside rarely pays.
const OTHERS_MIN: usize = 3;

/// Moving sums of the peers' assignments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnpropagatedLoad {
    /// Number of prompts and their work, exponentially decayed.
    prompts: f64,
    work_ms: f64,
    at: Micros,
}

impl UnpropagatedLoad {
    /// Records a peer's assignment with its expected work.
    pub fn note(&mut self, work_ms: f32, now: Micros) {
        let left = self.left(now);
        let work_ms = left * self.work_ms + f64::from(work_ms.max(0.0));
        *self = UnpropagatedLoad { prompts: left * self.prompts + 1.0, work_ms, at: now };
    }

    /// Expected work under way to the best worker for a message delay `lag`: a share of the total, at most
    /// one mean prompt.
    pub fn expected(&self, others: usize, lag: Micros, now: Micros) -> Micros {
        if others < OTHERS_MIN {
            return Micros::ZERO;
        }
        let share = self.left(now) * lag.0 as f64 / MEMORY.0 as f64;
        let usual_ms = self.work_ms / self.prompts.max(f64::MIN_POSITIVE);
        Micros(((self.work_ms * share).min(usual_ms) * CHANCE * 1e3) as u64)
    }

    fn left(&self, now: Micros) -> f64 {
        (-(now.since(self.at).0 as f64) / MEMORY.0 as f64).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpropagated_load_is_the_peers_load_within_the_network_delay() {
        let mut unpropagated_load = UnpropagatedLoad::default();
        let ms = Micros::from_millis;
        assert_eq!(unpropagated_load.expected(7, ms(50), ms(1)), Micros::ZERO);
        // Three seconds of work in each second, for a minute.
        (0..600).for_each(|tenth| unpropagated_load.note(300.0, ms(100 * tenth)));
        let expected = |lag, at| unpropagated_load.expected(7, ms(lag), ms(at)).0 / 1_000;
        assert!((35..=40).contains(&expected(50, 60_000)), "{}", expected(50, 60_000));
        assert!((70..=75).contains(&expected(100, 60_000)));
        assert!((74..=75).contains(&expected(500, 60_000)), "not more than one of them");
        assert_eq!(unpropagated_load.expected(1, ms(50), ms(60_000)), Micros::ZERO, "of one other");
        assert_eq!((expected(0, 60_000), expected(50, 160_000)), (0, 0));
    }
}
