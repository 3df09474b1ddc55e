//! A new process takes the old one's place, and no client notices.
//!
//! ```text
//! old                            PATH                            new
//!  │ ◀──────────────────────── connects ──────────────────────── │   both check whose process the other is
//!  │ saves what it remembers                                     │
//!  │ ─────────── its listeners (SCM_RIGHTS), named ────────────▶ │   starts, asks its workers how they are
//!  │ ◀───────────────────────── "ready" ──────────────────────── │
//!  │ accepts nobody any more                                     │
//!  │ ───────────────────────── "yours" ────────────────────────▶ │   accepts, and waits at PATH for the next
//!  ▼ answers what is under way, and ends
//! ```
//!
//! Until "ready" the old one goes on as if nobody had come, so a new one that cannot start, finds no worker or dies costs nothing.
//! Between "ready" and "yours" those who connect wait in the listener's queue, which both hold. Several may try at once, and one that
//! says nothing holds up nobody: whoever is ready first has the place, and the others are told "taken". Where systemd holds the listeners
//! instead (socket activation) there is nothing to ask for.

mod activation;
mod estate;
mod listeners;
mod predecessor;
mod process;
mod successor;

pub use activation::activated;
pub use estate::Estate;
pub use listeners::{Listeners, Opener, Purpose, address_of};
pub use predecessor::Predecessor;
pub use process::Process;
pub use successor::{Post, Successor, Successors};

use tokio::net::UnixStream;

/// What the old one's line begins with: whom it is from, and how it is to be read.
const GREETING: &str = "warmroute-handover-1";
const READY: &[u8] = b"ready\n";
const YOURS: &[u8] = b"yours\n";

/// What it says instead to whoever has its listeners and became ready later than another.
const TAKEN: [u8; YOURS.len()] = *b"taken\n";

/// What it is when a process may not have them.
const REFUSED: &[u8] = b"refused\n";

fn check_owner(peer: &UnixStream) -> anyhow::Result<()> {
    let (theirs, ours) = (peer.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    anyhow::ensure!(is_trusted(theirs, ours), "the other process runs as user {theirs}, this one as {ours}");
    Ok(())
}

/// Listeners are given to, and taken from, our own user and root only.
fn is_trusted(theirs: u32, ours: u32) -> bool {
    theirs == ours || theirs == 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn nobody_but_ourselves_and_root_is_trusted() {
        assert!(super::is_trusted(1000, 1000) && super::is_trusted(0, 1000));
        assert!(!super::is_trusted(1000, 0) && !super::is_trusted(1001, 1000));
    }
}
