//! Searches for bytes that mostly are near, as the end of a name in JSON is.

/// Bytes that are looked at one by one. A search for many bytes at once takes longer to begin.
const NEAR: usize = 12;

/// The place of the first byte that `is_wanted`. `search` finds it in what is farther away.
#[inline]
pub(crate) fn find_near(
    bytes: &[u8],
    is_wanted: impl Fn(u8) -> bool,
    search: impl FnOnce(&[u8]) -> Option<usize>,
) -> Option<usize> {
    let near = bytes.len().min(NEAR);
    let found = bytes[..near].iter().position(|&byte| is_wanted(byte));
    found.or_else(|| search(&bytes[near..]).map(|at| near + at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_is_found_however_far_it_is() {
        for at in 0..40 {
            let mut bytes = [b'x'; 41];
            (bytes[at], bytes[40]) = (b'"', b'"');
            let find = |bytes| find_near(bytes, |byte| byte == b'"', |rest| memchr::memchr(b'"', rest));
            assert_eq!(find(&bytes), Some(at));
            assert_eq!(find(&bytes[..at]), None);
        }
    }
}
