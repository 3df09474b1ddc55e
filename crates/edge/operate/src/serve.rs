//! One process from its start to its end: signals, handover, drain.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use warmroute_gateway::{Drain, DrainMode};

use crate::control::ConfigReader;
use crate::fingerprints::Fingerprints;
use crate::handover::{HandoverSocket, HandoverState, Predecessor, Successor, Successors, activated};
use crate::notify::Notify;
use crate::plan::{Plan, ProcessConfig};
use crate::service::{ABORT_TIMEOUT, PickerAddress, Service};
use crate::summary::{StartSummary, log_exit};

/// Runs the gateway until SIGTERM, SIGINT or a handover to another process. SIGHUP reloads its files. `files` are the
/// fingerprints of the files behind the plan, taken before they were read.
pub async fn serve<C: ConfigReader>(
    plan: Plan<C::Options>,
    reader: C,
    files: Fingerprints,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut stop = StopSignals::listen()?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let mut notify = Notify::from_env();
    let summary = StartSummary::of(&plan, reader.file());
    let ProcessConfig { drain_timeout, handover, .. } = plan.process.clone();
    let handover_socket = handover.map(|path| {
        HandoverSocket::bind(&path).with_context(|| format!("handover: cannot listen at {}", path.display()))
    });
    let handover_socket = handover_socket.transpose()?;
    let mut service = tokio::select! {
        service = start(plan, reader, files, &mut notify) => service?,
        () = stop.received() => anyhow::bail!("interrupted during startup"),
    };
    let state_writer = service.state_writer.clone();
    let (writer, gateway) = (state_writer.clone(), Arc::clone(&service.gateway));
    let inherited = notify.handover_state();
    let prepare = move || {
        writer.save();
        HandoverState { retries_left: gateway.retries_left(), ..inherited.clone() }
    };
    let successors = handover_socket
        .map(|handover_socket| handover_socket.accept_successors(service.listeners(), Arc::new(prepare)));
    // The handover socket is in place before the start is announced.
    announce(&service).await;
    summary.log(&service);
    notify.ready();
    let ending = serve_until_end(&service, hangup, &mut stop, &mut notify, successors).await;
    // A successor has received the state and saves its own.
    let is_ours = matches!(ending, Ending::Stopped);
    let cause = if is_ours { "signal" } else { "handover" };
    match &ending {
        Ending::Stopped => notify.stopping(),
        Ending::Succeeded(successor) => notify.hand_over(successor.process()),
    }
    if is_ours {
        // Saves at once as well as after draining, because the supervisor may kill the process before it has drained.
        let writer = state_writer.clone();
        tokio::task::spawn_blocking(move || writer.save());
    }
    let (clients, steps) = (service.clients_drain(), ending.steps());
    let mut draining = std::pin::pin!(end(service, ending, drain_timeout));
    let drained = tokio::select! {
        drained = draining.as_mut() => drained,
        drained = notify_alive(&mut notify) => drained,
        () = speed_up(&mut stop, &clients, steps) => {
            _ = tokio::time::timeout(ABORT_TIMEOUT, draining).await;
            Err(anyhow::anyhow!("stopped before every request had ended"))
        }
    };
    if is_ours {
        state_writer.save();
    }
    log_exit(cause, started.elapsed(), &drained);
    drained
}

/// Makes the drain stricter with each signal; returns after the last step.
async fn speed_up(stop: &mut StopSignals, clients: &Drain, steps: &[DrainMode]) {
    for step in steps {
        stop.received().await;
        tracing::info!(?step, "second signal: draining faster");
        clients.begin(*step);
    }
}

/// Sends watchdog messages forever.
async fn notify_alive(notify: &mut Notify) -> anyhow::Result<()> {
    loop {
        notify.send_watchdog().await;
    }
}

/// Starts everything, taking over from a running gateway if there is one. Returns when connections are accepted.
async fn start<C: ConfigReader>(
    plan: Plan<C::Options>,
    reader: C,
    files: Fingerprints,
    notify: &mut Notify,
) -> anyhow::Result<Service<C>> {
    let mut inherited = activated(&plan.addresses())?;
    let predecessor = match &plan.process.handover {
        Some(path) => Predecessor::find(path, plan.process.handover_timeout)
            .await
            .with_context(|| format!("at {}", path.display()))?,
        None => None,
    };
    let predecessor = predecessor.map(|(predecessor, mut listeners)| {
        plan.addresses().into_iter().for_each(|(purpose, wanted)| listeners.keep_if_at(purpose, wanted));
        inherited.fill_from(listeners);
        predecessor
    });
    let service = Service::start(plan, reader, files, inherited).await?;
    match predecessor {
        Some(predecessor) => {
            service.await_ready_workers().await.context("startup failed; the running gateway continues")?;
            service.gateway.inherit_retries(predecessor.state.retries_left);
            notify.take_over(predecessor.release().await?);
        }
        // Clients that connect meanwhile wait in the listener's queue instead of getting an error.
        None => service.await_first_worker().await,
    }
    service.open();
    Ok(service)
}

