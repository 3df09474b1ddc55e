//! Every option, once: as a flag, as an environment variable and as a key of the configuration file.
//!
//! Each group below is a heading in `--help` and a table in the file, and one definition serves both. An option that nobody
//! gave is `None`; layers are laid over each other until the defaults have filled every gap.

mod environment;
mod file;
pub mod groups;
mod secret;

use std::collections::BTreeMap;

use clap::Args;
use serde::{Deserialize, Serialize};
use warmroute_discovery::WorkerEntry;

pub use environment::check_environment;
pub use file::{likest, parse, read_file};
pub use groups::{
    Admission, Cache, Discovery, Events, Health, Recording, Requests, Routing, Security, Server, Sharing,
    Timeouts,
};
pub use secret::Secret;

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
    /// What is remembered about caches.
    #[command(flatten)]
    pub cache: Cache,
    /// What engines tell of their caches.
    #[command(flatten)]
    pub events: Events,
    /// How requests are read and sent on.
    #[command(flatten)]
    pub requests: Requests,
    /// How long workers are waited for.
    #[command(flatten)]
    pub timeouts: Timeouts,
    /// How many requests are taken, from whom.
    #[command(flatten)]
    pub admission: Admission,
    /// Who may come in, and what workers are shown.
    #[command(flatten)]
    pub security: Security,
    /// How workers are watched.
    #[command(flatten)]
    pub health: Health,
    /// What is written down for the lab.
    #[command(flatten)]
    pub recording: Recording,
    /// Several routers that act as one.
    #[command(flatten)]
    pub sharing: Sharing,
    /// Names under which clients may ask for a model (file only).
    #[arg(skip)]
    pub aliases: BTreeMap<String, String>,
    /// Workers with more to say than their URL (file only).
    #[arg(skip)]
    pub workers: Vec<WorkerEntry>,
}

impl Options {
    /// These options, and where they say nothing, the other's.
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

    /// What is in force where nobody says anything.
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
    fn every_option_has_a_default_or_may_be_left_out() {
        // What is None in the defaults is left out of the printed configuration: only lists of workers may be, the
        // thresholds that a preset stands for, and what has no sensible default.
        let printed = toml::Value::try_from(Options::defaults()).unwrap();
        let tables = [
            ("server", 2),
            ("routing", 0),
            ("cache", 3),
            ("events", 3),
            ("requests", 0),
            ("timeouts", 0),
            ("admission", 0),
            ("security", 14),
            ("health", 0),
            ("recording", 1),
            ("sharing", 10),
        ];
        for (table, none_allowed) in &tables {
            let given = printed[table].as_table().unwrap().len();
            let all = groups::KEYS.iter().find(|(name, _)| name == table).unwrap().1.len();
            assert_eq!(given, all - none_allowed, "[{table}]");
        }
    }

    #[test]
    fn systemd_waits_for_longer_than_draining_may_take_and_writing_the_state() {
        let unit = include_str!("../../../../deploy/warmroute.service");
        let stop_s = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        let stop_s: u64 = stop_s.parse().unwrap();
        assert!(stop_s >= Options::defaults().server.drain_timeout_secs.unwrap() + 60, "{stop_s}");
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file: Options =
            toml::from_str("[server]\nport = 1\nhost = \"::1\"\n[aliases]\na = \"b\"").unwrap();
        let flags = Options { server: Server { port: Some(2), ..Server::default() }, ..Options::default() };
        let all = flags.over(file).over(Options::defaults());
        assert_eq!((all.server.port, all.server.host), (Some(2), Some("::1".parse().unwrap())));
        assert_eq!(all.server.admin_port, Options::defaults().server.admin_port);
        assert_eq!(all.aliases["a"], "b");
    }
}
