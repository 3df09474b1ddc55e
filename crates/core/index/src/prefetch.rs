//! Hints to the processor that a cache line is needed soon.
#![allow(unsafe_code)]

/// Prefetches the cache line of `target`. Does nothing on processors without such an instruction.
#[inline]
pub(crate) fn line<T>(target: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint and accesses no memory, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(target.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = target;
}

/// Prefetches `lines` consecutive cache lines.
#[inline]
pub(crate) fn lines<T>(target: *const T, lines: usize) {
    for step in 0..lines {
        line(target.cast::<u8>().wrapping_add(64 * step));
    }
}
