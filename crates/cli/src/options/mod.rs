//! All options: each is a flag, an environment variable and a key of the configuration file.
//!
//! A group is a heading in `--help` and a table in the file; one definition serves both. An option that is not set is
//! `None`. Layers combine until the defaults fill every gap.

mod environment;
mod file;
pub mod groups;
mod model_entry;
pub mod named;
pub mod quantity;
mod settings;
mod written;

use std::any::Any;
use std::collections::BTreeMap;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warmroute_discovery::WorkerEntry;

pub use environment::{check_environment, is_service_link};
pub use file::{most_similar, parse, read_file, unknown_key};
pub use groups::{
    Admission, Cache, Discovery, Events, Health, Picker, Recording, Requests, Routing, Security, Server,
    Sharing, Timeouts, Tracing,
};
pub use model_entry::ModelEntry;
pub use quantity::OnOff;
pub use settings::{Settings, TlsSettings, bounded};
pub use warmroute_share::Secret;
pub use written::Written;

/// Defines all options from their groups. A table of the file has the name of the field.
macro_rules! options {
    ($( $(#[$about:meta])* $table:ident: $group:ident, )*) => {
        /// All options.
        #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case", expecting = "a table of options")]
        pub struct Options {
            $(
                $(#[$about])*
                #[command(flatten)]
                pub $table: $group,
            )*
            /// Model aliases (file only).
            #[arg(skip)]
            pub aliases: BTreeMap<String, String>,
            /// Models with settings of their own (file only).
            #[arg(skip)]
            pub models: BTreeMap<String, ModelEntry>,
            /// Workers with settings of their own (file only).
            #[arg(skip)]
            pub workers: Vec<WorkerEntry>,
        }

        /// Every table of the file and its keys.
        const KEYS: &[(&str, &[&str])] = &[$( (stringify!($table), $group::KEYS) ),*];

        impl Options {
            /// These options, with gaps filled from `below`.
            pub fn over(self, below: Options) -> Options {
                self.over_where(below, |_, _| true)
            }

            /// These options, with gaps filled from `below` for those tables and keys that may be filled.
            pub fn over_where(self, below: Options, may_fill: impl Fn(&str, &str) -> bool) -> Options {
                let is_kept = |table: &str, is_empty: bool| !is_empty || !may_fill(table, "");
                Options {
                    $( $table: self.$table.over(below.$table, |key| may_fill(stringify!($table), key)), )*
                    aliases: if is_kept("aliases", self.aliases.is_empty()) { self.aliases } else { below.aliases },
                    models: if is_kept("models", self.models.is_empty()) { self.models } else { below.models },
                    workers: if is_kept("workers", self.workers.is_empty()) { self.workers } else { below.workers },
                }
            }

            /// The options that are set: table, key and value.
            pub fn set(&self) -> impl Iterator<Item = (&'static str, &'static str, &dyn Any)> {
                let tables = [$( (stringify!($table), self.$table.set()) ),*];
                tables.into_iter().flat_map(|(table, set)| {
                    set.into_iter().map(move |(key, value)| (table, key, value))
                })
            }

            /// The options of one type: key and value.
            pub fn of_type<T: 'static>(&mut self) -> impl Iterator<Item = (&'static str, &mut Option<T>)> {
                let all = [$( self.$table.all() ),*].into_iter().flatten();
                all.filter_map(|(key, value)| Some((key, value.downcast_mut()?)))
            }

            /// The tables and keys of options whose values differ.
            pub fn differing(&self, other: &Options) -> Vec<String> {
                let tables = [$( (stringify!($table), self.$table.differing(&other.$table)) ),*];
                let keys = |(table, keys): &(&str, Vec<&str>)| -> Vec<String> {
                    keys.iter().map(|key| format!("{table}.{key}")).collect()
                };
                tables.iter().flat_map(keys).collect()
            }

            /// The default of every option.
            pub fn defaults() -> Options {
                let settings = Settings::default();
                Options { $( $table: $group::read(&settings), )* ..Options::default() }
            }

            /// The parts' settings, as far as single options set them.
            pub fn settings(&self) -> anyhow::Result<Settings> {
                let mut settings = Settings::default();
                $( self.$table.write(&mut settings)?; )*
                Ok(settings)
            }
        }
    };
}

options! {
    /// Listeners, logs, shutdown.
    server: Server,
    /// Where workers come from.
    discovery: Discovery,
    /// How workers are chosen.
    routing: Routing,
    /// The cache index, and parameters of cache-aware policies.
    cache: Cache,
    /// KV events of engines.
    events: Events,
    /// How requests are read and forwarded.
    requests: Requests,
    /// Time limits for clients and workers.
    timeouts: Timeouts,
    /// Limits on concurrent requests and on rates.
    admission: Admission,
    /// Authentication, TLS, and what workers see of clients.
    security: Security,
    /// Probes of workers.
    health: Health,
    /// Recording of traces for the lab.
    recording: Recording,
    /// OpenTelemetry traces.
    tracing: Tracing,
    /// Sharing state between routers.
    sharing: Sharing,
    /// The endpoint picker for Envoy.
    picker: Picker,
}

impl Options {
    /// The default of each option that has one, as a flag takes it. Lists are left out: the help describes them.
    pub fn shown_defaults() -> BTreeMap<String, String> {
        let tables = serde_json::to_value(Options::defaults()).expect("the keys of options are texts");
        let tables = tables.as_object().into_iter().flat_map(serde_json::Map::values);
        let shown = |value: &Value| match value {
            Value::Bool(is_on) => Some(if *is_on { "on" } else { "off" }.to_owned()),
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        };
        let defaults = tables.filter_map(Value::as_object).flatten();
        defaults.filter_map(|(key, value)| Some((key.clone(), shown(value)?))).collect()
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
            ("tracing", 7),
            ("sharing", 6),
            ("picker", 2),
        ];
        for (table, none_allowed) in &tables {
            let given = printed[table].as_table().unwrap().len();
            let all = KEYS.iter().find(|(name, _)| name == table).unwrap().1.len();
            assert_eq!(given, all - none_allowed, "[{table}]");
        }
    }

    /// The names of options are an interface: a change of this list breaks configurations.
    #[test]
    fn names_and_defaults_are_those_of_the_list() {
        let command = <crate::args::Cli as clap::CommandFactory>::command();
        let serve = command.find_subcommand("serve").unwrap();
        let printed = serde_json::to_value(Options::defaults()).unwrap();
        let keys = KEYS.iter().flat_map(|(table, keys)| keys.iter().map(move |key| (table, *key)));
        let line = |(table, key): (&&str, &str)| {
            let arg = serve.get_arguments().find(|arg| arg.get_long() == Some(key)).unwrap();
            let variable = arg.get_env().unwrap().to_str().unwrap();
            let default = printed[table].get(key).map_or("-".to_owned(), ToString::to_string);
            format!("{table}.{key} --{} {variable} {default}\n", arg.get_long().unwrap())
        };
        assert_eq!(keys.map(line).collect::<String>(), include_str!("options.txt"));
    }

    #[test]
    fn settings_of_the_defaults_are_the_parts_defaults() {
        let (settings, defaults) = (Options::defaults().settings().unwrap(), Settings::default());
        assert_eq!(format!("{:?}", settings.gateway), format!("{:?}", defaults.gateway));
        assert_eq!(format!("{:?}", settings.router), format!("{:?}", defaults.router));
        assert_eq!(format!("{:?}", settings.probe), format!("{:?}", defaults.probe));
        assert_eq!(settings.sources.sources.dns_refresh, defaults.sources.sources.dns_refresh);
        assert_eq!((settings.picker, settings.process), (defaults.picker, defaults.process));
        assert_eq!(format!("{:?}", settings.sharing), format!("{:?}", defaults.sharing));
        assert_eq!(settings.policies, defaults.policies);
        assert_eq!((settings.access_log, settings.record), (defaults.access_log, defaults.record));
    }

    /// The options that the parts name in errors about their settings.
    #[test]
    fn parts_name_options_that_exist() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folders = ["core", "edge"].map(|ring| std::fs::read_dir(crates.join(ring)).unwrap());
        let mut open: Vec<_> =
            folders.into_iter().flatten().map(|entry| entry.unwrap().path().join("src")).collect();
        let mut named = Vec::new();
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let code = std::fs::read_to_string(&path).unwrap();
            for table in code.split("check_settings(&[").skip(1) {
                let rows = table.split("])").next().unwrap();
                let keys =
                    rows.split('(').filter_map(|row| row.trim_start().strip_prefix('"')?.split('"').next());
                named.extend(keys.map(str::to_owned));
            }
        }
        assert!(named.len() > 20, "the tables were not found: {named:?}");
        let exists = |key: &String| KEYS.iter().any(|(_, keys)| keys.contains(&key.as_str()));
        named.retain(|key| !exists(key));
        assert_eq!(named, [""; 0]);
    }

    #[test]
    fn the_systemd_unit_waits_longer_than_the_drain_timeout() {
        let unit = include_str!("../../../../deploy/warmroute.service");
        let stop_s = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        let stop_s: u64 = stop_s.parse().unwrap();
        let drain = Options::defaults().server.drain_timeout_secs.unwrap().0;
        assert!(stop_s >= drain.as_secs() + 60, "{stop_s}");
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
