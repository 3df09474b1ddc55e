//! `warmroute serve`.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::ServeArgs;
use crate::control::Origin;
use crate::logging;
use crate::options::{check_environment, read_file};
use crate::plan::Plan;
use crate::service::Service;

/// Runs the gateway until SIGTERM or SIGINT. SIGHUP makes it read its files again.
pub fn run(args: Box<ServeArgs>) -> anyhow::Result<()> {
    check_environment()?;
    let file = args.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
    let origin = Origin { flags: args.options.clone(), file: args.config.clone() };
    let options = args.options.over(file);
    logging::start(&options)?;
    let threads = options.server.threads.unwrap_or(0);
    let plan = Plan::new(options)?;
    runtime(threads)?.block_on(serve(plan, origin))
}

/// The runtime for `threads` threads; 0 is one per core.
pub fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if threads > 0 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("cannot start the runtime")
}

async fn serve(plan: Plan, origin: Origin) -> anyhow::Result<()> {
    let drain_timeout = plan.drain_timeout;
    let mut stop = Stop::listen()?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let service = Service::start(plan, origin).await?;
    announce(&service);
    loop {
        tokio::select! {
            () = stop.asked() => break,
            _ = hangup.recv() => service.control.read_again(),
        }
    }
    tracing::info!("draining: no new requests; a second signal ends at once");
    tokio::select! {
        drained = service.drain(drain_timeout) => drained,
        () = stop.asked() => anyhow::bail!("stopped before every request had ended"),
    }
}

/// The first line on stdout, for whoever started us: where we listen, ports of 0 filled in.
pub fn announce(service: &Service) {
    let [clients, operators] = service.schemes;
    println!(
        r#"{{"listening":"{clients}://{}","admin":"{operators}://{}"}}"#,
        service.listening, service.admin
    );
}

/// SIGTERM and SIGINT.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// From now on the signals are ours to answer.
    pub fn listen() -> anyhow::Result<Stop> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        Ok(Stop { terminate, interrupt })
    }

    /// Returns at the next one.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
