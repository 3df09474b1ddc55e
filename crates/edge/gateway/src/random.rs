//! Random numbers for decisions and request ids: fast, per thread, not for secrets.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    // The standard library seeds each RandomState from the operating system.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0_u8));
}

/// 64 random bits (splitmix64).
pub(crate) fn random() -> u64 {
    STATE.with(|state| {
        let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        let x = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    })
}
