//! Limits and timeouts of a connection.

use std::time::Duration;

use crate::byte_budget::ByteBudget;

/// Limits and timeouts of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time to connect and to perform the handshake, together.
    pub handshake_timeout: Duration,
    /// Interval of heartbeats. Peers older than ZMTP 3.1 get none; TCP keepalive covers them.
    pub heartbeat_interval: Duration,
    /// Time without a byte after which a peer counts as dead. Applies where heartbeats are sent.
    pub heartbeat_timeout: Duration,
    /// Most bytes of one message, all parts together.
    pub message_bytes_max: usize,
    /// Most parts of one message.
    pub message_parts_max: usize,
    /// Bytes of unfinished messages that several connections share; `None`: each has its own bound only.
    pub budget: Option<ByteBudget>,
    /// Most messages that wait for one slow peer; further ones are dropped and counted. For publishers.
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
            budget: None,
            queue_max: 100_000,
        }
    }
}
