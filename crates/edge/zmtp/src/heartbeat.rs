//! Whether the peer is still there.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::options::Options;

/// When to ask, and when to give up.
#[derive(Debug)]
pub struct Heartbeat {
    interval: Duration,
    timeout: Duration,
    heard: Instant,
    asked: Instant,
    is_on: bool,
}

impl Heartbeat {
    /// No heartbeats: during the handshake there are none.
    pub fn off(options: &Options) -> Heartbeat {
        let now = Instant::now();
        Heartbeat {
            interval: options.heartbeat_interval,
            timeout: options.heartbeat_timeout,
            heard: now,
            asked: now,
            is_on: false,
        }
    }

    /// A peer of this minor version is ready. Older ones take a PING for an error and leave.
    pub fn begin(&mut self, peer_minor: u8) {
        self.is_on = peer_minor >= 1;
        self.heard();
    }

    /// Something arrived.
    pub fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// When to look again.
    pub fn due(&self) -> Option<Instant> {
        let ask = self.heard.max(self.asked) + self.interval;
        self.is_on.then(|| ask.min(self.heard + self.timeout))
    }

    /// Time to look: asks, or gives up.
    pub fn look(&mut self) -> Result<(), Error> {
        if self.heard.elapsed() >= self.timeout {
            return Err(Error::Dead(self.timeout));
        }
        self.asked = Instant::now();
        Ok(())
    }
}
