//! Engine kinds: workers that serve the same model share one latency model.
//!
//! A 70B model and a 3B model in one fleet differ in every coefficient, so one model for all would be wrong for both. Workers with
//! the same model on different hardware differ mostly by a factor, which is their relative latency.

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use crate::Models;
use crate::answer_time::AnswerTime;
use crate::latency_model::{LatencyModel, PrefillCost, SharedCost};
use crate::places::FullEngines;

/// Maximum number of distinguished kinds. Beyond, new ones share the first, which also has workers of unknown models.
pub(crate) const KINDS_MAX: usize = 32;

/// The name of the kind that has workers of unknown models.
const UNNAMED: u64 = 0;

/// What is learned for one kind of engine.
#[derive(Debug)]
pub(crate) struct EngineKind {
    model: Mutex<LatencyModel>,
    cost: SharedCost,
    answers: AnswerTime,
    full: Mutex<FullEngines>,
}

/// All kinds of a fleet.
#[derive(Debug)]
pub(crate) struct EngineKinds {
    kinds: Box<[EngineKind]>,
    /// By kind: the hash of its model's name; [`UNNAMED`] for the first.
    names: Mutex<Vec<u64>>,
}

impl Default for EngineKind {
    fn default() -> EngineKind {
        EngineKind {
            model: Mutex::new(LatencyModel::new()),
            cost: SharedCost::default(),
            answers: AnswerTime::default(),
            full: Mutex::default(),
        }
    }
}

impl EngineKind {
    /// The latency model, to be taught. [`EngineKind::publish`] makes what it learned visible to decisions.
    pub(crate) fn model(&self) -> &Mutex<LatencyModel> {
        &self.model
    }

    /// Shows decisions what the model has learned.
    pub(crate) fn publish(&self) {
        self.cost.set(self.model.lock().cost());
    }

    /// What decisions read.
    pub(crate) fn cost(&self) -> PrefillCost {
        self.cost.get()
    }

    /// What its answers take.
    pub(crate) fn answers(&self) -> &AnswerTime {
        &self.answers
    }

    /// Reports of its full engines.
    pub(crate) fn full(&self) -> &Mutex<FullEngines> {
        &self.full
    }

    fn replace(&self, model: LatencyModel) {
        *self.model.lock() = model;
        self.answers.forget();
        *self.full.lock() = FullEngines::default();
        self.publish();
    }
}

impl Default for EngineKinds {
    fn default() -> EngineKinds {
        EngineKinds {
            kinds: (0..KINDS_MAX).map(|_| EngineKind::default()).collect(),
            names: Mutex::new(vec![UNNAMED]),
        }
    }
}

impl EngineKinds {
    /// A kind by its number.
    pub(crate) fn get(&self, kind: u8) -> &EngineKind {
        &self.kinds[usize::from(kind) % KINDS_MAX]
    }

    /// The kind of workers that serve these models. The first name is the base model's: LoRA adapters are listed after it.
    /// `is_used` tells whether any worker has a kind, so that kinds of models that are gone can be reused.
    pub(crate) fn of(&self, models: &Models, is_used: impl Fn(u8) -> bool) -> u8 {
        match models {
            Models::Named(names) => {
                names.first().map_or(0, |name| self.of_name(xxh3_64(name.as_bytes()), is_used))
            }
            Models::Unknown | Models::Any => 0,
        }
    }

    fn of_name(&self, name: u64, is_used: impl Fn(u8) -> bool) -> u8 {
        let mut names = self.names.lock();
        if let Some(kind) = names.iter().position(|&known| known == name) {
            return kind as u8;
        }
        if names.len() < KINDS_MAX {
            names.push(name);
            return (names.len() - 1) as u8;
        }
        let Some(kind) = (1..KINDS_MAX as u8).find(|&kind| !is_used(kind)) else { return 0 };
        names[usize::from(kind)] = name;
        self.get(kind).replace(LatencyModel::new());
        kind
    }

    /// What was learned, by the hashes of the models' names, for a saved state.
    pub(crate) fn numbers(&self) -> Vec<(u64, Vec<f64>)> {
        let names = self.names.lock();
        let kinds = names.iter().zip(&self.kinds);
        kinds.map(|(name, kind)| (*name, kind.model.lock().numbers())).collect()
    }

    /// Restores what was learned for a model. Numbers that are corrupt change nothing.
    pub(crate) fn restore(&self, name: u64, numbers: &[f64]) {
        let Some(model) = LatencyModel::of_numbers(numbers) else { return };
        let kind = self.of_name(name, |_| true);
        if kind > 0 || name == UNNAMED {
            self.get(kind).replace(model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency_model::{ObservedStep, PrefillFeatures, Verified};

    #[test]
    fn workers_of_one_model_have_one_kind_and_adapters_do_not_matter() {
        let kinds = EngineKinds::default();
        let of = |names: &[&str]| kinds.of(&Models::named(names), |_| true);
        assert_eq!(kinds.of(&Models::Any, |_| true), 0);
        let (small, large) = (of(&["3b"]), of(&["70b"]));
        assert!(small != large && small != 0 && large != 0);
        assert_eq!(of(&["3b", "an-adapter"]), small);
        (0..100).for_each(|n| _ = of(&[&n.to_string()]));
        assert_eq!(of(&["one too many"]), 0, "the rest share one");
        assert_eq!(of(&["3b"]), small, "and the others stay");
        let reused = kinds.of(&Models::named(&["new"]), |kind| kind != 7);
        assert_eq!(reused, 7, "a kind that no worker has is free");
    }

    #[test]
    fn what_one_kind_learns_another_does_not() {
        let kinds = EngineKinds::default();
        let (small, large) =
            (kinds.of(&Models::named(&["3b"]), |_| true), kinds.of(&Models::named(&["70b"]), |_| true));
        let features = PrefillFeatures { miss_tokens: 1_000, ..PrefillFeatures::default() };
        for _ in 0..30 {
            for (kind, took_ms) in [(small, 10.0), (large, 400.0)] {
                let vector = features.vector();
                let step = ObservedStep {
                    features: vector,
                    features_if_cold: vector,
                    took_ms,
                    verified: Verified::Yes,
                };
                kinds.get(kind).model().lock().observe(&step);
            }
        }
        [small, large].into_iter().for_each(|kind| kinds.get(kind).publish());
        let ms = |kind| kinds.get(kind).cost().prefill_ms(&features);
        assert!((9.0..11.0).contains(&ms(small)) && (380.0..420.0).contains(&ms(large)));
        let restored = EngineKinds::default();
        kinds.numbers().iter().for_each(|(name, numbers)| restored.restore(*name, numbers));
        let back = restored.of(&Models::named(&["70b"]), |_| true);
        assert_eq!(restored.get(back).cost().prefill_ms(&features), ms(large));
    }
}
