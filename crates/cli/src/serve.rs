//! `warmroute serve`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use warmroute_gateway::{Drain, DrainMode};

use crate::args::ServeArgs;
use crate::control::Origin;
use crate::fingerprints::Fingerprints;
use crate::handover::{Estate, Post, Predecessor, Successor, Successors, activated};
use crate::logging;
use crate::notify::Notify;
use crate::options::{check_environment, read_file};
use crate::places::check_places;
use crate::plan::Plan;
use crate::service::{Service, TOLD_WITHIN};

/// Runs the gateway until SIGTERM or SIGINT, or until another process takes its place. SIGHUP makes it read its files again.
pub fn run(args: Box<ServeArgs>) -> anyhow::Result<()> {
    check_environment()?;
    let seen = Fingerprints::of(args.config.as_deref());
    let file = args.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
    let options = args.options.clone().over(file);
    let seen = seen.and_named_by(&options);
    let origin = Origin { flags: args.options, file: args.config, seen };
    logging::start(&options)?;
    let threads = options.server.threads.unwrap_or(0);
    let plan = Plan::new(options)?;
    check_places(&plan)?;
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
    let mut stop = Stop::listen()?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let mut notify = Notify::from_env();
    let (drain_timeout, state, handover) = (plan.drain_timeout, plan.state.clone(), plan.handover.clone());
    let post = handover.map(|path| {
        Post::bind(&path).with_context(|| format!("handover: cannot listen at {}", path.display()))
    });
    let post = post.transpose()?;
    let mut service = tokio::select! {
        service = begin(plan, origin, &mut notify) => service?,
        () = stop.asked() => anyhow::bail!("interrupted during startup"),
    };
    let keeper = service.keeper(state);
    let (before, gateway) = (keeper.clone(), Arc::clone(&service.gateway));
    let told = notify.estate();
    let prepare = move || {
        before.keep();
        Estate { retries_left: gateway.retries_left(), ..told.clone() }
    };
    let successors = post.map(|post| post.await_successors(service.listeners(), Arc::new(prepare)));
    // Not before the next one could find us.
    announce(&service);
    notify.ready();
    let ending = run_on(&service, hangup, &mut stop, &mut notify, successors).await;
    // A successor has had what is known, and has its own to keep.
    let is_ours = matches!(ending, Ending::Stopped);
    match &ending {
        Ending::Stopped => notify.stopping(),
        Ending::Succeeded(successor) => notify.hand_over(successor.process()),
    }
    if is_ours {
        // At once, and not only when all have been answered: whoever loses patience before that kills us without asking.
        let keeper = keeper.clone();
        tokio::task::spawn_blocking(move || keeper.keep());
    }
    let (clients, steps) = (service.clients_drain(), ending.steps());
    let mut draining = std::pin::pin!(end(service, ending, drain_timeout));
    let drained = tokio::select! {
        drained = draining.as_mut() => drained,
        drained = still_alive(&mut notify) => drained,
        () = hurry(&mut stop, &clients, steps) => {
            _ = tokio::time::timeout(TOLD_WITHIN, draining).await;
            Err(anyhow::anyhow!("stopped before every request had ended"))
        }
    };
    if is_ours {
        keeper.keep();
    }
    drained
}

/// Each signal takes the draining a step further; returns after the last.
async fn hurry(stop: &mut Stop, clients: &Drain, steps: &[DrainMode]) {
    for step in steps {
        stop.asked().await;
        tracing::info!(?step, "second signal: draining faster");
        clients.begin(*step);
    }
}

/// For ever.
async fn still_alive(notify: &mut Notify) -> anyhow::Result<()> {
    loop {
        notify.be_alive().await;
    }
}

/// Starts everything, in the place of whoever has been here; returns when those who connect are accepted.
async fn begin(plan: Plan, origin: Origin, notify: &mut Notify) -> anyhow::Result<Service> {
    let mut inherited = activated(&plan.addresses())?;
    let predecessor = match &plan.handover {
        Some(path) => Predecessor::find(path, plan.handover_timeout)
            .await
            .with_context(|| format!("at {}", path.display()))?,
        None => None,
    };
    let predecessor = predecessor.map(|(predecessor, mut listeners)| {
        plan.addresses().into_iter().for_each(|(purpose, wanted)| listeners.keep_if_at(purpose, wanted));
        inherited.fill_from(listeners);
        predecessor
    });
    let service = Service::start(plan, origin, inherited).await?;
    match predecessor {
        Some(predecessor) => {
            service.fit_to_serve().await.context("startup failed; the running gateway continues")?;
            service.gateway.inherit_retries(predecessor.estate.retries_left);
            notify.take_over(predecessor.release().await?);
        }
        // Whoever connects meanwhile waits in the listener's queue, instead of being told that nobody is ready.
        None => service.hear_workers().await,
    }
    service.open();
    Ok(service)
}

/// Why it ends.
enum Ending {
    Stopped,
    Succeeded(Successor),
}

impl Ending {
    /// What the next signals bring. One that was succeeded has had none: the first asks it to drain as any other does, and only the
    /// second ends what is under way.
    fn steps(&self) -> &'static [DrainMode] {
        match self {
            Ending::Stopped => &[DrainMode::Abort],
            Ending::Succeeded(_) => &[DrainMode::CloseIdle, DrainMode::Abort],
        }
    }
}

async fn run_on(
    service: &Service,
    mut hangup: Signal,
    stop: &mut Stop,
    notify: &mut Notify,
    mut successors: Option<Successors>,
) -> Ending {
    loop {
        let succeeded = async {
            match &mut successors {
                Some(successors) => successors.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.asked() => return Ending::Stopped,
            _ = hangup.recv() => {
                notify.reloading();
                service.control.read_again();
                notify.ready();
            }
            () = notify.be_alive() => {}
            Some(successor) = succeeded => return Ending::Succeeded(successor),
        }
    }
}

async fn end(mut service: Service, ending: Ending, drain_timeout: Duration) -> anyhow::Result<()> {
    let mode = match ending {
        Ending::Stopped => {
            tracing::info!("draining: accepting no new requests; a second signal aborts the rest");
            DrainMode::CloseIdle
        }
        Ending::Succeeded(successor) => {
            tracing::info!("draining: the new process accepts requests now");
            service.make_way().await;
            successor.accede().await;
            DrainMode::KeepIdle
        }
    };
    service.drain(mode, drain_timeout).await
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
