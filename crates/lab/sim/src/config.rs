//! What is simulated: the fleet, the routers, what they can see, and what goes wrong.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use warmroute_engine::{Config as EngineConfig, ConfigError, Profile};
use warmroute_types::{MAX_WORKERS, Micros};

use crate::incident::Incident;
use crate::talk::{Balancer, Talk};

/// vLLM's own default, where it has a place to ask at all.
const REPLAY_BATCHES: usize = 10_000;

/// One run's world.
#[derive(Clone, Debug)]
pub struct Config {
    /// One engine each.
    pub fleet: Vec<EngineConfig>,
    /// How routers know what engines hold.
    pub view: View,
    /// How news of caches travel. Only for views that live of them.
    pub news: NewsPath,
    /// Whether those news speak of slower memories. Only for the reported view.
    pub tier_news: TierNews,
    /// Whether engines publish what they evict. Only for the reported view.
    pub eviction_news: EvictionNews,
    /// What the engines did before the routers started.
    pub history: History,
    /// Batches of events that an engine remembers for routers that missed some; 0: nobody can ask it.
    pub replay_batches: usize,
    /// Routers side by side.
    pub routers: usize,
    /// How they hear of each other; `None`: each has its own view and its own bookings.
    pub talk: Option<Talk>,
    /// Which of them a request meets.
    pub balancer: Balancer,
    /// One way between a router and an engine, and between a client's answer and its router.
    pub hop: Micros,
    /// What goes wrong, and who comes and goes.
    pub incidents: Vec<Incident>,
    /// Of everything that is drawn by lot in the run; the workload has its own.
    pub seed: u64,
}

/// How a router knows what engines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// It is told what is there, as of the end of each engine's last run of steps, or of the last news of the
    /// [`NewsPath`]. No router can know more.
    Exact,
    /// From the engines' events, as the production router and feed read them, with what it speculates until they come.
    /// Events arrive by the [`NewsPath`]; what is lost is noticed and asked for again.
    Reported,
    /// From its own routing, corrected by what engines say they found: production without engine events.
    Presumed,
}

/// What engines tell of memories behind their GPUs'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierNews {
    /// What comes there and goes, by name.
    Told,
    /// Nothing.
    Untold,
}

/// Whether engines publish their evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionNews {
    /// Every evicted block is published.
    Told,
    /// None is, as with publishers that drop messages under load: routers believe in blocks that are gone.
    Untold,
}

/// What the engines did before the routers started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Nothing: the engines start with the routers.
    Fresh,
    /// They served other traffic, and their caches are full of it: the routers were restarted.
    Warm,
    /// The same, and their caches were reset just before the routers start. As vLLM does, an idle engine publishes a reset only with
    /// its next step, so routers that replay its events first believe in blocks that are gone.
    Reset,
}

/// How news of caches reach those who look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewsPath {
    /// So much later.
    pub lag: Micros,
    /// And only at multiples of this, if it is not zero: a directory that is refreshed now and then.
    pub refresh: Micros,
    /// Share of deliveries that are lost.
    pub loss: f64,
}

impl NewsPath {
    /// At once and without loss.
    pub const DIRECT: NewsPath = NewsPath { lag: Micros::ZERO, refresh: Micros::ZERO, loss: 0.0 };

    /// When news of `now` leave.
    pub fn departure(&self, now: Micros) -> Micros {
        match self.refresh.0 {
            0 => now,
            every => Micros(now.0.div_ceil(every) * every),
        }
    }

    /// When they arrive.
    pub fn arrival(&self, now: Micros) -> Micros {
        self.departure(now) + self.lag
    }
}

/// A world that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadConfig {
    /// An engine cannot run.
    #[error("worker {worker}: {why}")]
    Engine {
        /// Which.
        worker: usize,
        /// Why.
        why: ConfigError,
    },
    /// There must be one.
    #[error("{0} must be at least 1")]
    None(&'static str),
    /// More than a router can know.
    #[error("{0} workers are more than the {MAX_WORKERS} that a router can know")]
    TooMany(usize),
    /// A chain is cut once, for all engines.
    #[error("worker {0} has blocks of another size than worker 0")]
    BlockSize(usize),
    /// No share.
    #[error("a loss of {0} is no share from 0 to 1")]
    Loss(String),
    /// Nobody hears any news.
    #[error(
        "event lag, refresh and loss mean nothing in the presumed view, which has no events: take the reported or the exact view"
    )]
    NoNews,
    /// An incident of a worker that is not there.
    #[error("worker {0} has an incident and does not exist")]
    Incident(usize),
}

