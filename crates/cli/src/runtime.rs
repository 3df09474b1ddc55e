//! The asynchronous runtime of a command.

use anyhow::Context;

/// The runtime with `threads` threads; 0 means one per core.
pub fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if threads > 0 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("cannot start the runtime")
}
