//! Where the router's time begins.

use warmroute_types::Micros;

/// The router's time at process start. It is far above zero because restored state carries earlier times.
pub(crate) const EPOCH: Micros = Micros::from_secs(365 * 86_400);
