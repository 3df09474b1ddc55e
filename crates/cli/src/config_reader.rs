//! Reads the configuration again while the gateway runs.
//!
//! ```text
//! SIGHUP, a changed file ──▶ flags over file ──┐
//! PUT /config ─────────────▶ body over flags ──┴─▶ Plan
//! ```

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::{Map, Value};
use warmroute_operate::{ConfigReader, ConfigSource};
use warmroute_types::redact_values;

use crate::difference::{differences, is_fixed};
use crate::options::{Options, parse, read_file, unknown_key};
use crate::plan::{Plan, plan};

/// Where the options came from.
#[derive(Default)]
pub struct Origin {
    /// Flags and environment.
    pub flags: Options,
    /// The configuration file.
    pub file: Option<PathBuf>,
}

/// A configuration sent by `PUT /config`.
pub struct SentConfig {
    pub options: Options,
    /// Whether it has a `workers` table, even an empty one.
    pub names_workers: bool,
}

impl ConfigReader for Origin {
    type Options = Options;

    fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Merges the layers. A sent configuration is newer than the flags and wins over them; a file does not.
    fn read(&self, source: &ConfigSource, in_force: &Options) -> anyhow::Result<Options> {
        let flags = self.flags.clone();
        match (source, &self.file) {
            (ConfigSource::Sent { content_type, body }, _) => {
                let SentConfig { options, names_workers } = read_sent(content_type, body)?;
                let options = keep_fixed(options, in_force.clone()).over(flags);
                anyhow::ensure!(
                    names_workers || has_workers(&options) || !has_workers(in_force),
                    "the configuration lists no workers, and it replaces the whole file, so all workers would be removed: list \
                     those to keep, or write `workers = []`"
                );
                Ok(options)
            }
            (ConfigSource::File, Some(file)) => {
                let options = read_file(file)?;
                let is_empty = options == Options::default();
                anyhow::ensure!(!is_empty, "{} is empty; it may be being written", file.display());
                Ok(flags.over(options))
            }
            (ConfigSource::File, None) => Ok(flags),
        }
    }

    fn named_files(&self, options: &Options) -> Vec<(&'static str, PathBuf)> {
        named_files(options)
    }

    fn plan(&self, options: Options) -> anyhow::Result<Plan> {
        plan(options)
    }

    fn changes(&self, before: &Options, after: &Options) -> anyhow::Result<Vec<String>> {
        let changed = differences(before, after);
        let fixed: Vec<&str> = changed.iter().map(String::as_str).filter(|key| is_fixed(key)).collect();
        anyhow::ensure!(fixed.is_empty(), "these options need a restart: {}", fixed.join(", "));
        Ok(changed)
    }
}

/// The files of keys, tokens and certificates, with their keys.
pub fn named_files(options: &Options) -> Vec<(&'static str, PathBuf)> {
    let set = options.security.set().into_iter();
    set.filter_map(|(key, value)| Some((key, value.downcast_ref::<PathBuf>()?.clone()))).collect()
}

/// Adds what a sent configuration cannot change or repeat: fixed options, and secrets, which `GET /config` does not
/// show. Otherwise leaving a secret out would switch off its check.
fn keep_fixed(put: Options, in_force: Options) -> Options {
    put.over_where(in_force, |table, key| table == "security" || is_fixed(&format!("{table}.{key}")))
}

/// Whether the options name any worker.
fn has_workers(options: &Options) -> bool {
    let discovery = &options.discovery;
    let lists = [&discovery.worker_urls, &discovery.worker_dns];
    let is_listed = lists.into_iter().flatten().any(|list| !list.is_empty());
    let is_discovered =
        discovery.worker_file.is_some() || discovery.service_discovery.is_some_and(|switch| switch.0);
    is_listed || is_discovered || !options.workers.is_empty()
}

/// Parses a sent configuration: JSON as `GET /config` shows it, or TOML as in the file.
pub fn read_sent(content_type: &str, body: &[u8]) -> anyhow::Result<SentConfig> {
    let text = std::str::from_utf8(body).context("the configuration is not UTF-8")?;
    anyhow::ensure!(!text.trim().is_empty(), "the configuration is empty");
    match content_type.contains("json") {
        true => {
            let bad = |error: serde_json::Error| {
                let message = error.to_string();
                match unknown_key(&message) {
                    Some(unknown) => anyhow!("invalid configuration: line {}: {unknown}", error.line()),
                    None => anyhow!("invalid configuration: {}", redact_values(&message)),
                }
            };
            let tables: Map<String, Value> = serde_json::from_str(text).map_err(bad)?;
            let options = serde_json::from_str(text).map_err(bad)?;
            Ok(SentConfig { options, names_workers: tables.contains_key("workers") })
        }
        false => {
            let options = parse(text)?;
            let tables = text.parse::<toml::Table>().unwrap_or_default();
            Ok(SentConfig { options, names_workers: tables.contains_key("workers") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sent_configuration_is_corrected_as_a_file_is() {
        let error = |content_type: &str, body: &str| {
            let sent = read_sent(content_type, body.as_bytes());
            sent.err().map(|error| format!("{error:#}")).unwrap_or_default()
        };
        for (body, expected) in [
            (
                r#"{"server": {"prot": 1}}"#,
                "invalid configuration: line 1: unknown key `server.prot`; did you mean `server.port`?",
            ),
            (
                "{\"workers\": [\n{\"url\": \"http://a\", \"rank\": 2}]}",
                "invalid configuration: line 2: unknown key `workers.rank`; did you mean `workers.ranks`?",
            ),
            (
                r#"{"server": {"port": "hush"}}"#,
                "invalid configuration: invalid type, expected a whole number from 0 to 65535 at line 1 column 26",
            ),
        ] {
            assert_eq!(error("application/json", body), expected);
        }
        let error = error("application/toml", "[server]\nprot = 1");
        assert_eq!(error, "line 2: unknown key `server.prot`; did you mean `server.port`?");
    }
}
