//! BookedWork that other routers have sent, and that nobody here has heard of yet.
//!
//! It lies on some worker's load and on none of ours. How much it is follows from what they send and from how long their news is under
//! way; where it lies does not. So it makes no worker worse than another, but a choice less sure: whoever is better by less than this
//! may be taken already. By one prompt, that is: the next one goes elsewhere.

use warmroute_types::Micros;

/// What was sent longer ago says little about now.
const MEMORY: Micros = Micros::from_secs(10);

/// So likely it is that another one has chosen the worker that is best here, as far as the lab can tell.
const CHANCE: f64 = 0.25;

/// With fewer others most of what is sent is our own, and whoever steps aside does so in vain too often.
const OTHERS_MIN: usize = 3;

/// How much others send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnpropagatedLoad {
    /// Prompts and their work of late, the older the less.
    prompts: f64,
    work_ms: f64,
    at: Micros,
}

impl UnpropagatedLoad {
    /// Another router has sent a prompt that takes so long.
    pub fn note(&mut self, work_ms: f32, now: Micros) {
        let left = self.left(now);
        let work_ms = left * self.work_ms + f64::from(work_ms.max(0.0));
        *self = UnpropagatedLoad { prompts: left * self.prompts + 1.0, work_ms, at: now };
    }

    /// What is on its way to the worker that is best here, where news takes so long: a part of it all, and of a usual prompt at most.
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
    fn it_is_what_is_sent_in_the_time_that_news_takes_and_passes_when_nothing_is() {
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
