//! The state of a replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::adapter_memory::AdapterMemory;
use crate::config::Config;
use crate::connection_control::{ConnectionControl, OpenConnections};
use crate::error::Error;
use crate::events::Channel;
use crate::fault::{Fault, Faults};
use crate::meter::Board;
use crate::rank::Rank;

/// The state that all connections of a replica share.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) ranks: Vec<Arc<Rank>>,
    pub(crate) faults: Faults,
    pub(crate) adapters: AdapterMemory,
    pub(crate) lines: OpenConnections,
    pub(crate) life: watch::Sender<Life>,
    pub(crate) started_s: u64,
    ids: AtomicU64,
    id_seed: u64,
}

/// The life cycle of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It accepts connections.
    Serving,
    /// The replica was stopped.
    Stopped,
    /// The replica died of a fault.
    Died,
}

impl Server {
    /// Starts the ranks.
    pub(crate) async fn start(config: Config) -> Result<Server, Error> {
        config.validate()?;
        let faults = Faults::new();
        let mut ranks = Vec::new();
        for rank in 0..config.ranks {
            let channel = match &config.events {
                Some(events) => Some(Channel::open(events, rank, faults.watch()).await?),
                None => None,
            };
            ranks.push(Arc::new(Rank::start(&config, faults.watch(), channel.map(Arc::new))?));
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let load = Duration::from_millis(config.adapter_load_ms);
        let adapters = AdapterMemory::new(config.adapter_slots, load);
        Ok(Server {
            config,
            adapters,
            ranks,
            faults,
            lines: OpenConnections::default(),
            life: watch::Sender::new(Life::Serving),
            started_s: since_epoch.as_secs(),
            ids: AtomicU64::new(0),
            id_seed: since_epoch.as_nanos() as u64,
        })
    }

    /// The time of day, in seconds.
    pub(crate) fn now_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// An id for a request that has none.
    pub(crate) fn new_id(&self) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", xxh3_64_with_seed(&number.to_le_bytes(), self.id_seed))
    }

    /// `GET /kv_event_sources`, as vLLM has it since 0.31: where each rank publishes.
    pub(crate) fn event_sources(&self) -> Value {
        let Some(events) = &self.config.events else { return json!({}) };
        let ranks = self.ranks.iter().enumerate().filter_map(|(rank, of)| Some((rank, of.events.as_ref()?)));
        let sources = ranks.map(|(rank, channel)| (rank.to_string(), channel.describe(events)));
        Value::Object(sources.collect())
    }

    /// Submitted requests that have not ended, on all ranks.
    pub(crate) fn in_flight(&self) -> u32 {
        self.ranks.iter().map(|rank| rank.in_flight()).sum()
    }

    /// The statistics of every rank.
    pub(crate) fn boards(&self) -> impl Iterator<Item = Board> {
        self.ranks.iter().map(|rank| rank.board())
    }

    /// Empties every rank's prefix cache; false if one was in use.
    pub(crate) async fn clear_cache(&self) -> bool {
        let mut all = true;
        for rank in &self.ranks {
            all &= rank.clear().await;
        }
        all
    }

    /// Applies a fault. The connection that requested it is spared.
    pub(crate) async fn fault(&self, fault: Fault, asked_by: Option<&ConnectionControl>) {
        self.faults.set(fault);
        match fault {
            Fault::Die => self.end(Life::Died),
            Fault::Restart => {
                self.lines.cut_all_but(asked_by);
                self.adapters.clear();
                for rank in &self.ranks {
                    rank.restart().await;
                }
            }
            Fault::None
            | Fault::Hang
            | Fault::Slow { .. }
            | Fault::Status { .. }
            | Fault::Reset { .. }
            | Fault::Events(_) => {}
        }
    }

    /// Stops accepting and resets every connection.
    pub(crate) fn end(&self, life: Life) {
        self.life.send_replace(life);
        self.lines.cut_all_but(None);
        self.ranks.iter().filter_map(|rank| rank.events.as_ref()).for_each(|events| events.close());
    }
}
