//! What a prompt costs a worker, learned from what prompts have cost.
//!
//! A least-squares fit of milliseconds on a few features of the request and of the batch it joins, none of which can make a
//! prompt cheaper: every coefficient is held at or above zero. Old observations fade, so that a worker whose pace has
//! changed is learned anew; each observation counts by its relative error, so that a hundred short prompts say as much
//! about short prompts as a long one says about long ones; and one that is far off is pulled in, so that a single stall
//! does not rewrite what is known. A worker that has shown little is believed to be like the others.

/// What a prompt's time may depend on.
pub(crate) const FEATURES: usize = 8;

/// The features of a prompt, or of several that were computed together, in sum.
pub(crate) type Features = [f64; FEATURES];

/// What is known of a request when its time is asked for, and again when it is learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Effort {
    /// Prompt tokens to compute.
    pub miss_tokens: u32,
    /// Prompt tokens before those, which they have to look at.
    pub cached_tokens: u32,
    /// Of these, what must be fetched from slower memory.
    pub restored_tokens: u32,
    /// Answers that are being written meanwhile.
    pub decoding: u32,
    /// Tokens of context that they read at each step.
    pub context_tokens: u64,
    /// The whole prompt's tokens, if others must leave the worker's memory before it fits; else 0.
    pub crowded_tokens: u32,
    /// Where it stands.
    pub place: Place,
}

/// Where a prompt stood when its time began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Nothing was before it: it had to be sent, and to wait for a step to end.
    #[default]
    First,
    /// Another prompt was: it was there already when that one was done.
    Behind,
}

/// How fast a worker is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Speed {
    /// Milliseconds for each feature.
    pub ms: [f32; FEATURES],
    /// How many times as long as [`Speed::UNKNOWN`] it has taken in all. Unlike the single coefficients, of which one may stand
    /// for another while all prompts are alike, this is always well known.
    pub slowness: f32,
}

/// An observation keeps so much of its weight with each one after it.
const FADING: f64 = 0.99;
/// The fleet's knowledge counts as so many observations of a worker's own.
const FLEET_WEIGHT: f64 = 10.0;
/// What was believed before anything was seen counts as so much of one observation.
const UNKNOWN_WEIGHT: f64 = 0.2;
/// An observation is pulled in to so many times what was expected.
const OUTLIER_FACTOR: f64 = 4.0;
/// The first observations are taken as they are: what they are compared with is a guess.
const TRUSTING: f64 = 6.0;
/// Times below this are all alike.
const RESOLUTION_MS: f64 = 4.0;
/// Rounds of coordinate descent for each observation, from where the last one ended.
const ROUNDS: usize = 4;

impl Effort {
    pub(crate) fn features(&self) -> Features {
        let miss = f64::from(self.miss_tokens);
        let (first, behind) = match self.place {
            Place::First => (1.0, 0.0),
            Place::Behind => (0.0, 1.0),
        };
        [
            first,
            behind,
            miss / 1e3,
            miss * (f64::from(self.cached_tokens) + miss / 2.0) / 1e6,
            f64::from(self.restored_tokens) / 1e3,
            f64::from(self.decoding) / 10.0,
            self.context_tokens as f64 / 1e5,
            f64::from(self.crowded_tokens) / 1e3,
        ]
    }
}

impl Speed {
    /// Before anything is known: an 8-billion-parameter model on one large GPU, roughly. What compares workers is the same at
    /// any speed, and a few answers are enough to know better.
    pub(crate) const UNKNOWN: Speed = Speed { ms: [6.0, 1.0, 25.0, 0.7, 5.0, 0.1, 3.0, 0.0], slowness: 1.0 };

    /// Milliseconds until the first token, once it is this prompt's turn.
    pub(crate) fn prefill_ms(&self, effort: &Effort) -> f32 {
        let terms = self.ms.iter().zip(effort.features());
        terms.map(|(ms, feature)| ms * feature as f32).sum()
    }

    /// Milliseconds that a request adds to one token of every answer, its own included. In what a step of the unknown
    /// machine takes: what times to first tokens tell about steps is too little to learn it from them.
    pub(crate) fn step_ms(&self, effort: &Effort) -> f32 {
        let decoding = effort.decoding as f32;
        let prompt_tokens = (effort.miss_tokens + effort.cached_tokens) as f32;
        let context_tokens = effort.context_tokens as f32 + decoding * prompt_tokens;
        self.slowness * (2.0 * STEP_SEQUENCE_MS * decoding + STEP_CONTEXT_MS * context_tokens)
    }
}

/// What one more answer adds to a step of the unknown machine.
const STEP_SEQUENCE_MS: f32 = 0.01;
/// What one more token of context adds.
const STEP_CONTEXT_MS: f32 = 2.9e-5;

/// Weighted sums over all observations, from which the coefficients follow.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    products: [Features; FEATURES],
    moments: Features,
    weight: f64,
    coefficients: Features,
    slowness: f64,
}

impl Fit {
    /// Nothing seen; starting from what is believed.
    pub(crate) fn starting_from(believed: Speed) -> Fit {
        Fit {
            products: [[0.0; FEATURES]; FEATURES],
            moments: [0.0; FEATURES],
            weight: 0.0,
            coefficients: believed.ms.map(f64::from),
            slowness: f64::from(believed.slowness),
        }
    }

