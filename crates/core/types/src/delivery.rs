//! How answers arrive, which determines what a router can observe of a prompt.

/// How an answer arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Token by token: the first one shows that the prompt is computed.
    #[default]
    Streamed,
    /// All at once, at the end.
    Whole,
}
