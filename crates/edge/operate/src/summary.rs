//! The first and the last line in the log of a process: what runs here, and how it ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use warmroute_policy::Policy;
use warmroute_types::OptionValue;

use crate::control::ConfigReader;
use crate::plan::Plan;
use crate::service::Service;

/// What the first line says beyond what the running service knows.
pub(crate) struct StartSummary {
    config: Option<PathBuf>,
    matching: &'static str,
}

impl StartSummary {
    pub(crate) fn of<O>(plan: &Plan<O>, config: Option<&Path>) -> StartSummary {
        let matching = plan.precise.as_ref().map_or("off", |precise| precise.matching.name());
        StartSummary { config: config.map(Path::to_owned), matching }
    }

    /// Logs what runs here, when clients are accepted.
    pub(crate) fn log<C: ConfigReader>(self, service: &Service<C>) {
        let workers = service.router.inspect().workers();
        let ready = workers.iter().filter(|view| view.load.state.takes_requests()).count();
        let [clients, operators] = service.schemes;
        let config = self.config.as_deref().map_or_else(|| "none".into(), Path::to_string_lossy);
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            policy = service.router.inspect().policy().name(),
            config = &*config,
            clients = format!("{clients}://{}", service.listening),
            admin = format!("{operators}://{}", service.admin),
            workers = workers.len(),
            ready,
            matching = self.matching,
            "warmroute started"
        );
    }
}

/// Logs how the process ended.
pub(crate) fn log_exit(cause: &str, uptime: Duration, drained: &anyhow::Result<()>) {
    let uptime_s = uptime.as_secs();
    match drained {
        Ok(()) => tracing::info!(cause, uptime_s, "warmroute stopped: every request had ended"),
        Err(why) => tracing::warn!(cause, uptime_s, why = format!("{why:#}"), "warmroute stopped"),
    }
}
