//! Other settings while the gateway runs, without dropping a request.
//!
//! ```text
//! SIGHUP, a file that changed ──▶ flags over file ──┐
//! PUT /config ─────────────────▶ body over flags ──┴─▶ Plan ──▶ all of it in force, or none and why
//! ```
//!
//! A plan is made and checked as at the start; what cannot change while it runs is named and refused. Then it is applied, which
//! cannot fail. A request under way keeps the settings it began with. Files of keys and tokens are watched too: when one
//! changes, everything is read again, so there is one way only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use warmroute_gateway::{Configuration, Gateway, Reload, Token};
use warmroute_types::redact_values;
use warmroute_wire::Dialer;

use crate::difference::{differences, is_fixed};
use crate::fingerprints::Fingerprints;
use crate::options::{Options, parse, read_file};
use crate::plan::{Plan, Sources};
use crate::security::Acceptors;

/// Looked at, not watched by the kernel: that works on network file systems and for files replaced through links too.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where the options came from.
#[derive(Default)]
pub struct Origin {
    /// Flags and environment.
    pub flags: Options,
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// What the files were like before they were read.
    pub seen: Fingerprints,
}

/// What a gateway begins with, of what can change.
pub struct InForce {
    /// The options.
    pub options: Options,
    /// What operators must show.
    pub admin_token: Option<Token>,
    /// How workers are reached.
    pub dialer: Dialer,
    /// How those who come are spoken to.
    pub acceptors: Acceptors,
}

/// Changes what is in force.
pub struct Control {
    origin: Origin,
    gateway: Arc<Gateway>,
    dialer: Dialer,
    acceptors: Acceptors,
    sources: mpsc::UnboundedSender<Sources>,
    /// Held by whoever changes something, while files are read; `state` is held for moments only, because requests look there.
    turn: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    said: Said,
    options: Options,
    admin_token: Option<Token>,
    /// What the files were like when what is in force was read.
    in_force: Fingerprints,
    /// What they were like before they were last read.
    seen: Fingerprints,
    /// What they were like at the last look: one that is being written is left alone until it is the same twice.
    last_look: Fingerprints,
}

/// Who had the last word.
#[derive(Clone)]
enum Said {
    File,
    Put(Box<Put>),
}

/// A configuration as it was sent.
#[derive(Clone)]
pub struct Put {
    /// What it says.
    pub options: Options,
    /// Whether it says anything about workers: that there are none, for example.
    pub says_workers: bool,
}

/// What [`Configuration::replace`] does, in its answer.
const REPLACES: &str = "the whole configuration file: what the body does not name is as the flags say, or the default; secrets, \
                        files of secrets and what only a restart can change stay";

impl Control {
    /// In force is what this plan says.
    pub fn new(
        origin: Origin,
        gateway: Arc<Gateway>,
        sources: mpsc::UnboundedSender<Sources>,
        in_force: InForce,
    ) -> Control {
        let InForce { options, admin_token, dialer, acceptors } = in_force;
        let (in_force, seen, last_look) = (origin.seen.clone(), origin.seen.clone(), origin.seen.clone());
        let said = Said::File;
        let state = Mutex::new(State { said, options, admin_token, in_force, seen, last_look });
        Control { origin, gateway, dialer, acceptors, sources, turn: Mutex::default(), state }
    }

    /// Reads the configuration file and all it names again.
    pub fn read_again(&self) {
        let _turn = self.turn.lock();
        _ = self.reload(Said::File);
    }

