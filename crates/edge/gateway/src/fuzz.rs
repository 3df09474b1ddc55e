//! Fuzz targets: properties that hold for any input from clients and workers.
//!
//! Each target is a function of bytes that panics if a property is violated. `cargo test` runs them on the corpus in
//! `fuzz/` and on similar inputs; `fuzz/run` searches for others.

mod body;
mod head;
mod keys;
mod response;
mod stream;

pub use body::body;
pub use head::head;
pub use keys::keys;
pub use response::response;
pub use stream::stream;

#[cfg(test)]
mod tests {
    use warmroute_fuzz::try_out;

    #[test]
    fn forwarded_bodies_keep_their_meaning() {
        try_out("body", super::body);
    }

    #[test]
    fn forgeable_headers_are_removed() {
        try_out("head", super::head);
    }

    #[test]
    fn only_keys_in_the_file_are_accepted() {
        try_out("keys", super::keys);
    }

    #[test]
    fn streams_are_read_alike_wherever_reads_split_them() {
        try_out("stream", super::stream);
    }

    #[test]
    fn responses_are_read_alike_wherever_reads_split_them() {
        try_out("response", super::response);
    }
}
