//! Detection of dead peers, on both sides.
//!
//! A PING carries a time to live: a peer that then receives nothing for so long ends the connection. So heartbeats are
//! sent at a steady interval, also while the peer itself is busy sending.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::options::Options;

/// When to send a heartbeat, and when to give up.
#[derive(Debug)]
pub struct Heartbeat {
    interval: Duration,
    timeout: Duration,
    heard_at: Instant,
    pinged_at: Instant,
    is_on: bool,
}

impl Heartbeat {
    /// Without heartbeats, as during the handshake.
    pub fn off(options: &Options) -> Heartbeat {
        let now = Instant::now();
        Heartbeat {
            interval: options.heartbeat_interval,
            timeout: options.heartbeat_timeout,
            heard_at: now,
            pinged_at: now,
            is_on: false,
        }
    }

    /// Starts after the handshake with a peer of this minor version. Older peers treat a PING as an error and
    /// disconnect.
    pub fn begin(&mut self, peer_minor: u8) {
        self.is_on = peer_minor >= 1;
        self.record_activity();
    }

    /// Records that something arrived.
    pub fn record_activity(&mut self) {
        self.heard_at = Instant::now();
    }

    /// When to check again.
    pub fn due(&self) -> Option<Instant> {
        let ping_at = self.pinged_at + self.interval;
        self.is_on.then(|| ping_at.min(self.heard_at + self.timeout))
    }

    /// Whether to send a PING now. If so, it counts as sent.
    pub fn take_due_ping(&mut self) -> bool {
        let is_due = self.is_on && self.pinged_at.elapsed() >= self.interval;
        if is_due {
            self.pinged_at = Instant::now();
        }
        is_due
    }

    /// Gives up on a peer that has sent nothing for too long.
    pub fn check(&self) -> Result<(), Error> {
        match self.heard_at.elapsed() >= self.timeout {
            true => Err(Error::Dead(self.timeout)),
            false => Ok(()),
        }
    }
}