/// Why the service ends.
enum Ending {
    Stopped,
    Succeeded(Successor),
}

impl Ending {
    /// What each further signal does. After a handover no signal has arrived yet: the first one drains as usual, and
    /// the second one aborts requests.
    fn steps(&self) -> &'static [DrainMode] {
        match self {
            Ending::Stopped => &[DrainMode::Abort],
            Ending::Succeeded(_) => &[DrainMode::CloseIdle, DrainMode::Abort],
        }
    }
}

async fn serve_until_end<C: ConfigReader>(
    service: &Service<C>,
    mut hangup: Signal,
    stop: &mut StopSignals,
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
            () = stop.received() => return Ending::Stopped,
            _ = hangup.recv() => {
                notify.reloading();
                service.control.reload_files();
                notify.ready();
            }
            () = notify.send_watchdog() => {}
            Some(successor) = succeeded => return Ending::Succeeded(successor),
        }
    }
}

async fn end<C: ConfigReader>(
    mut service: Service<C>,
    ending: Ending,
    drain_timeout: Duration,
) -> anyhow::Result<()> {
    let mode = match ending {
        Ending::Stopped => {
            tracing::info!("draining: accepting no new requests; a second signal aborts the rest");
            DrainMode::CloseIdle
        }
        Ending::Succeeded(successor) => {
            tracing::info!("draining: the new process accepts requests now");
            service.stop_accepting().await;
            successor.take_over().await;
            DrainMode::KeepIdle
        }
    };
    service.drain(mode, drain_timeout).await
}

/// How long the start waits for its line on stdout.
const ANNOUNCE_MAX: Duration = Duration::from_secs(1);

/// Prints the first line on stdout: the addresses of the listeners, with real ports in place of 0.
pub async fn announce<C: ConfigReader>(service: &Service<C>) {
    let [clients, operators] = service.schemes;
    let common = service.picker.iter().find(|listener| listener.pool.is_none());
    let picker = common.map(|picker| format!(r#","picker":"{}""#, picker.address)).unwrap_or_default();
    let of_pool = |listener: &PickerAddress| Some((listener.pool.clone()?, listener.address.to_string()));
    let pools: BTreeMap<String, String> = service.picker.iter().filter_map(of_pool).collect();
    let pools = match pools.is_empty() {
        true => String::new(),
        false => format!(r#","pools":{}"#, serde_json::json!(pools)),
    };
    let line = format!(
        "{{\"listening\":\"{clients}://{}\",\"admin\":\"{operators}://{}\"{picker}{pools}}}",
        service.listening, service.admin
    );
    let (done, printed) = oneshot::channel();
    // Stdout may be a full pipe without a reader. Nothing depends on a reader, so a thread of its own waits for one.
    let print = move || {
        _ = writeln!(std::io::stdout(), "{line}");
        _ = done.send(());
    };
    if std::thread::Builder::new().name("announce".to_owned()).spawn(print).is_ok() {
        _ = tokio::time::timeout(ANNOUNCE_MAX, printed).await;
    }
}

/// Signals that arrive so soon after another one are the same request to stop: timeout(1) and some supervisors signal the process
/// and its group.
const SAME_STOP: Duration = Duration::from_millis(100);

/// SIGTERM and SIGINT.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    last: Option<Instant>,
    /// Handled, so that a file which reaches the process's limit gives an error and does not end the process.
    _file_size: Signal,
}

/// SIGXFSZ, on all Linux architectures but Alpha and MIPS.
const FILE_SIZE: i32 = 25;

impl StopSignals {
    /// Installs the signal handlers.
    pub fn listen() -> anyhow::Result<StopSignals> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let _file_size = signal(SignalKind::from_raw(FILE_SIZE)).context("cannot listen for SIGXFSZ")?;
        Ok(StopSignals { terminate, interrupt, last: None, _file_size })
    }

    /// Returns at the next request to stop.
    pub async fn received(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            let now = Instant::now();
            let is_same = self.last.is_some_and(|last| now.duration_since(last) < SAME_STOP);
            self.last = Some(now);
            if !is_same {
                return;
            }
        }
    }
}
