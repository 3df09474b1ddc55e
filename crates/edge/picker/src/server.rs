//! The listener: HTTP/2 connections, encrypted or not, and their streams.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use warmroute_gateway::{Drain, Drained, Gateway, Serving, accept_until_drained};
use warmroute_wire::Acceptor;

use crate::Config;
use crate::exchange::{BYTES_BESIDE_BODY, Exchange};
use crate::grpc::{self, Messages, Replies, Status};
use crate::health;
use crate::peer_reports::follow_reports;
use crate::picker::{Listening, Picker};

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Time for the TLS handshake and the beginning of HTTP/2.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections at a time. A proxy opens one for each of its threads.
const CONNECTIONS_MAX: usize = 4_096;

/// Streams of a connection at a time. Each is a request whose worker is being chosen, or whose response is read.
const STREAMS_MAX: u32 = 65_536;

/// Streams that a proxy may reset before they were accepted. A client that leaves resets its stream, and all clients of a proxy share
/// a connection: with the usual 20, a burst of those that leave would end everybody's.
const RESET_STREAMS_MAX: usize = STREAMS_MAX as usize;

/// What a proxy may send before we have read it: the start of a long prompt, and many of them.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Largest question about health: it has the name of a service.
const CHECK_BYTES_MAX: usize = 4 << 10;

/// A peer that answers nothing for a minute is gone.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;

/// A listener and the pool whose workers its requests may use.
#[derive(Debug)]
pub struct PoolListener {
    /// The socket that Envoy connects to.
    pub listener: TcpListener,
    /// The pool's name; `None`: all workers.
    pub pool: Option<String>,
}

/// Serves proxies on all listeners until a drain begins; ends when the last connection has closed.
pub fn serve(
    gateway: Arc<Gateway>,
    config: Config,
    listeners: Vec<PoolListener>,
    acceptor: Acceptor,
    drain: Drain,
) -> Serving {
    Box::pin(serve_pools(gateway, config, listeners, acceptor, drain))
}

async fn serve_pools(
    gateway: Arc<Gateway>,
    config: Config,
    listeners: Vec<PoolListener>,
    acceptor: Acceptor,
    drain: Drain,
) -> Drained {
    let picker = Picker::new(gateway, config, drain);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (mut accepting, mut background) = (JoinSet::new(), JoinSet::new());
    let reports = picker.gateway.pick_reports();
    reports.into_iter().for_each(|reports| {
        background.spawn(follow_reports(Arc::clone(&picker.parked), reports));
    });
    for PoolListener { listener, pool } in listeners {
        let group = pool.map(|pool| picker.gateway.router().worker_group(&pool));
        let listening = Listening { picker: Arc::clone(&picker), group };
        accepting.spawn(accept(listener, listening, Arc::clone(&slots), acceptor.clone()));
    }
    accepting.join_all().await;
    Drained
}

async fn accept(
    listener: TcpListener,
    listening: Listening,
    slots: Arc<Semaphore>,
    acceptor: Acceptor,
) -> Drained {
    let acquire_slot = || Arc::clone(&slots).acquire_owned();
    let drain = listening.picker.drain.clone();
    accept_until_drained(listener, &drain, acquire_slot, |stream, peer| {
        connection(listening.clone(), peer.ip(), stream, acceptor.clone())
    })
    .await
}

async fn connection(listening: Listening, proxy: IpAddr, stream: TcpStream, acceptor: Acceptor) {
    let beginning = async {
        notice_dead_peers(&stream)?;
        let stream = acceptor.accept_either(stream).await?;
        let mut http2 = h2::server::Builder::new();
        http2
            .max_concurrent_streams(STREAMS_MAX)
            .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        http2.handshake(stream).await.map_err(std::io::Error::other)
    };
    let mut connection = match timeout(HANDSHAKE_TIMEOUT, beginning).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%error, "a proxy's connection failed"),
        Err(_) => return tracing::debug!("a proxy's handshake timed out"),
    };
    let drain = listening.picker.drain.clone();
    let (mut closing, mut aborting) = (pin!(drain.wait_begun()), pin!(drain.wait_abort()));
    let mut is_closing = false;
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            // HTTP/2 says which streams it took, so closing loses none, also while another process accepts.
            () = closing.as_mut(), if !is_closing => {
                connection.graceful_shutdown();
                is_closing = true;
                continue;
            }
            () = aborting.as_mut() => return,
        };
        match accepted {
            Some(Ok((request, respond))) => {
                let listening = listening.clone();
                tokio::spawn(async move { handle(&listening, proxy, request, respond).await });
            }
            Some(Err(error)) => return tracing::debug!(%error, "a proxy's connection ended with an error"),
            None => return,
        }
    }
}

/// Ends connections to machines that have vanished. Their streams hold bookings.
fn notice_dead_peers(stream: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TRIES)?)
}

async fn handle(
    listening: &Listening,
    proxy: IpAddr,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let picker = &listening.picker;
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let first_bytes_max = match path {
        PROCESS => BYTES_BESIDE_BODY,
        CHECK => CHECK_BYTES_MAX,
        _ => return grpc::refuse(respond, Status::Unimplemented, "unknown method"),
    };
    let messages = Messages::new(body, first_bytes_max, picker.gateway.message_memory());
    // A caller that has gone needs no answer.
    let Ok(replies) = Replies::begin(respond) else { return };
    match path {
        CHECK => health::check(picker, messages, replies).await,
        _ => Exchange::new(listening, proxy, messages, replies).run().await,
    }
}
