//! Changes settings while the gateway runs, without dropping a request.
//!
//! ```text
//! SIGHUP, a changed file ──▶ flags over file ──┐
//! PUT /config ─────────────▶ body over flags ──┴─▶ Plan ──▶ applied as a whole, or refused with a reason
//! ```
//!
//! A new plan is checked as at startup. Options that need a restart are named and refused; after that, applying the
//! plan cannot fail. A request in flight keeps the settings it started with. Files of keys and tokens are watched
//! too, and a change of any file reloads everything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use warmroute_follow::Sources;
use warmroute_gateway::{Configuration, Gateway, Reload, Token};
use warmroute_types::redact_values;
use warmroute_wire::Dialer;

use crate::difference::{differences, is_fixed};
use crate::fingerprints::Fingerprints;
use crate::options::{Options, parse, read_file};
use crate::plan::Plan;
use crate::security::Acceptors;

/// Files are polled rather than watched: polling works on network file systems and through replaced links.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Where the options came from.
#[derive(Default)]
pub struct Origin {
    /// Flags and environment.
    pub flags: Options,
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// Fingerprints of the files, taken before they were read.
    pub fingerprints: Fingerprints,
}

/// The settings at startup that a reload can change.
pub struct InForce {
    pub options: Options,
    /// The token that operators send.
    pub admin_token: Option<Token>,
    /// Connects to workers.
    pub dialer: Dialer,
    /// Plain or TLS, for each listener.
    pub acceptors: Acceptors,
}

/// Reloads settings.
pub struct Control {
    origin: Origin,
    gateway: Arc<Gateway>,
    dialer: Dialer,
    acceptors: Acceptors,
    sources: mpsc::UnboundedSender<Sources>,
    /// Allows one reload at a time. `state` is locked only for moments, because requests read it.
    reloading: Mutex<()>,
    state: Mutex<ControlState>,
}

struct ControlState {
    source: ConfigSource,
    options: Options,
    admin_token: Option<Token>,
    /// Fingerprints of the files behind the settings in force.
    in_force: Fingerprints,
    /// Fingerprints of the files when they were last read.
    fingerprints: Fingerprints,
    /// Fingerprints at the last check. A file counts as written once two checks agree.
    last_check: Fingerprints,
}

/// Where the settings in force come from.
#[derive(Clone)]
enum ConfigSource {
    File,
    Sent(Box<SentConfig>),
}

/// A configuration sent by `PUT /config`.
#[derive(Clone)]
pub struct SentConfig {
    pub options: Options,
    /// Whether it has a `workers` table, even an empty one.
    pub names_workers: bool,
}

/// What `PUT /config` replaces, as its answer says it.
const REPLACES: &str = "the whole configuration file: what the body does not name is as the flags say, or the default; secrets, \
                        files of secrets and what only a restart can change stay";

impl Control {
    /// Starts with the settings of a plan.
    pub fn new(
        origin: Origin,
        gateway: Arc<Gateway>,
        sources: mpsc::UnboundedSender<Sources>,
        in_force: InForce,
    ) -> Control {
        let InForce { options, admin_token, dialer, acceptors } = in_force;
        let (in_force, fingerprints, last_check) =
            (origin.fingerprints.clone(), origin.fingerprints.clone(), origin.fingerprints.clone());
        let source = ConfigSource::File;
        let state =
            Mutex::new(ControlState { source, options, admin_token, in_force, fingerprints, last_check });
        Control { origin, gateway, dialer, acceptors, sources, reloading: Mutex::default(), state }
    }

    /// Reloads the configuration file and all files it names.
    pub fn reload_files(&self) {
        let _reloading = self.reloading.lock();
        _ = self.reload(ConfigSource::File);
    }

