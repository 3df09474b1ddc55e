//! Pools of workers by model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_fleet::{Models, Worker, WorkerView};
use warmroute_types::WorkerId;

use crate::pool::Pool;
use crate::token_rate::TokenRate;
use crate::worker_group::allows;
use crate::{NoRoute, WorkerGroup};

/// Pools of workers by model. Rebuilt from the fleet when a worker joins, leaves or changes models.
#[derive(Default)]
pub(crate) struct Pools {
    by_model: BTreeMap<Arc<str>, Arc<Pool>>,
    /// Workers that accept every model.
    any: Arc<Pool>,
    /// All workers, for requests that name no model.
    all: Arc<Pool>,
    /// Workers that have not listed their models yet.
    unlisted: Vec<WorkerId>,
    /// Models whose workers have all left. They may return, unlike a model that its worker unloaded.
    departed: BTreeSet<Arc<str>>,
}

/// Most departed models that are remembered.
const DEPARTED_MAX: usize = 1_024;

impl Pools {
    /// The workers that serve a model, for a request that is limited to a group or to none.
    pub fn serving(&self, model: Option<&str>, within: Option<&WorkerGroup>) -> Result<&Pool, NoRoute> {
        let Some(model) = model else { return Ok(&self.all) };
        match self.by_model.get(model) {
            Some(pool) => Ok(pool),
            None if !self.any.is_empty() => Ok(&self.any),
            None if self.all.is_empty() => Err(NoRoute::NoWorkers),
            None if self.may_yet_serve(within) => Err(NoRoute::NotReady),
            None => Err(NoRoute::UnknownModel),
        }
    }

    /// Whether a group's workers may turn out to serve a model that no worker lists: one has not listed its models, or
    /// the group waits for its first worker.
    fn may_yet_serve(&self, within: Option<&WorkerGroup>) -> bool {
        self.unlisted.iter().any(|&worker| allows(within, worker)) || !self.all.has_any_of(within)
    }

    /// The model of a fleet that serves only one.
    pub fn only_model(&self) -> Option<Arc<str>> {
        let mut models = self.by_model.keys();
        models.next().filter(|_| self.any.is_empty() && models.next().is_none()).cloned()
    }

    /// Whether a worker lists this model, or did before it left.
    pub fn lists(&self, model: &str) -> bool {
        self.by_model.contains_key(model) || self.departed.contains(model)
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

    /// The pools of these members. Remaining pools keep their turn count and get their members; pools without workers are
    /// left out.
    fn with_members(&self, members: &[WorkerView], rate_of: impl Fn(&str) -> TokenRate) -> Pools {
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
        self.all.set_members(members.iter().map(|view| Arc::clone(&view.worker)).collect());
        self.any.set_members(of_any.clone());
        let mut by_model = BTreeMap::new();
        for (name, mut workers) in by_name {
            let known = self.by_model.get(&name).cloned();
            let pool = known.unwrap_or_else(|| Arc::new(Pool::new(rate_of(&name))));
            workers.extend(of_any.iter().cloned());
            pool.set_members(workers);
            by_model.insert(name, pool);
        }
        let gone = self.by_model.iter().filter(|(model, _)| !by_model.contains_key(*model));
        let departed = gone.filter(|(_, pool)| !pool.has_any(members)).map(|(model, _)| model);
        let departed = self.departed.iter().chain(departed).filter(|model| !by_model.contains_key(*model));
        let unlisted = members.iter().filter(|view| view.models == Models::Unknown);
        Pools {
            departed: departed.take(DEPARTED_MAX).cloned().collect(),
            by_model,
            any: Arc::clone(&self.any),
            all: Arc::clone(&self.all),
            unlisted: unlisted.map(|view| view.worker.id).collect(),
        }
    }
}

/// Sets the members. The pools are built beside the requests: one is locked to exchange its members, and all of them to
/// exchange the map. Only one thread at a time may call this.
pub(crate) fn set_members(
    pools: &RwLock<Pools>,
    members: &[WorkerView],
    rate_of: impl Fn(&str) -> TokenRate,
) {
    let next = pools.read().with_members(members, rate_of);
    let former = std::mem::replace(&mut *pools.write(), next);
    drop(former);
}
