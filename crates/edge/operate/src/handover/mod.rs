//! Zero-downtime restart: a new process takes over a running gateway's listeners.
//!
//! ```text
//! old                            PATH                            new
//!  │ ◀──────────────────────── connects ──────────────────────── │   both check the other process's user
//!  │ saves its state                                             │
//!  │ ─────────── its listeners (SCM_RIGHTS), named ────────────▶ │   starts, probes its workers
//!  │ ◀───────────────────────── "ready" ──────────────────────── │
//!  │ stops accepting                                             │
//!  │ ───────────────────────── "yours" ────────────────────────▶ │   accepts, and listens at PATH for its successor
//!  ▼ finishes its requests and exits
//! ```
//!
//! Until "ready" the old process continues unchanged, so a new process that fails to start, finds no worker or dies
//! costs nothing. Between "ready" and "yours" new connections wait in the listeners' queues, which both processes
//! hold. Several processes may try at once without blocking each other: the first to be ready takes over, and the
//! others get "taken". With socket activation systemd holds the listeners, and no handover is needed.

mod activation;
mod listeners;
mod predecessor;
mod process;
mod state;
mod successor;

pub use activation::activated;
pub use listeners::{Listeners, Opener, Purpose, address_of};
pub use predecessor::Predecessor;
pub use process::Process;
pub use state::HandoverState;
pub use successor::{HandoverSocket, Successor, Successors};

use tokio::net::UnixStream;

/// Start of the old process's message: the protocol and its version.
const GREETING: &str = "warmroute-handover-1";
const READY: &[u8] = b"ready\n";
const YOURS: &[u8] = b"yours\n";

/// Sent instead of "yours" to a process that became ready after another one.
const TAKEN: [u8; YOURS.len()] = *b"taken\n";

/// Sent instead of the listeners to a process of another user.
const REFUSED: &[u8] = b"refused\n";

fn check_owner(peer: &UnixStream) -> anyhow::Result<()> {
    let (theirs, ours) = (peer.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    anyhow::ensure!(is_trusted(theirs, ours), "the other process runs as user {theirs}, this one as {ours}");
    Ok(())
}

/// Listeners pass only between processes of the same user, and from or to root.
fn is_trusted(theirs: u32, ours: u32) -> bool {
    theirs == ours || theirs == 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_the_same_user_and_root_are_trusted() {
        assert!(super::is_trusted(1000, 1000) && super::is_trusted(0, 1000));
        assert!(!super::is_trusted(1000, 0) && !super::is_trusted(1001, 1000));
    }
}