    /// The same whenever one of the files has changed, for ever.
    pub async fn watch_files(self: Arc<Control>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let control = Arc::clone(&self);
            // A file system may be slow.
            _ = tokio::task::spawn_blocking(move || control.look_again()).await;
        }
    }

    fn look_again(&self) {
        let _turn = self.turn.lock();
        let options = self.state.lock().options.clone();
        let now = Fingerprints::of(self.origin.file.as_deref()).and_named_by(&options);
        let said = self.whose_word(now);
        said.into_iter().for_each(|said| _ = self.reload(said));
    }

    /// Whose settings to put in force, now that the files are like this; `None`: they are as they were, or still being written.
    fn whose_word(&self, now: Fingerprints) -> Option<Said> {
        let mut state = self.state.lock();
        if now != state.last_look {
            state.last_look = now;
            return None;
        }
        let said = match &self.origin.file {
            Some(file) if now.differ_at(file, &state.seen) => Said::File,
            _ if now != state.seen => state.said.clone(),
            _ => return None,
        };
        // A file that is no good is complained of once.
        state.seen = now;
        Some(said)
    }

    fn reload(&self, said: Said) -> anyhow::Result<Vec<String>> {
        let seen = Fingerprints::of(self.origin.file.as_deref());
        let changed = self.layers(&said).and_then(|options| self.put_in_force(options, seen));
        if changed.is_ok() {
            self.state.lock().said = said;
        }
        self.tell(changed)
    }

    fn tell(&self, changed: anyhow::Result<Vec<String>>) -> anyhow::Result<Vec<String>> {
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

    /// Whoever puts a configuration does so after the flags were written, so it wins over them; a file does not.
    fn layers(&self, said: &Said) -> anyhow::Result<Options> {
        let flags = self.origin.flags.clone();
        match (said, &self.origin.file) {
            (Said::Put(put), _) => {
                let in_force = self.state.lock().options.clone();
                let options = over_what_stays(put.options.clone(), in_force.clone()).over(flags);
                anyhow::ensure!(
                    put.says_workers || has_workers(&options) || !has_workers(&in_force),
                    "the configuration lists no workers, and it replaces the whole file, so all workers would be removed: list \
                     those to keep, or write `workers = []`"
                );
                Ok(options)
            }
            (Said::File, Some(file)) => {
                let options = read_file(file)?;
                let is_empty = options == Options::default();
                anyhow::ensure!(!is_empty, "{} is empty; it may be being written", file.display());
                Ok(flags.over(options))
            }
            (Said::File, None) => Ok(flags),
        }
    }

    /// All of it or nothing: whatever can fail comes first.
    fn put_in_force(&self, options: Options, seen: Fingerprints) -> anyhow::Result<Vec<String>> {
        let seen = seen.and_named_by(&options);
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
        let rotated = seen.rotated_since(&state.in_force, &plan.options);
        changed.extend(rotated.map(|key| format!("what is in security.{key}")));
        state.last_look = seen.clone();
        state.in_force = seen.clone();
        state.seen = seen;
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
        let _turn = self.turn.lock();
        let changed = match read(content_type, body) {
            Ok(put) => self.reload(Said::Put(Box::new(put))),
            Err(why) => self.tell(Err(why)),
        };
        let changed = changed.map_err(|why| format!("{why:#}"))?;
        Ok(json!({"replaces": REPLACES, "changed": changed, "config": self.in_force()}))
    }
}

/// What is put cannot be expected to repeat what cannot change, nor secrets, which are not shown: leaving them out must not open a door.
fn over_what_stays(mut put: Options, in_force: Options) -> Options {
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

/// Whether these lead to any worker.
fn has_workers(options: &Options) -> bool {
    let discovery = &options.discovery;
    let lists = [&discovery.worker_urls, &discovery.worker_dns];
    let is_listed = lists.into_iter().flatten().any(|list| !list.is_empty());
    is_listed || discovery.worker_file.is_some() || !options.workers.is_empty()
}

/// A configuration as it is sent: JSON as `GET /config` shows it, or TOML as in the file.
pub fn read(content_type: &str, body: &[u8]) -> anyhow::Result<Put> {
    let text = std::str::from_utf8(body).context("the configuration is not UTF-8")?;
    anyhow::ensure!(!text.trim().is_empty(), "the configuration is empty");
    match content_type.contains("json") {
        true => {
            let bad = |error: serde_json::Error| {
                anyhow!("invalid configuration: {}", redact_values(&error.to_string()))
            };
            let tables: Map<String, Value> = serde_json::from_str(text).map_err(bad)?;
            let options = serde_json::from_str(text).map_err(bad)?;
            Ok(Put { options, says_workers: tables.contains_key("workers") })
        }
        false => {
            let options = parse(text)?;
            let tables = text.parse::<toml::Table>().unwrap_or_default();
            Ok(Put { options, says_workers: tables.contains_key("workers") })
        }
    }
}
