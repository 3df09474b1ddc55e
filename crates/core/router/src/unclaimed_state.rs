//! Restored state that waits for its workers to join.

use std::sync::Arc;

use parking_lot::Mutex;
use warmroute_index::PendingRestore;
use warmroute_types::{Address, Micros};

use crate::saved_state::{SavedWorker, model_key};
use crate::token_rate::TokenRate;

/// The part of a saved state that no worker has claimed yet.
#[derive(Default)]
pub(crate) struct UnclaimedState(Mutex<Option<UnclaimedParts>>);

/// The parts of a saved state.
pub(crate) struct UnclaimedParts {
    pub since: Micros,
    pub recalled: Arc<PendingRestore>,
    pub workers: Vec<SavedWorker>,
    pub token_rates: Vec<(u64, f64)>,
}

impl UnclaimedState {
    pub fn set(&self, pending: UnclaimedParts) {
        *self.0.lock() = Some(pending);
    }

    /// Takes the saved state of the worker at this address.
    pub fn take(&self, address: &Address) -> Option<(Arc<PendingRestore>, SavedWorker)> {
        let mut pending = self.0.lock();
        let pending = pending.as_mut()?;
        let at = pending.workers.iter().position(|worker| worker.address == *address)?;
        Some((Arc::clone(&pending.recalled), pending.workers.swap_remove(at)))
    }

    /// The saved tokens per byte of a model.
    pub fn token_rate(&self, model: &str) -> TokenRate {
        let key = model_key(model);
        let known = |pending: &UnclaimedParts| {
            pending.token_rates.iter().find(|rate| rate.0 == key).map(|rate| rate.1)
        };
        let rate = self.0.lock().as_ref().and_then(known);
        rate.map_or_else(TokenRate::default, |rate| TokenRate::recalled(rate as f32))
    }

    /// Drops the state once all of it has expired.
    pub fn expire(&self, now: Micros, ttl: Micros) {
        let mut pending = self.0.lock();
        pending.take_if(|pending| now.since(pending.since) >= ttl);
    }
}
