//! Bytes of workers: see `upstream/fuzz.rs`.

/// The bytes that a worker sends as its response.
pub fn response(input: &[u8]) {
    crate::upstream::response(input);
}
