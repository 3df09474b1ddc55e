//! The listening socket and the connections behind it.

use std::convert::Infallible;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use crate::connection_control::{ConnectionControl, Order};
use crate::routes;
use crate::server::{Life, Server};

/// Pause before accepting again when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

impl Server {
    /// Accepts connections until the replica ends.
    pub(crate) async fn accept(self: Arc<Server>, listener: TcpListener) {
        let mut life = self.life.subscribe();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = life.wait_for(|life| *life != Life::Serving) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn welcome(self: &Arc<Server>, stream: TcpStream) {
        let line = self.lines.open();
        // Checked after the connection is listed: either `end` finds the connection, or this check finds the end.
        if *self.life.borrow() != Life::Serving {
            self.lines.close(&line);
            return reset(&stream);
        }
        tokio::spawn(Arc::clone(self).converse(stream, line));
    }

    async fn converse(self: Arc<Server>, stream: TcpStream, line: Arc<ConnectionControl>) {
        // Without it the second event of a stream waits for the client's acknowledgement of the first.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        self.serve_requests(stream, &line).await;
        self.lines.close(&line);
        if line.is_last() {
            self.end(Life::Died);
        }
    }

    async fn serve_requests(self: &Arc<Server>, stream: TcpStream, line: &Arc<ConnectionControl>) {
        let service = service_fn(|request| {
            let answer = routes::answer(Arc::clone(self), Arc::clone(line), request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let mut http = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        loop {
            let order = tokio::select! {
                // In this order, so that written bytes are flushed before a reset.
                biased;
                // A client may disconnect at any time.
                _ = &mut http => return,
                order = line.order() => order,
            };
            match order {
                Order::Finish => Pin::new(&mut http).graceful_shutdown(),
                Order::Cut => return reset(http.into_parts().io.inner()),
            }
        }
    }
}

/// Makes the socket end with a TCP reset instead of an orderly close. With a linger time of zero, closing it discards
/// what was not sent and resets.
fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "cannot reset a connection; closing it");
        let _ = SockRef::from(stream).shutdown(Shutdown::Both);
    }
}