    /// Reloads whenever one of the files has changed, forever.
    pub async fn watch_files(self: Arc<Control>) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let control = Arc::clone(&self);
            // A file system may block.
            _ = tokio::task::spawn_blocking(move || control.check_files()).await;
        }
    }

    fn check_files(&self) {
        let _reloading = self.reloading.lock();
        let options = self.state.lock().options.clone();
        let now = Fingerprints::of(self.origin.file.as_deref()).and_named_by(&options);
        let source = self.changed_source(now);
        source.into_iter().for_each(|source| _ = self.reload(source));
    }

    /// The settings to apply now that the files have these fingerprints. `None`: nothing changed, or a file is still
    /// being written.
    fn changed_source(&self, now: Fingerprints) -> Option<ConfigSource> {
        let mut state = self.state.lock();
        if now != state.last_check {
            state.last_check = now;
            return None;
        }
        let source = match &self.origin.file {
            Some(file) if now.differ_at(file, &state.fingerprints) => ConfigSource::File,
            _ if now != state.fingerprints => state.source.clone(),
            _ => return None,
        };
        // A file with errors is reported once.
        state.fingerprints = now;
        Some(source)
    }

    fn reload(&self, source: ConfigSource) -> anyhow::Result<Vec<String>> {
        let fingerprints = Fingerprints::of(self.origin.file.as_deref());
        let changed = self.layers(&source).and_then(|options| self.apply_options(options, fingerprints));
        if changed.is_ok() {
            self.state.lock().source = source;
        }
        self.report(changed)
    }

    fn report(&self, changed: anyhow::Result<Vec<String>>) -> anyhow::Result<Vec<String>> {
        match &changed {
            Ok(changed) => {
                tracing::info!(?changed, "configuration applied");
                self.gateway.count_reload(Reload::Applied);
            }
            Err(why) => {
                tracing::error!(
                    why = format!("{why:#}"),
                    "configuration refused; the old one stays in force"
                );
                self.gateway.count_reload(Reload::Refused);
            }
        }
        changed
    }

    /// Merges the layers. A sent configuration is newer than the flags and wins over them; a file does not.
    fn layers(&self, source: &ConfigSource) -> anyhow::Result<Options> {
        let flags = self.origin.flags.clone();
        match (source, &self.origin.file) {
            (ConfigSource::Sent(put), _) => {
                let in_force = self.state.lock().options.clone();
                let options = keep_fixed(put.options.clone(), in_force.clone()).over(flags);
                anyhow::ensure!(
                    put.names_workers || has_workers(&options) || !has_workers(&in_force),
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

    /// Applies all options or none: every step that can fail comes first.
    fn apply_options(&self, options: Options, fingerprints: Fingerprints) -> anyhow::Result<Vec<String>> {
        let fingerprints = fingerprints.and_named_by(&options);
        let plan = Plan::new(options)?;
        let mut changed = differences(&self.state.lock().options, &plan.options)?;
        let fixed: Vec<&str> = changed.iter().map(String::as_str).filter(|key| is_fixed(key)).collect();
        anyhow::ensure!(fixed.is_empty(), "these options need a restart: {}", fixed.join(", "));
        let touches = |table: &str| changed.iter().any(|key| key.starts_with(table));
        let config = warmroute_gateway::Config { dialer: self.dialer.clone(), ..plan.gateway.clone() };
        self.gateway.set_config(config)?;
        self.dialer.follow(&plan.gateway.dialer);
        self.acceptors.follow(&plan.acceptors);
        self.gateway.set_keys(plan.keys);
        self.gateway.router().set_in_flight_max(plan.router.in_flight_max);
        if touches("routing.") || touches("cache.") {
            self.gateway.router().set_policies(plan.policy, plan.shadows);
        }
        if touches("discovery.") || touches("workers") {
            self.sources.send(plan.sources).context("worker discovery has stopped")?;
        }
        let mut state = self.state.lock();
        let rotated = fingerprints.rotated_since(&state.in_force, &plan.options);
        changed.extend(rotated.map(|key| format!("what is in security.{key}")));
        state.last_check = fingerprints.clone();
        state.in_force = fingerprints.clone();
        state.fingerprints = fingerprints;
        state.options = plan.options;
        state.admin_token = plan.admin_token;
        Ok(changed)
    }
}

impl Configuration for Control {
    fn in_force(&self) -> Value {
        serde_json::to_value(&self.state.lock().options).unwrap_or_default()
    }

    fn admin_token(&self) -> Option<Token> {
        self.state.lock().admin_token
    }

    fn replace(&self, content_type: &str, body: &[u8]) -> Result<Value, String> {
        let _reloading = self.reloading.lock();
        let changed = match read(content_type, body) {
            Ok(put) => self.reload(ConfigSource::Sent(Box::new(put))),
            Err(why) => self.report(Err(why)),
        };
        let changed = changed.map_err(|why| format!("{why:#}"))?;
        Ok(json!({"replaces": REPLACES, "changed": changed, "config": self.in_force()}))
    }
}

/// Adds what a sent configuration cannot change or repeat: fixed options, and secrets, which `GET /config` does not
/// show. Otherwise leaving a secret out would switch off its check.
fn keep_fixed(mut put: Options, in_force: Options) -> Options {
    put.server = put.server.over(in_force.server);
    put.events = put.events.over(in_force.events);
    put.security = put.security.over(in_force.security);
    put.health = put.health.over(in_force.health);
    put.recording = put.recording.over(in_force.recording);
    put.sharing = put.sharing.over(in_force.sharing);
    let (cache, stays) = (&mut put.cache, in_force.cache);
    cache.max_tree_size = cache.max_tree_size.or(stays.max_tree_size);
    cache.block_hash = cache.block_hash.take().or(stays.block_hash);
    cache.eviction_interval_secs = cache.eviction_interval_secs.or(stays.eviction_interval_secs);
    cache.presumed_ttl_secs = cache.presumed_ttl_secs.or(stays.presumed_ttl_secs);
    cache.worker_kv_tokens = cache.worker_kv_tokens.or(stays.worker_kv_tokens);
    put
}

/// Whether the options name any worker.
fn has_workers(options: &Options) -> bool {
    let discovery = &options.discovery;
    let lists = [&discovery.worker_urls, &discovery.worker_dns];
    let is_listed = lists.into_iter().flatten().any(|list| !list.is_empty());
    is_listed || discovery.worker_file.is_some() || !options.workers.is_empty()
}

/// Parses a sent configuration: JSON as `GET /config` shows it, or TOML as in the file.
pub fn read(content_type: &str, body: &[u8]) -> anyhow::Result<SentConfig> {
    let text = std::str::from_utf8(body).context("the configuration is not UTF-8")?;
    anyhow::ensure!(!text.trim().is_empty(), "the configuration is empty");
    match content_type.contains("json") {
        true => {
            let bad = |error: serde_json::Error| {
                anyhow!("invalid configuration: {}", redact_values(&error.to_string()))
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
