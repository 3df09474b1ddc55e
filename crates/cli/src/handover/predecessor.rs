//! The process whose place we take.

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
use super::{Estate, GREETING, Listeners, Opener, Purpose, READY, REFUSED, TAKEN, YOURS, check_owner};

const RETRY_EVERY: Duration = Duration::from_millis(50);
/// How often it is said whom we wait for.
const REMIND_EVERY: Duration = Duration::from_secs(5);
/// It stops accepting at once; should it hang, it does not hold us up.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);

/// A process that runs, and has given us its listeners.
pub struct Predecessor {
    stream: UnixStream,
    /// What it leaves us.
    pub estate: Estate,
}

impl Predecessor {
    /// Asks whoever waits at the path for its listeners, for so long; `None`: nobody waits there.
    pub async fn find(path: &Path, patience: Duration) -> anyhow::Result<Option<(Predecessor, Listeners)>> {
        let until = Instant::now() + patience;
        loop {
            let Some(stream) = connect(path, until).await? else { return Ok(None) };
            check_owner(&stream)?;
            let old = Process::behind(&stream);
            tracing::info!(%old, ?patience, "taking over from the running gateway");
            let received = wait_for(old, until, socket_passing::receive(&stream)).await;
            let Some(received) = received else {
                anyhow::bail!(
                    "the running gateway ({old}) did not hand over its listeners within {patience:?}; it continues, and \
                     nothing was changed"
                );
            };
            if let Some((line, sockets)) = unless_gone(received)? {
                let (estate, listeners) = understood(&line, sockets)?;
                return Ok(Some((Predecessor { stream, estate }, listeners)));
            }
            // It is leaving: somebody else, or nobody, waits there in a moment.
            anyhow::ensure!(
                Instant::now() < until,
                "the running gateway ({old}) did not hand over its listeners"
            );
            sleep(RETRY_EVERY).await;
        }
    }

    /// Tells it that we are ready; returns when it accepts nobody any more. Fails where another process has its place already.
    pub async fn release(mut self) -> anyhow::Result<Estate> {
        let leaving = async {
            // Where it is gone this fails, but it may have left a word.
            _ = self.stream.write_all(READY).await;
            let mut said = [0; YOURS.len()];
            self.stream.read_exact(&mut said).await.map(|_| said)
        };
        match timeout(LEAVES_WITHIN, leaving).await {
            Ok(Ok(said)) if said == TAKEN => anyhow::bail!("another process has already taken over"),
            Ok(Ok(_)) => tracing::info!("took over; the old gateway is draining"),
            // Then it is gone, or will go on for a while; either way its sockets are ours as well.
            Ok(Err(error)) => tracing::warn!(%error, "the old gateway exited during the handover"),
            Err(_) => {
                let old = Process::behind(&self.stream);
                tracing::warn!(%old, "the old gateway does not respond; both serve");
            }
        }
        Ok(self.estate)
    }
}

/// What comes of this in time; until then it is said now and then who is waited for.
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
            // More wait there than fit into its queue.
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                sleep(RETRY_EVERY).await;
            }
            Err(error) => return Err(error).context("cannot connect"),
        }
    }
}

type Given = (String, Vec<TcpListener>);

/// What it gave us; `None` where it has left, which resets those whom it had not taken yet.
fn unless_gone(received: io::Result<Given>) -> io::Result<Option<Given>> {
    match received {
        Ok((line, _)) if line.is_empty() => Ok(None),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        received => received.map(Some),
    }
}

fn understood(line: &str, sockets: Vec<TcpListener>) -> anyhow::Result<(Estate, Listeners)> {
    anyhow::ensure!(
        line.as_bytes() != REFUSED,
        "the running gateway belongs to another user and refuses to hand over"
    );
    let mut words = line.split_whitespace();
    anyhow::ensure!(words.next() == Some(GREETING), "the running gateway uses another handover version");
    let retries_left = words.next().and_then(|word| word.parse().ok()).context("invalid handover message")?;
    // The sockets first: where they end, the next word is not a name any more, and stays.
    let named: Vec<(TcpListener, &str)> = sockets.into_iter().zip(words.by_ref()).collect();
    let estate = Estate::read(retries_left, words);
    let mut listeners = Listeners::default();
    for (socket, name) in named {
        // A newer version may have listeners that we know nothing of.
        let Some(purpose) = Purpose::named(name) else { continue };
        let is_activated = estate.activated.contains(&purpose);
        listeners.add(purpose, socket, if is_activated { Opener::Systemd } else { Opener::Gateway });
    }
    Ok((estate, listeners))
}
