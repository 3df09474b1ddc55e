//! Pools of workers by model.

use std::collections::BTreeMap;
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
}

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
        self.by_model.retain(|model, _| names.contains(model));
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
