//! Random numbers that are the same on every machine and in every version, so that a seed identifies a run.
//!
//! SplitMix64: six lines, and a sequence that no dependency can change.

use warmroute_types::Micros;
pub use warmroute_types::mix;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Stream of a seed and a purpose. Streams with different purposes are independent.
    pub fn new(seed: u64, purpose: u64) -> Random {
        Random { state: mix(seed ^ mix(purpose)) }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Uniform between 0 and 1, both exclusive.
    pub fn share(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Uniform between two integers, both inclusive.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.bits() % (most - least + 1)
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }

    /// Time until the next event of a Poisson process.
    pub fn gap(&mut self, rate_per_s: f64) -> Micros {
        Micros::from_millis_f64(self.exponential(1_000.0 / rate_per_s))
    }

    /// Log-normal, by its median and the standard deviation of its logarithm.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let (radius, angle) = ((-2.0 * self.share().ln()).sqrt(), std::f64::consts::TAU * self.share());
        median * (sigma * radius * angle.cos()).exp()
    }

    /// Log-normal token count within bounds.
    pub fn tokens(&mut self, median: f64, sigma: f64, least: u32, most: u32) -> u32 {
        (self.log_normal(median, sigma).round() as u32).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_purpose_others() {
        let stream = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            [random.bits(), random.bits(), random.bits()]
        };
        assert_eq!(stream(7, 1), stream(7, 1));
        assert_ne!(stream(7, 1), stream(7, 2));
        assert_ne!(stream(7, 1), stream(8, 1));
    }

    #[test]
    fn draws_have_the_requested_mean_and_median() {
        let mut random = Random::new(1, 1);
        let mean = (0..100_000).map(|_| random.exponential(5.0)).sum::<f64>() / 1e5;
        assert!((mean - 5.0).abs() < 0.1, "{mean}");
        let mut draws: Vec<f64> = (0..10_001).map(|_| random.log_normal(300.0, 1.0)).collect();
        draws.sort_by(f64::total_cmp);
        assert!((draws[5_000] / 300.0 - 1.0).abs() < 0.05, "{}", draws[5_000]);
    }
}
