//! Fuzz targets: what must hold of anything that clients and workers may send.
//!
//! Each is a function of bytes that panics when a promise is broken. `cargo test` tries them with the corpus in `fuzz/` and inputs
//! like it; `fuzz/run` searches for others.

mod body;
mod head;
mod keys;
mod stream;

pub use body::body;
pub use head::head;
pub use keys::keys;
pub use stream::stream;

#[cfg(test)]
mod tests {
    use warmroute_fuzz::try_out;

    #[test]
    fn bodies_go_on_with_their_meaning() {
        try_out("body", super::body);
    }

    #[test]
    fn heads_are_stripped_of_what_is_not_theirs_to_say() {
        try_out("head", super::head);
    }

    #[test]
    fn key_files_let_in_whom_they_name() {
        try_out("keys", super::keys);
    }

    #[test]
    fn streams_are_read_alike_however_they_are_cut() {
        try_out("stream", super::stream);
    }
}
