//! Pools of workers by model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warmroute_fleet::{Models, Worker, WorkerView};

use crate::NoRoute;
use crate::pool::Pool;
use crate::token_rate::TokenRate;

/// Pools of workers by model. Rebuilt from the fleet when a worker joins, leaves or changes models.
#[derive(Default)]
pub(crate) struct Pools {
    by_model: BTreeMap<Arc<str>, Pool>,
    /// Workers that accept every model.
    any: Pool,
    /// All workers, for requests that name no model.
    all: Pool,
    /// Some worker has not listed its models yet.
    some_unknown: bool,
    /// Models whose workers have all left. They may return, unlike a model that its worker unloaded.
    departed: BTreeSet<Arc<str>>,
}

/// Most departed models that are remembered.
const DEPARTED_MAX: usize = 1_024;

impl Pools {
    pub fn serving(&self, model: Option<&str>) -> Result<&Pool, NoRoute> {
        let Some(model) = model else { return Ok(&self.all) };
        match self.by_model.get(model) {
            Some(pool) => Ok(pool),
            None if !self.any.is_empty() => Ok(&self.any),
            None if self.all.is_empty() => Err(NoRoute::NoWorkers),
            None if self.some_unknown => Err(NoRoute::NotReady),
            None => Err(NoRoute::UnknownModel),
        }
    }

    /// Whether workers served this model and all of them have left.
    pub fn is_departed(&self, model: Option<&str>) -> bool {
        model.is_some_and(|model| self.departed.contains(model))
    }

    pub fn no_route_reason(&self) -> NoRoute {
        if self.all.is_empty() { NoRoute::NoWorkers } else { NoRoute::NotReady }
    }

    /// Learned tokens per byte of each model.
    pub fn token_rates(&self) -> impl Iterator<Item = (&str, f32)> {
        self.by_model.iter().filter_map(|(model, pool)| Some((&**model, pool.tokens.learned()?)))
    }

    /// Sets the members. Remaining pools keep their turn count; pools without workers are removed.
    pub fn set_members(&mut self, members: &[WorkerView], rate_of: impl Fn(&str) -> TokenRate) {
        let serving = |wanted: &dyn Fn(&Models) -> bool| -> Vec<Arc<Worker>> {
            let chosen = members.iter().filter(|view| wanted(&view.models));
            chosen.map(|view| Arc::clone(&view.worker)).collect()
        };
        self.all.set_members(serving(&|_| true));
        self.any.set_members(serving(&|models| *models == Models::Any));
        self.some_unknown = members.iter().any(|view| view.models == Models::Unknown);

        let named = |models: &Models| match models {
            Models::Named(names) => names.clone(),
            Models::Unknown | Models::Any => Vec::new(),
        };
        let names: Vec<Arc<str>> = members.iter().flat_map(|view| named(&view.models)).collect();
        let departed = |pool: &Pool| !pool.has_any(members);
        let gone = self.by_model.extract_if(.., |model, _| !names.contains(model));
        for (model, _) in gone.filter(|(_, pool)| departed(pool)) {
            if self.departed.len() < DEPARTED_MAX {
                self.departed.insert(model);
            }
        }
        names.iter().for_each(|name| _ = self.departed.remove(name));
        for name in names {
            if !self.by_model.contains_key(&name) {
                let mut pool = Pool::default();
                pool.tokens = rate_of(&name);
                self.by_model.insert(Arc::clone(&name), pool);
            }
        }
        for (model, pool) in &self.by_model {
            pool.set_members(serving(&|models| match models {
                Models::Any => true,
                Models::Named(names) => names.contains(model),
                Models::Unknown => false,
            }));
        }
    }
}
