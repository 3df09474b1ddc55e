//! Configuration of a run: the fleet, the routers, what they see, and what fails.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use warmroute_engine::{Config as EngineConfig, ConfigError, Profile};
use warmroute_router::ReportedView;
use warmroute_types::{MAX_WORKERS, Micros};

use crate::incident::Incident;
use crate::peer_network::{Balancer, PeerNetwork};
use crate::shedding::Shedding;

/// vLLM's default size of the replay buffer, in batches.
const REPLAY_BATCHES: usize = 10_000;

/// Configuration of one run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Engines, one entry each.
    pub fleet: Vec<EngineConfig>,
    /// How routers know what engines hold.
    pub view: View,
    /// Delay and loss of cache events. Not used by the presumed view.
    pub events: EventPath,
    /// Whether events cover slower memories. Reported view only.
    pub tier_events: TierEvents,
    /// Whether engines publish evictions. Reported view only.
    pub eviction_events: EvictionEvents,
    /// Share of answers that tokenize otherwise when a later prompt repeats them, from 0 to 1: engines then find
    /// only the beginning of such an answer in their caches.
    pub retokenized: f64,
    /// A view of reported caches that routers ignore, to measure what it is worth.
    pub without_view: Option<ReportedView>,
    /// What the engines did before the routers started.
    pub history: History,
    /// Requests in flight at any time: a closed loop of this many clients, each of which plays session after
    /// session without start and think times. `None` keeps the times of the traffic.
    pub concurrency: Option<u32>,
    /// Event batches that an engine keeps for replays; 0 disables replays.
    pub replay_batches: usize,
    /// Number of routers.
    pub routers: usize,
    /// Network for sharing between routers; `None` means that routers share nothing.
    pub sharing: Option<PeerNetwork>,
    /// How requests are spread over the routers.
    pub balancer: Balancer,
    /// One-way delay between a router and an engine, and between a router and its client.
    pub hop: Micros,
    /// Which requests routers refuse.
    pub shedding: Shedding,
    /// Failures, joins, leaves and resets.
    pub incidents: Vec<Incident>,
    /// Random seed of the run; the workload has its own.
    pub seed: u64,
}

/// How a router knows what engines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Routers are told the cache contents as of each engine's last run of steps, or as of the last delivery
    /// over the [`EventPath`]. No router can know more.
    Exact,
    /// Routers read engine events through the production feed, and presume blocks until events arrive. Events
    /// travel over the [`EventPath`]; losses are detected and replayed.
    Reported,
    /// Routers infer caches from their own routing, corrected by the cached tokens that engines report:
    /// production without engine events.
    Presumed,
}

/// Whether engines publish changes of memories behind GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierEvents {
    /// Stores and removals are published, by block name.
    Published,
    /// Nothing is published.
    Unpublished,
}

/// Whether engines publish their evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionEvents {
    /// Every eviction is published.
    Published,
    /// No eviction is published, as with publishers that drop messages under load: routers believe in blocks
    /// that are gone.
    Unpublished,
}

/// What the engines did before the routers started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Nothing: engines and routers start together.
    Fresh,
    /// Engines served traffic and their caches are full: the routers were restarted.
    Warm,
    /// As `Warm`, then the caches were reset just before the routers start. An idle engine publishes a reset
    /// only with its next step, as vLLM does, so routers that replay its events first believe in blocks that
    /// are gone.
    Reset,
}

/// Path of cache events from engines to their readers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventPath {
    /// One-way delay.
    pub lag: Micros,
    /// Interval at which changes leave the engine; zero sends them at once.
    pub refresh: Micros,
    /// Share of deliveries lost, from 0 to 1.
    pub loss: f64,
}

impl EventPath {
    /// No delay and no loss.
    pub const DIRECT: EventPath = EventPath { lag: Micros::ZERO, refresh: Micros::ZERO, loss: 0.0 };

    /// Time at which changes made at `now` leave the engine.
    pub fn departure(&self, now: Micros) -> Micros {
        match self.refresh.0 {
            0 => now,
            every => Micros(now.0.div_ceil(every) * every),
        }
    }

    /// Time at which changes made at `now` arrive.
    pub fn arrival(&self, now: Micros) -> Micros {
        self.departure(now) + self.lag
    }
}

/// Error of an invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadConfig {
    /// An engine's configuration is invalid.
    #[error("worker {worker}: {why}")]
    Engine {
        /// Index of the engine.
        worker: usize,
        /// Error of the engine's configuration.
        why: ConfigError,
    },
    /// A count is zero.
    #[error("{0} must be at least 1")]
    None(&'static str),
    /// More workers than a router supports.
    #[error("{0} workers are more than the {MAX_WORKERS} that a router can know")]
    TooMany(usize),
    /// Block sizes differ: block chains are computed once for all engines.
    #[error("worker {0} has blocks of another size than worker 0")]
    BlockSize(usize),
    /// A loss is not between 0 and 1.
    #[error("a loss of {0} is no share from 0 to 1")]
    Loss(String),
    /// An event path is configured for a view without events.
    #[error(
        "event lag, refresh and loss mean nothing in the presumed view, which has no events: take the reported or the exact view"
    )]
    NoEvents,
    /// An incident names an unknown worker.
    #[error("worker {0} has an incident and does not exist")]
    Incident(usize),
}

