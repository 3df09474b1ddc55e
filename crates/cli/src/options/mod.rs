//! All options: each is a flag, an environment variable and a key of the configuration file.
//!
//! A group is a heading in `--help` and a table in the file; one definition serves both. An option that is not set is
//! `None`. Layers combine until the defaults fill every gap.

mod environment;
mod file;
pub mod groups;
pub mod named;
mod secret;
mod switch;

use std::collections::BTreeMap;

use clap::Args;
use serde::{Deserialize, Serialize};
use warmroute_discovery::WorkerEntry;

pub use environment::check_environment;
pub use file::{most_similar, parse, read_file};
pub use groups::{
    Admission, Cache, Discovery, Events, Health, Recording, Requests, Routing, Security, Server, Sharing,
    Timeouts,
};
pub use secret::Secret;
pub use switch::Switch;

/// All options.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Listeners, logs, shutdown.
    #[command(flatten)]
    pub server: Server,
    /// Where workers come from.
    #[command(flatten)]
    pub discovery: Discovery,
    /// How workers are chosen.
    #[command(flatten)]
    pub routing: Routing,
    /// The cache index, and parameters of cache-aware policies.
    #[command(flatten)]
    pub cache: Cache,
    /// KV events of engines.
    #[command(flatten)]
    pub events: Events,
    /// How requests are read and forwarded.
    #[command(flatten)]
    pub requests: Requests,
    /// Time limits for clients and workers.
    #[command(flatten)]
    pub timeouts: Timeouts,
    /// Limits on concurrent requests and on rates.
    #[command(flatten)]
    pub admission: Admission,
    /// Authentication, TLS, and what workers see of clients.
    #[command(flatten)]
    pub security: Security,
    /// Probes of workers.
    #[command(flatten)]
    pub health: Health,
    /// Recording of traces for the lab.
    #[command(flatten)]
    pub recording: Recording,
    /// Sharing state between routers.
    #[command(flatten)]
    pub sharing: Sharing,
    /// Model aliases (file only).
    #[arg(skip)]
    pub aliases: BTreeMap<String, String>,
    /// Workers with settings of their own (file only).
    #[arg(skip)]
    pub workers: Vec<WorkerEntry>,
}

impl Options {
    /// These options, with gaps filled from `below`.
    pub fn over(self, below: Options) -> Options {
        Options {
            server: self.server.over(below.server),
            discovery: self.discovery.over(below.discovery),
            routing: self.routing.over(below.routing),
            cache: self.cache.over(below.cache),
            events: self.events.over(below.events),
            requests: self.requests.over(below.requests),
            timeouts: self.timeouts.over(below.timeouts),
            admission: self.admission.over(below.admission),
            security: self.security.over(below.security),
            health: self.health.over(below.health),
            recording: self.recording.over(below.recording),
            sharing: self.sharing.over(below.sharing),
            aliases: if self.aliases.is_empty() { below.aliases } else { self.aliases },
            workers: if self.workers.is_empty() { below.workers } else { self.workers },
        }
    }

    /// The default of every option.
    pub fn defaults() -> Options {
        Options {
            server: Server::defaults(),
            discovery: Discovery::defaults(),
            routing: Routing::defaults(),
            cache: Cache::defaults(),
            events: Events::defaults(),
            requests: Requests::defaults(),
            timeouts: Timeouts::defaults(),
            admission: Admission::defaults(),
            security: Security::defaults(),
            health: Health::defaults(),
            recording: Recording::defaults(),
            sharing: Sharing::defaults(),
            ..Options::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_a_default_or_is_optional() {
        // Options without a default are missing in the printed configuration: lists of workers, thresholds that a
        // preset sets, and options without a sensible default.
        let printed = toml::Value::try_from(Options::defaults()).unwrap();
        let tables = [
            ("server", 3),
            ("discovery", 10),
            ("routing", 0),
            ("cache", 3),
            ("events", 3),
            ("requests", 0),
            ("timeouts", 0),
            ("admission", 0),
            ("security", 14),
            ("health", 0),
            ("recording", 1),
            ("sharing", 6),
        ];
        for (table, none_allowed) in &tables {
            let given = printed[table].as_table().unwrap().len();
            let all = groups::KEYS.iter().find(|(name, _)| name == table).unwrap().1.len();
            assert_eq!(given, all - none_allowed, "[{table}]");
        }
    }

    #[test]
    fn the_help_names_every_default() {
        let command = <crate::args::Cli as clap::CommandFactory>::command();
        let serve = command.find_subcommand("serve").unwrap();
        let printed = toml::Table::try_from(Options::defaults()).unwrap();
        for (key, value) in printed.values().filter_map(toml::Value::as_table).flatten() {
            let value = match value {
                toml::Value::Boolean(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
                toml::Value::String(text) => text.clone(),
                toml::Value::Array(_) => continue,
                number => number.to_string(),
            };
            let arg = serve.get_arguments().find(|arg| arg.get_long() == Some(key)).unwrap();
            let help = arg.get_help().unwrap().to_string();
            assert!(help.contains(&format!("[default: {value}]")), "--{key}, default {value}: {help}");
        }
    }

    #[test]
    fn the_systemd_unit_waits_longer_than_the_drain_timeout() {
        let unit = include_str!("../../../../deploy/warmroute.service");
        let stop_s = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        let stop_s: u64 = stop_s.parse().unwrap();
        assert!(stop_s >= Options::defaults().server.drain_timeout_secs.unwrap() + 60, "{stop_s}");
    }

    #[test]
    fn flags_override_the_file_and_the_file_overrides_defaults() {
        let file: Options =
            toml::from_str("[server]\nport = 1\nhost = \"::1\"\n[aliases]\na = \"b\"").unwrap();
        let flags = Options { server: Server { port: Some(2), ..Server::default() }, ..Options::default() };
        let all = flags.over(file).over(Options::defaults());
        assert_eq!((all.server.port, all.server.host), (Some(2), Some("::1".parse().unwrap())));
        assert_eq!(all.server.admin_port, Options::defaults().server.admin_port);
        assert_eq!(all.aliases["a"], "b");
    }
}
