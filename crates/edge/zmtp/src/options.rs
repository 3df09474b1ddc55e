//! Limits and times of a connection.

use std::time::Duration;

/// What a connection may take, in time and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// To connect and to shake hands, together.
    pub handshake_timeout: Duration,
    /// How often a silent peer is asked whether it is there; peers older than ZMTP 3.1 are not asked, TCP looks after them.
    pub heartbeat_interval: Duration,
    /// After this long without a byte the peer is dead. Only where heartbeats are sent.
    pub heartbeat_timeout: Duration,
    /// All parts of one message together.
    pub message_bytes_max: usize,
    /// Parts of one message.
    pub message_parts_max: usize,
    /// Messages that wait for one slow peer; more are dropped, and counted. For publishers.
    pub queue_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            handshake_timeout: Duration::from_secs(5),
            heartbeat_interval: Duration::from_secs(5),
            heartbeat_timeout: Duration::from_secs(15),
            message_bytes_max: 32 << 20,
            message_parts_max: 16,
            queue_max: 100_000,
        }
    }
}
