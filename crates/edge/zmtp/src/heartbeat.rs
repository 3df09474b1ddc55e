//! Detection of dead peers.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::options::Options;

/// When to send a heartbeat, and when to give up.
#[derive(Debug)]
pub struct Heartbeat {
    interval: Duration,
    timeout: Duration,
    record_activity: Instant,
    asked: Instant,
    is_on: bool,
}

impl Heartbeat {
    /// Without heartbeats, as during the handshake.
    pub fn off(options: &Options) -> Heartbeat {
        let now = Instant::now();
        Heartbeat {
            interval: options.heartbeat_interval,
            timeout: options.heartbeat_timeout,
            record_activity: now,
            asked: now,
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
        self.record_activity = Instant::now();
    }

    /// When to check again.
    pub fn due(&self) -> Option<Instant> {
        let ask = self.record_activity.max(self.asked) + self.interval;
        self.is_on.then(|| ask.min(self.record_activity + self.timeout))
    }

    /// Sends a heartbeat if one is due, or gives up.
    pub fn check(&mut self) -> Result<(), Error> {
        if self.record_activity.elapsed() >= self.timeout {
            return Err(Error::Dead(self.timeout));
        }
        self.asked = Instant::now();
        Ok(())
    }
}
