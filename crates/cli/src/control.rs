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

use anyhow::Context;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use warmroute_gateway::{Configuration, Gateway, Reload, Token};
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
    /// What the files were like before they were last read.
    seen: Fingerprints,
    /// What they were like at the last look: one that is being written is left alone until it is the same twice.
    last_look: Fingerprints,
}

/// Who had the last word.
#[derive(Clone)]
enum Said {
    File,
    Put(Box<Options>),
}

impl Control {
    /// In force is what this plan says.
    pub fn new(
        origin: Origin,
        gateway: Arc<Gateway>,
        sources: mpsc::UnboundedSender<Sources>,
        in_force: InForce,
    ) -> Control {
        let InForce { options, admin_token, dialer, acceptors } = in_force;
        let (seen, last_look) = (origin.seen.clone(), origin.seen.clone());
        let state = Mutex::new(State { said: Said::File, options, admin_token, seen, last_look });
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
                tracing::info!(?changed, "settings in force");
                self.gateway.count_reload(Reload::Applied);
            }
            Err(why) => {
                tracing::error!(why = format!("{why:#}"), "settings refused; the old ones stay in force");
                self.gateway.count_reload(Reload::Refused);
            }
        }
        changed
    }

    /// Whoever puts a configuration does so after the flags were written, so it wins over them; a file does not.
    fn layers(&self, said: &Said) -> anyhow::Result<Options> {
        let flags = self.origin.flags.clone();
        match (said, &self.origin.file) {
            (Said::Put(options), _) => {
                let in_force = self.state.lock().options.clone();
                let mut options = (**options).clone();
                // Secrets are not shown, so what is put cannot be expected to repeat them: leaving them out must not open a door.
                options.security = options.security.over(in_force.security);
                options.events = options.events.over(in_force.events);
                Ok(options.over(flags))
            }
            (Said::File, Some(file)) => {
                let options = read_file(file)?;
                let is_empty = options == Options::default();
                anyhow::ensure!(!is_empty, "{} says nothing: is it being written?", file.display());
                Ok(flags.over(options))
            }
            (Said::File, None) => Ok(flags),
        }
    }

    /// All of it or nothing: whatever can fail comes first.
    fn put_in_force(&self, options: Options, seen: Fingerprints) -> anyhow::Result<Vec<String>> {
        let seen = seen.and_named_by(&options);
        let plan = Plan::new(options)?;
        let changed = differences(&self.state.lock().options, &plan.options)?;
        let fixed: Vec<&str> = changed.iter().map(String::as_str).filter(|key| is_fixed(key)).collect();
        anyhow::ensure!(
            fixed.is_empty(),
            "cannot change while it runs, only by a restart: {}",
            fixed.join(", ")
        );
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
            self.sources.send(plan.sources).context("nobody looks for workers any more")?;
        }
        let mut state = self.state.lock();
        state.last_look = seen.clone();
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
            Ok(options) => self.reload(Said::Put(Box::new(options))),
            Err(why) => self.tell(Err(why)),
        };
        let changed = changed.map_err(|why| format!("{why:#}"))?;
        Ok(json!({"changed": changed, "config": self.in_force()}))
    }
}

/// A configuration as it is sent: JSON as `GET /config` shows it, or TOML as in the file.
pub fn read(content_type: &str, body: &[u8]) -> anyhow::Result<Options> {
    let text = std::str::from_utf8(body).context("it is not UTF-8")?;
    anyhow::ensure!(!text.trim().is_empty(), "it is empty");
    match content_type.contains("json") {
        true => serde_json::from_str(text).context("it is no configuration"),
        false => parse(text),
    }
}
