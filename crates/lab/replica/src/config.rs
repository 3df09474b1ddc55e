//! The configuration of a replica.

use thiserror::Error;
use warmroute_engine::Profile;
use warmroute_types::OptionValue;
use warmroute_zmtp::Endpoint;

use crate::tokens::Tokenizer;

/// Configuration of one replica. [`Config::for_profile`] gives vLLM's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The engine behind every rank.
    pub engine: warmroute_engine::Config,
    /// The name the model is served under.
    pub model: String,
    /// Names of LoRA adapters that are served beside the base model. Each has its own cache namespace.
    pub adapters: Vec<String>,
    /// Adapters that fit into memory at a time (`--max-loras`).
    pub adapter_slots: usize,
    /// Milliseconds of wall time until an adapter is loaded that is not in memory.
    pub adapter_load_ms: u64,
    /// Data-parallel ranks: engines that share only the address.
    pub ranks: u16,
    /// Engine time per wall time; 1 is real time. What a client sees is true to about a millisecond of wall time, so at
    /// a speed of 100 to 100 ms of engine time; the metrics count engine time and are exact at any speed.
    pub speed: f64,
    /// The longest prompt and answer together (`--max-model-len`); the cache may allow less.
    pub model_tokens_max: u32,
    /// Length of an answer when the request sets no limit.
    pub answer_tokens_default: u32,
    /// Whether responses report cached prompt tokens.
    pub usage_details: UsageDetails,
    /// The largest request body; larger ones get a 413.
    pub body_bytes_max: usize,
    /// How text becomes tokens. A router that reads the KV events needs [`Tokenizer::Pairs`].
    pub tokenizer: Tokenizer,
    /// Whether and where the engine publishes cache events.
    pub events: Option<EventsConfig>,
}

/// vLLM's `--kv-events-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    /// The publisher of rank 0; each further rank uses the next port, or a free port where this is port 0.
    pub endpoint: Endpoint,
    /// The replay endpoint of rank 0, if there is one.
    pub replay: Option<Endpoint>,
    /// Whether it binds, or connects to a router that has bound.
    pub publisher: PublisherMode,
    /// The topic of all messages.
    pub topic: String,
    /// Maps, as vLLM sends since 0.24, or arrays.
    pub encoding: EventEncoding,
    /// Batches kept for replays (`buffer_steps`).
    pub memory_batches: usize,
}

/// Which side connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublisherMode {
    /// Subscribers connect.
    #[default]
    Bind,
    /// The engine connects to one subscriber.
    Connect,
}

/// The encoding of events and replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventEncoding {
    /// As vLLM since 0.26: maps, and replays with the topic.
    #[default]
    Map,
    /// As vLLM up to 0.23 and SGLang: arrays, and replays without the topic.
    Array,
}

impl OptionValue for EventEncoding {
    const VALUES: &'static [(EventEncoding, &'static str, &'static str)] = &[
        (EventEncoding::Map, "map", "Fields by name"),
        (EventEncoding::Array, "array", "Fields by position"),
    ];
}

impl EventsConfig {
    /// Binds here, with vLLM's defaults.
    pub fn bind(endpoint: Endpoint, replay: Option<Endpoint>) -> EventsConfig {
        EventsConfig {
            endpoint,
            replay,
            publisher: PublisherMode::Bind,
            topic: String::new(),
            encoding: EventEncoding::Map,
            memory_batches: 10_000,
        }
    }
}

/// vLLM's `--enable-prompt-tokens-details`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageDetails {
    /// Responses report `cached_tokens` when it is not zero.
    Report,
    /// Responses never report it, which is vLLM's default.
    Omit,
}

impl OptionValue for UsageDetails {
    const VALUES: &'static [(UsageDetails, &'static str, &'static str)] =
        &[(UsageDetails::Report, "on", "Enabled"), (UsageDetails::Omit, "off", "Disabled")];
}

/// Why a [`Config`] is invalid.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ConfigError {
    /// The engine's limits are invalid.
    #[error(transparent)]
    Engine(#[from] warmroute_engine::ConfigError),
    /// A number is not positive.
    #[error("{name} must be greater than 0, not {value}")]
    NotPositive {
        /// The field.
        name: &'static str,
        /// The number that was given.
        value: f64,
    },
    /// The last rank has no endpoint for events.
    #[error(
        "rank {0} has no endpoint for events: each rank takes the next TCP port, up to 65535; choose a lower port"
    )]
    NoPort(u16),
    /// A model or adapter has no name.
    #[error("a model or adapter has no name; give every served model one")]
    Nameless,
}

impl Config {
    /// One rank in real time with the engine's defaults, serving the model under its profile's name.
    pub fn for_profile(profile: Profile) -> Config {
        Config {
            engine: warmroute_engine::Config::for_profile(profile),
            model: profile.to_string(),
            adapters: Vec::new(),
            adapter_slots: 1,
            adapter_load_ms: 0,
            ranks: 1,
            speed: 1.0,
            model_tokens_max: 131_072,
            answer_tokens_default: 128,
            usage_details: UsageDetails::Report,
            body_bytes_max: 64 << 20,
            tokenizer: Tokenizer::default(),
            events: None,
        }
    }

    /// Checks that a replica can run with this configuration.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.engine.validate()?;
        for (name, value) in [
            ("speed", self.speed),
            ("ranks", f64::from(self.ranks)),
            ("model_tokens_max", f64::from(self.model_tokens_max)),
            ("answer_tokens_default", f64::from(self.answer_tokens_default)),
            ("body_bytes_max", self.body_bytes_max as f64),
        ] {
            if value <= 0.0 || !value.is_finite() {
                return Err(ConfigError::NotPositive { name, value });
            }
        }
        if let Some(events) = &self.events {
            let last = self.ranks - 1;
            let reaches = |endpoint: &Endpoint| endpoint.clone().of_rank(last).is_some();
            if !reaches(&events.endpoint) || !events.replay.as_ref().is_none_or(reaches) {
                return Err(ConfigError::NoPort(last));
            }
        }
        match self.models().any(str::is_empty) {
            true => Err(ConfigError::Nameless),
            false => Ok(()),
        }
    }

    /// Every name a request may ask for, the base model first.
    pub(crate) fn models(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.model.as_str()).chain(self.adapters.iter().map(String::as_str))
    }

    /// The most tokens of prompt and answer together: what the model allows and the cache can hold.
    pub(crate) fn tokens_max(&self) -> u32 {
        let block_size = u64::from(self.engine.block_size);
        let whole_blocks = self.engine.kv_tokens / block_size * block_size;
        self.model_tokens_max.min(u32::try_from(whole_blocks).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::for_profile(Profile::Llama3_1_8b)
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(config().validate(), Ok(()));
        assert_eq!(config().model, "llama-3.1-8b");
    }

    #[test]
    fn time_that_does_not_pass_is_refused() {
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = Config { speed, ..config() }.validate();
            assert!(matches!(refused, Err(ConfigError::NotPositive { name: "speed", .. })), "{speed}");
        }
    }

    #[test]
    fn a_model_without_a_name_is_refused() {
        let nameless = Config { adapters: vec![String::new()], ..config() };
        assert_eq!(nameless.validate(), Err(ConfigError::Nameless));
    }

    #[test]
    fn a_small_cache_shortens_the_longest_request() {
        let mut small = config();
        small.engine.kv_tokens = 1_000;
        assert_eq!(small.tokens_max(), 992);
        assert_eq!(config().tokens_max(), 131_072);
    }
}