    /// Takes in what prompts have cost. `fleet` is what all workers together have shown.
    pub(crate) fn learn(&mut self, features: &Features, took_ms: f64, fleet: Option<&Fit>) {
        let took = took_ms.clamp(0.0, self.believable_ms(features));
        let unknown = dot(features, &Speed::UNKNOWN.ms.map(f64::from)) + RESOLUTION_MS;
        let weight = unknown.powi(-2);
        self.weight = self.weight * FADING + 1.0;
        for row in 0..FEATURES {
            for column in 0..FEATURES {
                let sum = &mut self.products[row][column];
                *sum = *sum * FADING + weight * features[row] * features[column];
            }
            self.moments[row] = self.moments[row] * FADING + weight * features[row] * took;
        }
        self.slowness += ((took + RESOLUTION_MS) / unknown - self.slowness) / self.weight.max(1.0);
        self.solve(fleet);
    }

    /// More than this is somebody's fault, not the worker's pace.
    fn believable_ms(&self, features: &Features) -> f64 {
        if self.weight < TRUSTING {
            return f64::INFINITY;
        }
        OUTLIER_FACTOR * (dot(features, &self.coefficients) + RESOLUTION_MS)
    }

    fn solve(&mut self, fleet: Option<&Fit>) {
        let share = fleet.map_or(0.0, |fleet| FLEET_WEIGHT / fleet.weight.max(1.0));
        for _ in 0..ROUNDS {
            for at in 0..FEATURES {
                let own = self.pull(at, &self.coefficients);
                let others = fleet.map_or((0.0, 0.0), |fleet| fleet.pull(at, &self.coefficients));
                let believed = UNKNOWN_WEIGHT * self.products[at][at].max(1e-6) / self.weight.max(1.0);
                let moment = own.0 + share * others.0 + believed * f64::from(Speed::UNKNOWN.ms[at]);
                let product = own.1 + share * others.1 + believed;
                self.coefficients[at] = (moment / product).max(0.0);
            }
        }
    }

    /// What the observations want of one coefficient while the others stay.
    fn pull(&self, at: usize, coefficients: &Features) -> (f64, f64) {
        let product = self.products[at][at];
        let others = dot(&self.products[at], coefficients) - product * coefficients[at];
        (self.moments[at] - others, product)
    }

    /// What has been learned.
    pub(crate) fn speed(&self) -> Speed {
        Speed { ms: self.coefficients.map(|ms| ms as f32), slowness: self.slowness as f32 }
    }
}

fn dot(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that takes so long for a token, and `noise` times as long now and then.
    fn taught(fit: &mut Fit, token_ms: f64, observations: u32, fleet: Option<&Fit>) {
        for n in 0..observations {
            let effort = effort(n);
            let stall = if n % 29 == 28 { 50.0 } else { 1.0 };
            fit.learn(&effort.features(), (8.0 + f64::from(effort.miss_tokens) * token_ms) * stall, fleet);
        }
    }

    fn effort(n: u32) -> Effort {
        Effort { miss_tokens: (n * 7_919) % 6_000, cached_tokens: (n * 31) % 5_000, ..Effort::default() }
    }

    fn error(fit: &Fit, token_ms: f64) -> f64 {
        let error = |n| {
            let effort = effort(n);
            let truth = 8.0 + f64::from(effort.miss_tokens) * token_ms;
            (f64::from(fit.speed().prefill_ms(&effort)) / truth - 1.0).abs()
        };
        (0..50).map(error).sum::<f64>() / 50.0
    }

    #[test]
    fn a_pace_is_learned_from_a_few_answers_whatever_it_is() {
        for token_ms in [0.002, 0.02, 0.2, 2.0] {
            let mut fit = Fit::starting_from(Speed::UNKNOWN);
            taught(&mut fit, token_ms, 28, None);
            assert!(error(&fit, token_ms) < 0.25, "{token_ms}: {}", error(&fit, token_ms));
        }
    }

    #[test]
    fn a_stall_now_and_then_hardly_matters() {
        let mut fit = Fit::starting_from(Speed::UNKNOWN);
        taught(&mut fit, 0.05, 400, None);
        assert!(error(&fit, 0.05) < 0.3, "{}", error(&fit, 0.05));
    }

    #[test]
    fn a_new_worker_is_believed_to_be_like_the_others_until_it_shows_otherwise() {
        let mut fleet = Fit::starting_from(Speed::UNKNOWN);
        taught(&mut fleet, 0.3, 200, None);
        let mut own = Fit::starting_from(fleet.speed());
        assert!(error(&own, 0.3) < 0.3);
        taught(&mut own, 0.9, 60, Some(&fleet));
        assert!(error(&own, 0.9) < 0.3, "{}", error(&own, 0.9));
    }

    #[test]
    fn a_worker_that_has_changed_is_learned_anew() {
        let mut fit = Fit::starting_from(Speed::UNKNOWN);
        taught(&mut fit, 0.02, 1_000, None);
        taught(&mut fit, 0.1, 250, None);
        assert!(error(&fit, 0.1) < 0.3, "{}", error(&fit, 0.1));
    }
}
