//! Pools of workers by model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_fleet::{Models, Worker, WorkerView};

use crate::NoRoute;
use crate::pool::Pool;
use crate::token_rate::TokenRate;

/// Pools of workers by model. Rebuilt from the fleet when a worker joins, leaves or changes models.
#[derive(Default)]
pub(crate) struct Pools {
    by_model: BTreeMap<Arc<str>, Arc<Pool>>,
    /// Workers that accept every model.
    any: Arc<Pool>,
    /// All workers, for requests that name no model.
    all: Arc<Pool>,
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

    /// Replaces the pools by model. Returns those that have no worker any more.
    fn replace(
        &mut self,
        by_model: BTreeMap<Arc<str>, Arc<Pool>>,
        some_unknown: bool,
    ) -> BTreeMap<Arc<str>, Arc<Pool>> {
        self.some_unknown = some_unknown;
        let mut former = std::mem::replace(&mut self.by_model, by_model);
        former.retain(|model, _| !self.by_model.contains_key(model));
        self.departed.retain(|model| !self.by_model.contains_key(model));
        former
    }

    fn note_departed(&mut self, models: Vec<Arc<str>>) {
        let room = DEPARTED_MAX.saturating_sub(self.departed.len());
        self.departed.extend(models.into_iter().take(room));
    }

    /// Learned tokens per byte of each model.
    pub fn token_rates(&self) -> impl Iterator<Item = (&str, f32)> {
        self.by_model.iter().filter_map(|(model, pool)| Some((&**model, pool.tokens.learned()?)))
    }
}

/// Sets the members. Remaining pools keep their turn count; pools without workers are removed. Everything is built
/// beside the requests: a pool is locked to exchange its members, and all pools to exchange the map. Only one thread at a
/// time may call this.
pub(crate) fn set_members(
    pools: &RwLock<Pools>,
    members: &[WorkerView],
    rate_of: impl Fn(&str) -> TokenRate,
) {
    let (any, all) = {
        let pools = pools.read();
        (Arc::clone(&pools.any), Arc::clone(&pools.all))
    };
    let mut by_name: BTreeMap<Arc<str>, Vec<Arc<Worker>>> = BTreeMap::new();
    let mut of_any = Vec::new();
    for view in members {
        match &view.models {
            Models::Unknown => {}
            Models::Any => of_any.push(Arc::clone(&view.worker)),
            Models::Named(names) => names.iter().for_each(|name| {
                by_name.entry(Arc::clone(name)).or_default().push(Arc::clone(&view.worker));
            }),
        }
    }
    all.set_members(members.iter().map(|view| Arc::clone(&view.worker)).collect());
    any.set_members(of_any.clone());
    let mut by_model = BTreeMap::new();
    for (name, mut workers) in by_name {
        let known = pools.read().by_model.get(&name).cloned();
        let pool = known.unwrap_or_else(|| Arc::new(Pool::new(rate_of(&name))));
        workers.extend(of_any.iter().cloned());
        pool.set_members(workers);
        by_model.insert(name, pool);
    }
    let some_unknown = members.iter().any(|view| view.models == Models::Unknown);
    let former = pools.write().replace(by_model, some_unknown);
    let departed = former.into_iter().filter(|(_, pool)| !pool.has_any(members)).map(|(model, _)| model);
    let departed: Vec<Arc<str>> = departed.collect();
    if !departed.is_empty() {
        pools.write().note_departed(departed);
    }
}
