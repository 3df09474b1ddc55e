//! What a caller spawns.

use std::pin::Pin;

/// A task that runs until it is dropped. Boxed, so that this crate compiles it and not the caller's.
pub type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;