impl Config {
    /// A fleet of `workers` engines with a profile's defaults, one router, presumed view.
    pub fn new(profile: Profile, workers: usize) -> Config {
        Config {
            fleet: vec![EngineConfig::for_profile(profile); workers],
            view: View::Presumed,
            events: EventPath::DIRECT,
            tier_events: TierEvents::Published,
            eviction_events: EvictionEvents::Published,
            retokenized: 0.0,
            without_view: None,
            history: History::Fresh,
            concurrency: None,
            replay_batches: REPLAY_BATCHES,
            routers: 1,
            sharing: None,
            balancer: Balancer::Turns,
            hop: Micros(200),
            shedding: Shedding::Off,
            incidents: Vec::new(),
            seed: 1,
        }
    }

    /// Blocks in the memory pool that all engines share, from the first engine's config.
    pub fn pool_blocks(&self) -> u64 {
        let engine = &self.fleet[0];
        engine.pool.map_or(0, |pool| pool.tokens / u64::from(engine.block_size))
    }

    /// Whether the view reads cache events.
    pub fn needs_events(&self) -> bool {
        match self.view {
            View::Exact => self.events != EventPath::DIRECT,
            View::Reported => true,
            View::Presumed => false,
        }
    }

    /// Checks the configuration.
    pub fn validate(&self) -> Result<(), BadConfig> {
        let clients = self.concurrency.map_or(1, |clients| clients as usize);
        for (what, count) in
            [("workers", self.fleet.len()), ("routers", self.routers), ("concurrency", clients)]
        {
            if count == 0 {
                return Err(BadConfig::None(what));
            }
        }
        if self.fleet.len() > MAX_WORKERS {
            return Err(BadConfig::TooMany(self.fleet.len()));
        }
        for (worker, engine) in self.fleet.iter().enumerate() {
            engine.validate().map_err(|why| BadConfig::Engine { worker, why })?;
        }
        let block_size = self.fleet[0].block_size;
        if let Some(worker) = self.fleet.iter().position(|engine| engine.block_size != block_size) {
            return Err(BadConfig::BlockSize(worker));
        }
        let sharing_loss = self.sharing.as_ref().map_or(0.0, |network| network.loss);
        if let Some(loss) = [self.events.loss, sharing_loss, self.retokenized]
            .into_iter()
            .find(|loss| !(0.0..=1.0).contains(loss))
        {
            return Err(BadConfig::Loss(loss.to_string()));
        }
        if self.view == View::Presumed && self.events != EventPath::DIRECT {
            return Err(BadConfig::NoEvents);
        }
        let absent = self.incidents.iter().find(|incident| incident.worker >= self.fleet.len());
        absent.map_or(Ok(()), |incident| Err(BadConfig::Incident(incident.worker)))
    }
}

impl View {
    /// Name in flags and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            View::Exact => "exact",
            View::Reported => "reported",
            View::Presumed => "presumed",
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl History {
    const ALL: [History; 3] = [History::Fresh, History::Warm, History::Reset];

    /// Name in flags and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            History::Fresh => "fresh",
            History::Warm => "warm",
            History::Reset => "reset",
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Error of an unknown flag value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown value `{word}`; known: {known}")]
pub struct UnknownWord {
    word: String,
    known: &'static str,
}

impl FromStr for History {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<History, UnknownWord> {
        let found = History::ALL.into_iter().find(|history| history.as_str() == word);
        found.ok_or_else(|| UnknownWord { word: word.to_owned(), known: "fresh, warm, reset" })
    }
}

impl FromStr for EvictionEvents {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<EvictionEvents, UnknownWord> {
        match word {
            "published" => Ok(EvictionEvents::Published),
            "unpublished" => Ok(EvictionEvents::Unpublished),
            _ => Err(UnknownWord { word: word.to_owned(), known: "published, unpublished" }),
        }
    }
}

/// Error of an unknown view.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown view `{0}`; known: exact, reported, presumed")]
pub struct UnknownView(String);

impl FromStr for View {
    type Err = UnknownView;

    fn from_str(word: &str) -> Result<View, UnknownView> {
        [View::Exact, View::Reported, View::Presumed]
            .into_iter()
            .find(|view| view.as_str() == word)
            .ok_or_else(|| UnknownView(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_for_the_next_refresh_and_then_travel() {
        let path = EventPath { lag: Micros(7), refresh: Micros(100), loss: 0.0 };
        assert_eq!(path.arrival(Micros(1)), Micros(107));
        assert_eq!(path.arrival(Micros(100)), Micros(107));
        assert_eq!(path.arrival(Micros(101)), Micros(207));
        assert_eq!(EventPath::DIRECT.arrival(Micros(5)), Micros(5));
    }

    #[test]
    fn invalid_configurations_are_refused() {
        let good = Config::new(Profile::Llama3_1_8b, 2);
        assert_eq!(good.validate(), Ok(()));
        let none = Config { fleet: Vec::new(), ..good.clone() };
        assert_eq!(none.validate(), Err(BadConfig::None("workers")));
        let lossy = Config { events: EventPath { loss: 1.5, ..EventPath::DIRECT }, ..good.clone() };
        assert!(matches!(lossy.validate(), Err(BadConfig::Loss(_))));
        let late = EventPath { lag: Micros(1), ..EventPath::DIRECT };
        let unread = Config { events: late, ..good.clone() };
        assert_eq!(unread.validate(), Err(BadConfig::NoEvents));
        assert_eq!(Config { view: View::Reported, ..unread }.validate(), Ok(()));
        let mut mixed = good.clone();
        mixed.fleet[1].block_size = 32;
        assert_eq!(mixed.validate(), Err(BadConfig::BlockSize(1)));
        let many = Config::new(Profile::Llama3_1_8b, MAX_WORKERS + 1);
        assert!(matches!(many.validate(), Err(BadConfig::TooMany(_))));
    }
}
