//! Hardware of the engines: the constants that baselines expect to be calibrated.

use warmroute_engine::{Config as EngineConfig, Profile, StepCost, StepWork};
use warmroute_types::WorkerId;

/// Hardware of one engine.
#[derive(Clone, Debug)]
pub struct Machine {
    cost: StepCost,
    step_tokens_max: u32,
    pub kv_tokens: u64,
    pub block_tokens: u32,
}

impl Machine {
    fn of(engine: &EngineConfig) -> Machine {
        Machine {
            cost: engine.profile.cost().at_speed(engine.speed_percent),
            step_tokens_max: engine.step_tokens_max,
            kv_tokens: engine.kv_tokens,
            block_tokens: engine.block_size,
        }
    }

    /// Prefill time of a prompt alone, from its cached tokens on, in the engine's chunks.
    pub fn prefill_ms(&self, cached_tokens: u32, prompt_tokens: u32) -> f64 {
        let mut at = cached_tokens;
        let mut total_ms = 0.0;
        while at < prompt_tokens {
            let chunk = (prompt_tokens - at).min(self.step_tokens_max);
            let mut work = StepWork::default();
            work.add_prefill(at, chunk);
            total_ms += self.cost.prefill.ms(&work);
            at += chunk;
        }
        total_ms
    }

    /// Time per prompt token at the peak rate, calibrated on a full step of one cold prompt.
    pub fn token_ms(&self) -> f64 {
        self.prefill_ms(0, self.step_tokens_max) / f64::from(self.step_tokens_max)
    }
}

/// Hardware of all engines, by worker index.
#[derive(Debug)]
pub struct Machines {
    by_worker: Vec<Machine>,
    /// Default for workers that have not been announced.
    unknown: Machine,
}

impl Default for Machines {
    fn default() -> Machines {
        let unknown = Machine::of(&EngineConfig::for_profile(Profile::Llama3_1_8b));
        Machines { by_worker: Vec::new(), unknown }
    }
}

impl Machines {
    pub fn set(&mut self, worker: WorkerId, engine: &EngineConfig) {
        let workers = self.by_worker.len().max(worker.index() + 1);
        self.by_worker.resize(workers, self.unknown.clone());
        self.by_worker[worker.index()] = Machine::of(engine);
    }

    pub fn at(&self, worker: WorkerId) -> &Machine {
        self.by_worker.get(worker.index()).unwrap_or(&self.unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_takes_its_chunks_and_a_slow_machine_twice_as_long() {
        let mut machines = Machines::default();
        let slow = EngineConfig { speed_percent: 50, ..EngineConfig::for_profile(Profile::Llama3_1_8b) };
        machines.set(WorkerId(3), &slow);
        let (quick, slow) = (machines.at(WorkerId(0)), machines.at(WorkerId(3)));
        let whole = quick.prefill_ms(0, 16_384);
        assert_eq!(whole, quick.prefill_ms(0, 8_192) + quick.prefill_ms(8_192, 16_384));
        assert!((slow.prefill_ms(0, 16_384) / whole - 2.0).abs() < 1e-9);
        assert_eq!(quick.prefill_ms(500, 500), 0.0);
        // Calibration point of the profile: 8,192 cold tokens in about 0.2 s.
        assert!((0.02..0.04).contains(&quick.token_ms()), "{}", quick.token_ms());
    }
}
