//! Sockets, below HTTP: how workers are reached and what they are shown.
//!
//! The gateway sends requests to workers, the probe asks them how they are, and whoever follows their events asks where those
//! are. All three reach them the same way, so that way is here, and an operator who changes it changes it for all.

mod dialer;
mod target;

pub use dialer::Dialer;
pub use target::Target;
