//! The pages that are open.

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// The open pages.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) open: Mutex<OpenPages>,
}

#[derive(Default)]
pub(super) struct OpenPages {
    pub(super) pages: Vec<mpsc::Sender<Bytes>>,
    /// Pages that have not got their first frame, which also says what happened before.
    pub(super) new: Vec<mpsc::Sender<Bytes>>,
    pub(super) is_published: bool,
}
