//! What a request knows of the connection that it came on. It travels in the request's extensions.

use std::sync::Arc;

use http::Extensions;

use crate::drain::Drain;
use crate::open_connections::OpenConnection;
use crate::write_stall::ResponseDeadline;

/// The connection of a request.
pub(crate) struct ClientConnection {
    pub(crate) deadline: ResponseDeadline,
    /// Tells whether a shutdown aborts requests.
    pub(crate) drain: Drain,
    pub(crate) open: Arc<OpenConnection>,
}

impl ClientConnection {
    /// The connection of the request with these extensions; `None` if the request came on none, as in tests.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Arc<ClientConnection>> {
        extensions.get::<Arc<ClientConnection>>()
    }

    /// The drain of a request's listener. A request without a connection is never drained.
    pub(crate) fn drain_of(extensions: &Extensions) -> Drain {
        ClientConnection::of(extensions).map(|connection| connection.drain.clone()).unwrap_or_default()
    }
}
