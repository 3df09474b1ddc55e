//! How answers come back: what a router can hear of a prompt depends on it.

/// How an answer comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Token by token: the first one tells that the prompt is computed.
    #[default]
    Streamed,
    /// All at once, when it is finished.
    Whole,
}
