//! Changes settings while the gateway runs, without dropping a request.
//!
//! ```text
//! SIGHUP, a changed file ──┐
//! PUT /config ─────────────┴─▶ ConfigReader ──▶ Plan ──▶ applied as a whole, or refused with a reason
//! ```
//!
//! A new plan is checked as at startup. Options that need a restart are named and refused; after that, applying the
//! plan cannot fail. A request in flight keeps the settings it started with. Files of keys and tokens are watched
//! too, and a change of any file reloads everything.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use warmroute_follow::Sources;
use warmroute_gateway::{Configuration, Gateway, Reload, Token};
use warmroute_router::Change;
use warmroute_wire::Dialer;

use crate::fingerprints::Fingerprints;
use crate::plan::{Acceptors, Plan};

/// Files are polled rather than watched: polling works on network file systems and through replaced links.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Reads configurations and makes plans of them. Only the command knows flags, configuration files and defaults.
pub trait ConfigReader: Send + Sync + 'static {
    /// All options with their values. Secrets are not serialized.
    type Options: Clone + Serialize + Send;

    /// The configuration file.
    fn file(&self) -> Option<&Path>;

    /// Reads the options of this source, over or under the flags.
    fn read(&self, source: &ConfigSource, in_force: &Self::Options) -> anyhow::Result<Self::Options>;

    /// The files of keys, tokens and certificates that options name, with their keys.
    fn named_files(&self, options: &Self::Options) -> Vec<(&'static str, PathBuf)>;

    /// Validates options.
    fn plan(&self, options: Self::Options) -> anyhow::Result<Plan<Self::Options>>;

    /// The keys whose values differ, as `table.key`. Fails if one of them needs a restart.
    fn changes(&self, before: &Self::Options, after: &Self::Options) -> anyhow::Result<Vec<String>>;
}

/// Where the settings in force come from.
#[derive(Clone)]
pub enum ConfigSource {
    /// The configuration file.
    File,
    /// A configuration sent by `PUT /config`.
    Sent {
        /// The request's content type.
        content_type: String,
        /// The request's body.
        body: Vec<u8>,
    },
}

/// The settings at startup that a reload can change.
pub(crate) struct InForce<O> {
    pub options: O,
    /// Fingerprints of the files, taken before they were read.
    pub files: Fingerprints,
    /// The token that operators send.
    pub admin_token: Option<Token>,
    /// Connects to workers.
    pub dialer: Dialer,
    /// Plain or TLS, for each listener.
    pub acceptors: Acceptors,
}

/// Reloads settings.
pub struct Control<C: ConfigReader> {
    reader: C,
    gateway: Arc<Gateway>,
    dialer: Dialer,
    acceptors: Acceptors,
    sources: mpsc::UnboundedSender<Sources>,
    /// Allows one reload at a time. `state` is locked only for moments, because requests read it.
    reloading: Mutex<()>,
    state: Mutex<ControlState<C::Options>>,
}

struct ControlState<O> {
    source: ConfigSource,
    options: O,
    admin_token: Option<Token>,
    /// Fingerprints of the files behind the settings in force.
    in_force: Fingerprints,
    /// Fingerprints of the files when they were last read.
    fingerprints: Fingerprints,
    /// Fingerprints at the last check. A file counts as written once two checks agree.
    last_check: Fingerprints,
}

/// What `PUT /config` replaces, as its answer says it.
const REPLACES: &str = "the whole configuration file: what the body does not name is as the flags say, or the default; secrets, \
                        files of secrets and what only a restart can change stay";

impl<C: ConfigReader> Control<C> {
    /// Starts with the settings of a plan.
    pub(crate) fn new(
        reader: C,
        gateway: Arc<Gateway>,
        sources: mpsc::UnboundedSender<Sources>,
        in_force: InForce<C::Options>,
    ) -> Control<C> {
        let InForce { options, files, admin_token, dialer, acceptors } = in_force;
        let (in_force, fingerprints, last_check) = (files.clone(), files.clone(), files);
        let source = ConfigSource::File;
        let state =
            Mutex::new(ControlState { source, options, admin_token, in_force, fingerprints, last_check });
        Control { reader, gateway, dialer, acceptors, sources, reloading: Mutex::default(), state }
    }

    /// Reloads the configuration file and all files it names.
    pub(crate) fn reload_files(&self) {
        let _reloading = self.reloading.lock();
        _ = self.reload(ConfigSource::File);
    }

    /// Reloads whenever one of the files has changed, forever.
    pub(crate) async fn watch_files(self: Arc<Control<C>>) {
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
        let now = Fingerprints::of(self.reader.file()).and_files(&self.reader.named_files(&options));
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
        let source = match self.reader.file() {
            Some(file) if now.differ_at(file, &state.fingerprints) => ConfigSource::File,
            _ if now != state.fingerprints => state.source.clone(),
            _ => return None,
        };
        // A file with errors is reported once.
        state.fingerprints = now;
        Some(source)
    }

