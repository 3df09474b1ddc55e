//! The running process to take over from.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use warmroute_wire::socket_passing;

use super::process::Process;
use super::{GREETING, HandoverState, Listeners, Opener, Purpose, READY, REFUSED, TAKEN, YOURS, check_owner};

const RETRY_EVERY: Duration = Duration::from_millis(50);
/// How often the log repeats that the running process has not answered.
const REMIND_EVERY: Duration = Duration::from_secs(5);
/// How long the old process may take to stop accepting. A hung process does not block the new one.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running process that has passed its listeners.
pub struct Predecessor {
    stream: UnixStream,
    /// What it passes on beside its listeners.
    pub state: HandoverState,
}

impl Predecessor {
    /// Connects to the running process and receives its listeners. `None`: no process listens at the path.
    pub async fn find(path: &Path, time_limit: Duration) -> anyhow::Result<Option<(Predecessor, Listeners)>> {
        let until = Instant::now() + time_limit;
        loop {
            let Some(stream) = connect(path, until).await? else { return Ok(None) };
            check_owner(&stream)?;
            let old = Process::peer_of(&stream);
            tracing::info!(%old, ?time_limit, "taking over from the running gateway");
            let received = wait_for(old, until, socket_passing::receive(&stream)).await;
            let Some(received) = received else {
                anyhow::bail!(
                    "the running gateway ({old}) did not hand over its listeners within {time_limit:?}; it continues, and \
                     nothing was changed"
                );
            };
            if let Some((line, sockets)) = unless_left(received)? {
                let (state, listeners) = parse_offer(&line, sockets)?;
                return Ok(Some((Predecessor { stream, state }, listeners)));
            }
            // The process is exiting. Another one may listen there in a moment.
            anyhow::ensure!(
                Instant::now() < until,
                "the running gateway ({old}) did not hand over its listeners"
            );
            sleep(RETRY_EVERY).await;
        }
    }

    /// Reports that this process is ready, and returns when the old one has stopped accepting. Fails if another
    /// process has taken over already.
    pub async fn release(mut self) -> anyhow::Result<HandoverState> {
        let leaving = async {
            // The write fails if the process has exited, but its answer may still be readable.
            _ = self.stream.write_all(READY).await;
            let mut answer = [0; YOURS.len()];
            self.stream.read_exact(&mut answer).await.map(|_| answer)
        };
        match timeout(STOP_TIMEOUT, leaving).await {
            Ok(Ok(answer)) if answer == TAKEN => anyhow::bail!("another process has already taken over"),
            Ok(Ok(_)) => tracing::info!("took over; the old gateway is draining"),
            // The old process has exited or continues for a while; this one holds the sockets in either case.
            Ok(Err(error)) => tracing::warn!(%error, "the old gateway exited during the handover"),
            Err(_) => {
                let old = Process::peer_of(&self.stream);
                tracing::warn!(%old, "the old gateway does not respond; both serve");
            }
        }
        Ok(self.state)
    }
}

/// Waits for `work` until the deadline, and logs now and then which process has not answered.
async fn wait_for<T>(old: Process, until: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let look = until.min(Instant::now() + REMIND_EVERY);
        match timeout_at(look, work.as_mut()).await {
            Ok(done) => return Some(done),
            Err(_) if look == until => return None,
            Err(_) => {
                let for_more = until - Instant::now();
                tracing::warn!(%old, ?for_more, "waiting for the running gateway to respond");
            }
        }
    }
}

async fn connect(path: &Path, until: Instant) -> anyhow::Result<Option<UnixStream>> {
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(Some(stream)),
            // A socket file outlives its process.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            // The socket's accept queue is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                sleep(RETRY_EVERY).await;
            }
            Err(error) => return Err(error).context("cannot connect"),
        }
    }
}

type Received = (String, Vec<TcpListener>);

/// The received message. `None`: the process exited and reset connections it had not accepted.
fn unless_left(received: io::Result<Received>) -> io::Result<Option<Received>> {
    match received {
        Ok((line, _)) if line.is_empty() => Ok(None),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        received => received.map(Some),
    }
}

fn parse_offer(line: &str, sockets: Vec<TcpListener>) -> anyhow::Result<(HandoverState, Listeners)> {
    anyhow::ensure!(
        line.as_bytes() != REFUSED,
        "the running gateway belongs to another user and refuses to hand over"
    );
    let mut words = line.split_whitespace();
    anyhow::ensure!(words.next() == Some(GREETING), "the running gateway uses another handover version");
    let retries_left = words.next().and_then(|word| word.parse().ok()).context("invalid handover message")?;
    // Each socket takes one name. The words after the last name belong to the handover state.
    let named: Vec<(TcpListener, &str)> = sockets.into_iter().zip(words.by_ref()).collect();
    let state = HandoverState::read(retries_left, words);
    let mut listeners = Listeners::default();
    for (socket, name) in named {
        // A newer version may pass listeners unknown to this one.
        let Some(purpose) = Purpose::named(name) else { continue };
        let is_activated = state.activated.contains(&purpose);
        listeners.add(purpose, socket, if is_activated { Opener::Systemd } else { Opener::Gateway });
    }
    Ok((state, listeners))
}
