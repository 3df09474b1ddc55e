//! Connections of a listener: accepting them, serving HTTP on them, closing them on drain.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use warmroute_wire::Acceptor;

use crate::accept::accept_until_drained;
use crate::busy_body::BusyBody;
use crate::client_connection::ClientConnection;
use crate::drain::{Drain, Drained};
use crate::listener_limits::{ClientTimeouts, ListenerLimits};
use crate::open_connections::OpenConnection;
use crate::rare_event::rarely;
use crate::write_stall::{ResponseDeadline, WriteStall};

/// What a connection reads at a time, and so the largest head. A block of 128 KiB or more would be mapped anew for each long
/// request (`large_blocks` in the command line), and its pages with it.
const READ_BYTES_MAX: usize = 96 << 10;

/// The accept loop of the client listener and of the admin listener.
pub(crate) async fn accept<S, F, B>(
    listener: TcpListener,
    drain: Drain,
    limits: ListenerLimits,
    service: S,
) -> Drained
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: hyper::body::Body<Data = bytes::Bytes, Error: std::error::Error + Send + Sync>
        + Send
        + Unpin
        + 'static,
{
    // The slot is taken after the accept, so that the gauge counts connections only.
    accept_until_drained(
        listener,
        &drain,
        || limits.acquire_slot(),
        |stream, peer| {
            let timeouts = (limits.timeouts)();
            let open = limits.connections.add(peer.ip(), timeouts.head);
            let context = ConnectionContext { drain: drain.clone(), timeouts, open };
            connection(stream, limits.acceptor.clone(), context, service.clone())
        },
    )
    .await
}

/// What belongs to one connection.
struct ConnectionContext {
    drain: Drain,
    timeouts: ClientTimeouts,
    open: Arc<OpenConnection>,
}

/// Serves a connection. It ends early if it stays silent, see `open_connections`.
async fn connection<S, F, B>(stream: TcpStream, acceptor: Acceptor, context: ConnectionContext, service: S)
where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: hyper::body::Body<Data = bytes::Bytes, Error: std::error::Error + Send + Sync> + Unpin + 'static,
{
    let (open, drain) = (Arc::clone(&context.open), context.drain.clone());
    tokio::select! {
        biased;
        () = serve_connection(stream, acceptor, context, service) => {}
        () = rarely(open.wait_expired(&drain)) => tracing::debug!("closed a connection without an accepted request"),
    }
}

async fn serve_connection<S, F, B>(
    stream: TcpStream,
    acceptor: Acceptor,
    context: ConnectionContext,
    service: S,
) where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: hyper::body::Body<Data = bytes::Bytes, Error: std::error::Error + Send + Sync> + Unpin + 'static,
{
    let ConnectionContext { drain, timeouts, open } = context;
    let accepting = async {
        // Unlike `readable`, this never returns without a byte or the end.
        if stream.peek(&mut [0]).await.is_ok_and(|bytes| bytes > 0) {
            open.hear();
        }
        acceptor.accept(stream).await
    };
    let stream = tokio::select! {
        accepted = tokio::time::timeout(timeouts.head, accepting) => match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake timed out"),
        },
        () = open.wait_leave() => return,
    };
    let (requests, deadline) = (open.requests().clone(), ResponseDeadline::default());
    let stream = WriteStall::new(stream, timeouts.write_stall, deadline.clone());
    let (draining, in_progress) = (drain.clone(), requests.clone());
    let connection = Arc::new(ClientConnection { deadline, drain: draining, open: Arc::clone(&open) });
    let service = service_fn(move |mut request: Request<Incoming>| {
        connection.deadline.set(None);
        request.extensions_mut().insert(Arc::clone(&connection));
        let _request = in_progress.begin();
        let (responding, connection) = (service(request), Arc::clone(&connection));
        async move {
            let mut response = responding.await?;
            connection.drain.add_close_header(response.headers_mut());
            Ok::<_, Infallible>(response.map(|body| BusyBody { body, _request }))
        }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.head)
        .max_buf_size(READ_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut http = std::pin::pin!(http);
    let served = tokio::select! {
        // The requests first: what else may come hardly ever does.
        biased;
        served = http.as_mut() => served,
        () = rarely(open.wait_leave()) => {
            if open.may_be_cut() {
                return;
            }
            // A request that has just begun is still served, and a response written to its end.
            http.as_mut().graceful_shutdown();
            http.await
        }
        () = rarely(drain.wait_close_idle()) => {
            http.as_mut().graceful_shutdown();
            tokio::select! {
                served = http.as_mut() => served,
                () = drain.wait_abort() => http.await,
                // A part of a next request is no reason to keep the process.
                () = requests.wait_idle() => return,
            }
        }
    };
    if let Err(error) = served {
        // Clients disconnect or send invalid HTTP all the time, so this is not worth a warning.
        tracing::debug!(%error, "client connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::response_body::ResponseBody;

    #[tokio::test]
    async fn a_part_of_a_head_is_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let timeouts = ClientTimeouts { head: Duration::from_secs(60), write_stall: Duration::from_secs(60) };
        let limits = ListenerLimits::new(9, Acceptor::default(), move || timeouts);
        let connections = limits.connections.clone();
        let service = |_| async { Ok(Response::new(ResponseBody::whole(bytes::Bytes::new()))) };
        let serving = tokio::spawn(accept(listener, Drain::default(), limits, service));
        let _silent = TcpStream::connect(to).await.unwrap();
        let mut slow = TcpStream::connect(to).await.unwrap();
        slow.write_all(b"P").await.unwrap();
        while connections.heard() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(connections.heard(), 1);
        serving.abort();
    }
}
