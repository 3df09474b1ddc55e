//! The router's time, read from the process's monotonic clock.

use std::time::Instant;

use warmroute_types::Micros;

/// The router's time at process start. It is far above zero because restored state carries earlier times.
const EPOCH: Micros = Micros::from_secs(365 * 86_400);

/// A clock that all parts of the gateway share by copying it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the clock.
    pub(crate) fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// The time now.
    pub(crate) fn now(self) -> Micros {
        EPOCH + self.start.elapsed().into()
    }

    /// Time from the clock's start to `at`.
    pub(crate) fn since_start(self, at: Micros) -> Micros {
        at.since(EPOCH)
    }
}