    fn reload(&self, source: ConfigSource) -> anyhow::Result<Vec<String>> {
        let fingerprints = Fingerprints::of(self.reader.file());
        let in_force = self.state.lock().options.clone();
        let options = self.reader.read(&source, &in_force);
        let changed = options.and_then(|options| self.apply_options(options, fingerprints));
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

    /// Applies all options or none: every step that can fail comes first.
    fn apply_options(&self, options: C::Options, fingerprints: Fingerprints) -> anyhow::Result<Vec<String>> {
        let files = self.reader.named_files(&options);
        let fingerprints = fingerprints.and_files(&files);
        let plan = self.reader.plan(options)?;
        let in_force = self.state.lock().options.clone();
        let mut changed = self.reader.changes(&in_force, &plan.options)?;
        let touches = |table: &str| changed.iter().any(|key| key.starts_with(table));
        let config = warmroute_gateway::Config { dialer: self.dialer.clone(), ..plan.gateway.clone() };
        self.gateway.set_config(config)?;
        self.dialer.follow(&plan.gateway.dialer);
        self.acceptors.follow(&plan.acceptors);
        self.gateway.set_keys(plan.keys);
        let requests = plan.router.in_flight_max;
        self.gateway.router().apply(Change::InFlightMax { requests });
        if touches("routing.") || touches("cache.") {
            self.gateway.router().set_policies(plan.policy, plan.shadows);
        }
        if touches("models") || touches("cache.") {
            self.gateway.router().set_model_rules(plan.model_rules);
        }
        if touches("discovery.") || touches("workers") {
            self.sources.send(plan.sources).context("worker discovery has stopped")?;
        }
        let mut state = self.state.lock();
        let rotated = fingerprints.rotated_since(&state.in_force, &files);
        changed.extend(rotated.map(|key| format!("what is in security.{key}")));
        state.last_check = fingerprints.clone();
        state.in_force = fingerprints.clone();
        state.fingerprints = fingerprints;
        state.options = plan.options;
        state.admin_token = plan.gateway.admin_token;
        Ok(changed)
    }
}

impl<C: ConfigReader> Configuration for Control<C> {
    fn in_force(&self) -> Value {
        serde_json::to_value(&self.state.lock().options).unwrap_or_default()
    }

    fn admin_token(&self) -> Option<Token> {
        self.state.lock().admin_token
    }

    fn replace(&self, content_type: &str, body: &[u8]) -> Result<Value, String> {
        let _reloading = self.reloading.lock();
        let sent = ConfigSource::Sent { content_type: content_type.to_owned(), body: body.to_owned() };
        let changed = self.reload(sent).map_err(|why| format!("{why:#}"))?;
        Ok(json!({"replaces": REPLACES, "changed": changed, "config": self.in_force()}))
    }
}

#[cfg(test)]
mod tests {
    use warmroute_gateway::Records;
    use warmroute_policy::Policy;
    use warmroute_router::Router;

    use super::*;
    use crate::test_plan::{PolicyFile, plan};

    /// A control whose file says `policy`, and the gateway that it changes.
    fn control(name: &str, policy: &str) -> (Control<PolicyFile>, Arc<Gateway>, PathBuf) {
        let file = std::env::temp_dir().join(format!("warmroute-control-{name}-{}", std::process::id()));
        std::fs::write(&file, policy).unwrap();
        let files = Fingerprints::of(Some(&file));
        let plan = plan(policy.to_owned()).unwrap();
        let router = Arc::new(Router::with_shadows(plan.policy, plan.shadows, plan.router));
        let gateway = Gateway::new(router, plan.gateway.clone(), Records::default()).unwrap();
        let (dialer, acceptors) = (plan.gateway.dialer, plan.acceptors);
        let in_force = InForce { options: plan.options, files, admin_token: None, dialer, acceptors };
        let (sources, _) = mpsc::unbounded_channel();
        (Control::new(PolicyFile(file.clone()), Arc::clone(&gateway), sources, in_force), gateway, file)
    }

    fn policy_of(gateway: &Gateway) -> &'static str {
        gateway.router().inspect().policy().name()
    }

    #[tokio::test]
    async fn a_changed_file_is_applied_once_two_checks_agree() {
        let (control, gateway, file) = control("file", "round_robin");
        control.check_files();
        std::fs::write(&file, "least_loaded").unwrap();
        control.check_files();
        assert_eq!(policy_of(&gateway), "round_robin", "the file may still be being written");
        control.check_files();
        assert_eq!(policy_of(&gateway), "least_loaded");
        std::fs::remove_file(&file).unwrap();
    }

    #[tokio::test]
    async fn a_refused_configuration_changes_nothing() {
        let (control, gateway, file) = control("refused", "round_robin");
        for (sent, why) in [("best", "unknown policy `best`"), ("random", "need a restart")] {
            let refused = control.replace("text/plain", sent.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{refused}");
            assert_eq!((policy_of(&gateway), control.in_force()), ("round_robin", json!("round_robin")));
        }
        let replaced = control.replace("text/plain", b"least_loaded").unwrap();
        assert_eq!(replaced["changed"], json!(["routing.policy"]));
        assert_eq!((policy_of(&gateway), control.in_force()), ("least_loaded", json!("least_loaded")));
        std::fs::remove_file(&file).unwrap();
    }

    #[tokio::test]
    async fn a_signal_reads_the_file_over_a_sent_configuration() {
        let (control, gateway, file) = control("signal", "round_robin");
        control.replace("text/plain", b"least_loaded").unwrap();
        control.check_files();
        assert_eq!(policy_of(&gateway), "least_loaded", "the file has not changed");
        control.reload_files();
        assert_eq!(policy_of(&gateway), "round_robin");
        std::fs::remove_file(&file).unwrap();
    }
}