impl Config {
    /// So many engines of a profile's default, one router, the presumed view.
    pub fn new(profile: Profile, workers: usize) -> Config {
        Config {
            fleet: vec![EngineConfig::for_profile(profile); workers],
            view: View::Presumed,
            news: NewsPath::DIRECT,
            tier_news: TierNews::Told,
            eviction_news: EvictionNews::Told,
            history: History::Fresh,
            replay_batches: REPLAY_BATCHES,
            routers: 1,
            talk: None,
            balancer: Balancer::Turns,
            hop: Micros(200),
            incidents: Vec::new(),
            seed: 1,
        }
    }

    /// Blocks of the pool that all engines share, as the first of them says.
    pub fn pool_blocks(&self) -> u64 {
        let engine = &self.fleet[0];
        engine.pool.map_or(0, |pool| pool.tokens / u64::from(engine.block_size))
    }

    /// Whether somebody waits for news of caches.
    pub fn needs_news(&self) -> bool {
        match self.view {
            View::Exact => self.news != NewsPath::DIRECT,
            View::Reported => true,
            View::Presumed => false,
        }
    }

    /// Whether it can be run.
    pub fn validate(&self) -> Result<(), BadConfig> {
        for (what, count) in [("workers", self.fleet.len()), ("routers", self.routers)] {
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
        let told = self.talk.as_ref().map_or(0.0, |talk| talk.loss);
        if let Some(loss) = [self.news.loss, told].into_iter().find(|loss| !(0.0..=1.0).contains(loss)) {
            return Err(BadConfig::Loss(loss.to_string()));
        }
        if self.view == View::Presumed && self.news != NewsPath::DIRECT {
            return Err(BadConfig::NoNews);
        }
        let absent = self.incidents.iter().find(|incident| incident.worker >= self.fleet.len());
        absent.map_or(Ok(()), |incident| Err(BadConfig::Incident(incident.worker)))
    }
}

impl View {
    /// The word in flags and reports.
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

    /// The word in flags and reports.
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

/// A word that a flag does not take.
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

impl FromStr for EvictionNews {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<EvictionNews, UnknownWord> {
        match word {
            "told" => Ok(EvictionNews::Told),
            "untold" => Ok(EvictionNews::Untold),
            _ => Err(UnknownWord { word: word.to_owned(), known: "told, untold" }),
        }
    }
}

/// A word that is no view.
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
    fn news_wait_for_the_next_refresh_and_then_travel() {
        let path = NewsPath { lag: Micros(7), refresh: Micros(100), loss: 0.0 };
        assert_eq!(path.arrival(Micros(1)), Micros(107));
        assert_eq!(path.arrival(Micros(100)), Micros(107));
        assert_eq!(path.arrival(Micros(101)), Micros(207));
        assert_eq!(NewsPath::DIRECT.arrival(Micros(5)), Micros(5));
    }

    #[test]
    fn worlds_that_cannot_be_are_refused() {
        let good = Config::new(Profile::Llama3_1_8b, 2);
        assert_eq!(good.validate(), Ok(()));
        let none = Config { fleet: Vec::new(), ..good.clone() };
        assert_eq!(none.validate(), Err(BadConfig::None("workers")));
        let lossy = Config { news: NewsPath { loss: 1.5, ..NewsPath::DIRECT }, ..good.clone() };
        assert!(matches!(lossy.validate(), Err(BadConfig::Loss(_))));
        let late = NewsPath { lag: Micros(1), ..NewsPath::DIRECT };
        let unheard = Config { news: late, ..good.clone() };
        assert_eq!(unheard.validate(), Err(BadConfig::NoNews));
        assert_eq!(Config { view: View::Reported, ..unheard }.validate(), Ok(()));
        let mut mixed = good.clone();
        mixed.fleet[1].block_size = 32;
        assert_eq!(mixed.validate(), Err(BadConfig::BlockSize(1)));
        let many = Config::new(Profile::Llama3_1_8b, MAX_WORKERS + 1);
        assert!(matches!(many.validate(), Err(BadConfig::TooMany(_))));
    }
}
