//! Accepts connections until a drain begins.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::drain::{Drain, Drained};

/// Pause after a failed accept, which usually means that no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// Serves each connection in a task of its own until a drain begins, then waits until the last one has ended. A connection holds
/// its slot while it is served. One that was accepted is served even if a drain begins while it waits for a slot.
pub async fn accept_until_drained<Slot, Acquiring, Serving>(
    listener: TcpListener,
    drain: &Drain,
    acquire_slot: impl Fn() -> Acquiring,
    serve: impl Fn(TcpStream, SocketAddr) -> Serving,
) -> Drained
where
    Slot: Send + 'static,
    Acquiring: Future<Output = Slot>,
    Serving: Future<Output = ()> + Send + 'static,
{
    // Each connection holds a sender, so the channel closes when the last connection ends.
    let (open, mut all_closed) = mpsc::channel::<Infallible>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.wait_begun() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let slot = acquire_slot().await;
                let (serving, open) = (serve(stream, peer), open.clone());
                tokio::spawn(async move {
                    serving.await;
                    drop((slot, open));
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((open, listener));
    _ = all_closed.recv().await;
    Drained
}
