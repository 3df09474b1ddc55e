//! Everything that a gateway process needs, validated.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use warmroute_follow::{FollowSettings, SharePlan, Sources};
use warmroute_gateway::{Keys, Token};
use warmroute_policy::Standard;
use warmroute_types::{AT_LEAST_1, BadSetting, check_settings};
use warmroute_wire::Acceptor;

use crate::handover::{Purpose, address_of};

/// The settings of each part. `O` are the options that they come from.
pub struct Plan<O> {
    /// Listeners, startup and shutdown.
    pub process: ProcessConfig,
    /// The active policy with its parameters.
    pub policy: Standard,
    /// Policies that are evaluated without acting.
    pub shadows: Vec<Standard>,
    /// Settings of single models.
    pub model_rules: warmroute_router::ModelRuleTable<Standard>,
    /// Settings of the routing core.
    pub router: warmroute_router::Config,
    /// Settings of the gateway.
    pub gateway: warmroute_gateway::Config,
    /// Settings of the probes.
    pub probe: warmroute_probe::Config,
    /// Where workers come from.
    pub sources: Sources,
    /// How KV events are followed; `None`: not at all.
    pub precise: Option<FollowSettings>,
    /// Recording of traces.
    pub record: warmroute_record::Config,
    /// Where each request is logged, if at all.
    pub access_log: warmroute_record::AccessLogConfig,
    /// The collector of OpenTelemetry traces; `None`: none are sent.
    pub collector: Option<warmroute_otel::CollectorConfig>,
    /// Sharing with peer routers; `None`: a single router.
    pub sharing: Option<SharePlan>,
    /// The endpoint picker; `None`: there is none.
    pub picker: Option<PickerPlan>,
    /// Token for `POST /events`.
    pub events_token: Option<Token>,
    /// Plain or TLS for clients and operators.
    pub acceptors: Acceptors,
    /// API keys; `None`: no authentication.
    pub keys: Option<Keys>,
    /// The resulting options, for `GET /config`.
    pub options: O,
}

impl<O> Plan<O> {
    /// The address of each listener that is used.
    pub(crate) fn addresses(&self) -> Vec<(Purpose, Option<SocketAddr>)> {
        let bind = self.precise.as_ref().and_then(|precise| precise.bind.as_deref());
        let pools = self.picker.iter().flat_map(|picker| &picker.pools).enumerate();
        let pools = pools.map(|(i, (_, address))| (Purpose::Pool(i as u16), Some(*address)));
        let others = [
            (Purpose::Clients, Some(self.process.listen)),
            (Purpose::Admin, Some(self.process.admin)),
            (Purpose::Events, bind.and_then(address_of)),
            (Purpose::Picker, self.picker.as_ref().and_then(|picker| picker.listen)),
            (Purpose::Mesh, self.sharing.as_ref().and_then(SharePlan::listen)),
        ];
        others.into_iter().chain(pools).collect()
    }

    /// Refuses two listeners on one port, unless they are on different addresses.
    pub fn check_ports(&self) -> anyhow::Result<()> {
        let addresses = self.addresses().into_iter().filter_map(|(purpose, at)| Some((purpose, at?)));
        let used: Vec<(Purpose, SocketAddr)> = addresses.filter(|(_, at)| at.port() != 0).collect();
        let overlap = |a: IpAddr, b: IpAddr| a == b || a.is_unspecified() || b.is_unspecified();
        for (i, (purpose, at)) in used.iter().enumerate() {
            let is_same = |(_, other): &&(Purpose, SocketAddr)| {
                at.port() == other.port() && overlap(at.ip(), other.ip())
            };
            if let Some((other, _)) = used[..i].iter().find(is_same) {
                let list = if matches!(purpose, Purpose::Pool(_)) { ": port" } else { "" };
                let (option, name) = (purpose.words().0.trim_start_matches('-'), other.words().1);
                anyhow::bail!("{option}{list} {} is also the port of {name}: choose another one", at.port());
            }
        }
        Ok(())
    }
}

/// More than any machine has cores.
const THREADS_MAX: usize = 1_024;

/// Settings of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Address of the client listener.
    pub listen: SocketAddr,
    /// Address of the admin listener.
    pub admin: SocketAddr,
    /// Threads that serve requests; 0: one per core.
    pub threads: usize,
    /// Unix socket for handovers; `None`: no handover.
    pub handover: Option<PathBuf>,
    /// How long to wait for the running process to hand over.
    pub handover_timeout: Duration,
    /// File for saved state; `None`: state is not saved.
    pub state: Option<PathBuf>,
    /// How often the state of a running process is saved. A large state is saved less often.
    pub state_interval: Duration,
    /// How long requests may take to finish on shutdown.
    pub drain_timeout: Duration,
    /// How often expired entries of the index are evicted.
    pub eviction_interval: Duration,
}

impl Default for ProcessConfig {
    fn default() -> ProcessConfig {
        ProcessConfig {
            listen: SocketAddr::from(([0, 0, 0, 0], 30_000)),
            admin: SocketAddr::from(([127, 0, 0, 1], 29_000)),
            threads: 0,
            handover: None,
            handover_timeout: Duration::from_secs(30),
            state: None,
            state_interval: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(600),
            eviction_interval: Duration::from_secs(120),
        }
    }
}

impl ProcessConfig {
    /// Checks constraints that the types do not express.
    pub fn validate(&self) -> Result<(), BadSetting> {
        check_settings(&[
            ("threads", self.threads <= THREADS_MAX, "must be at most 1024"),
            ("handover-timeout-secs", !self.handover_timeout.is_zero(), AT_LEAST_1),
            ("eviction-interval-secs", !self.eviction_interval.is_zero(), AT_LEAST_1),
        ])
    }
}

/// An endpoint picker for Envoy.
#[derive(Clone, Debug)]
pub struct PickerPlan {
    /// Address of the listener for all workers, if there is one.
    pub listen: Option<SocketAddr>,
    /// Pools with a listener of their own, and its address.
    pub pools: Vec<(String, SocketAddr)>,
    /// How it answers.
    pub config: warmroute_picker::Config,
}

/// Plain or TLS, for each listener.
#[derive(Clone)]
pub struct Acceptors {
    /// The client listener.
    pub clients: Acceptor,
    /// The admin listener.
    pub operators: Acceptor,
    /// The endpoint picker's listener, which accepts plain connections too.
    pub picker: Acceptor,
}

impl Acceptors {
    /// Uses the others' settings for new connections.
    pub(crate) fn follow(&self, others: &Acceptors) {
        self.clients.follow(&others.clients);
        self.operators.follow(&others.operators);
        self.picker.follow(&others.picker);
    }
}
