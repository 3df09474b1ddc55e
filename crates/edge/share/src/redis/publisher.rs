//! Publishes and receives envelopes through the server, and reconnects after a failure.

use std::time::Instant;

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::aio::{MultiplexedConnection, PubSub, PubSubStream};
use redis::{AsyncConnectionConfig, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;
use warmroute_types::{RouterId, To, backoff};
use warmroute_wire::Dialer;

use crate::link::{GOODBYE_TIMEOUT, OutgoingMessage, TransportEnd};
use crate::queue::{ByteSize, Queue, QueueLimits};
use crate::redis::config::{RedisConfig, RedisTimings, Server};
use crate::redis::envelope::{Challenge, EnvelopeKind, EnvelopeWriter};
use crate::redis::failure::RedisFailure;
use crate::redis::peer_table::{LocalRouter, PeerEvent, PeerTable};
use crate::redis::read_limit::{ReadLimited, UnprocessedBytes};
use crate::{BadShare, ConnectedPeer, Link, MAX_MESSAGE_BYTES, TransportStatus, Versions, seal};

/// Limits for messages that are published with one round trip.
const BATCH_ITEMS: usize = 64;
const BATCH_BYTES: usize = 1 << 20;

/// Bytes that may arrive unprocessed: the inbox and the largest message fit.
const UNPROCESSED_BYTES_MAX: usize = 4 * MAX_MESSAGE_BYTES;

/// Challenges and responses are small and repeated.
const REPLY_LIMITS: QueueLimits = QueueLimits { items: 1_024, bytes: 1 << 20 };

/// Shares through the server in the background, for as long as the link is held. Requires a tokio runtime.
/// Fails only for invalid settings, not when no server is reachable.
pub fn redis(config: RedisConfig, me: RouterId) -> Result<Link, BadShare> {
    config.validate()?;
    let servers = config.servers()?;
    let dialer = config.dialer()?;
    let transport = TransportEnd::new(TransportStatus::new(me, None));
    let publisher = RedisPublisher::new(&config, me, dialer, transport.clone());
    let task = tokio::spawn(run(servers, publisher));
    Ok(transport.link(task.abort_handle()))
}

/// A challenge or a response that waits to be published.
#[derive(Debug)]
struct QueuedReply {
    kind: EnvelopeKind,
    to: RouterId,
    challenge: Challenge,
}

impl ByteSize for QueuedReply {
    fn bytes(&self) -> usize {
        size_of::<QueuedReply>()
    }
}

/// State that both directions share.
pub(crate) struct RedisPublisher {
    me: RouterId,
    versions: Versions,
    prefix: String,
    timings: RedisTimings,
    dialer: Dialer,
    pub writer: Mutex<EnvelopeWriter>,
    pub peers: Mutex<PeerTable>,
    replies: Queue<QueuedReply>,
    transport: TransportEnd,
}

/// Two connections, because a subscribed connection cannot publish.
pub(crate) struct RedisConnections {
    pub publish: MultiplexedConnection,
    pub messages: PubSubStream,
    unprocessed: UnprocessedBytes,
    /// Drives the publishing connection, and ends with it.
    _driver: JoinSet<()>,
}

/// Uses one server after the other, until it is aborted.
async fn run(servers: Vec<Server>, publisher: RedisPublisher) {
    let mut failures = 0;
    for server in servers.iter().cycle() {
        let began = Instant::now();
        let failure = publisher.share_through(server, failures).await;
        publisher.transport.status.report_problem(format!("Redis at {}: {failure}", server.name()));
        for router in publisher.peers.lock().clear() {
            publisher.transport.status.remove_peer(router, "the connection to the server is lost");
        }
        failures = if began.elapsed() > publisher.timings.gone_after { 1 } else { failures + 1 };
        let random = u64::from_le_bytes(seal::random());
        tokio::time::sleep(backoff::pause(failures, publisher.timings.redial, random)).await;
    }
}

impl RedisPublisher {
    pub(crate) fn new(
        config: &RedisConfig,
        me: RouterId,
        dialer: Dialer,
        transport: TransportEnd,
    ) -> RedisPublisher {
        let (secrets, salt) = (config.secret.keys(), seal::random());
        let primary = secrets.first().cloned().unwrap_or_default();
        let local =
            LocalRouter { me, salt, secrets, prefix: config.prefix.clone(), versions: config.versions };
        RedisPublisher {
            me,
            versions: config.versions,
            prefix: config.prefix.clone(),
            timings: config.timings,
            dialer,
            writer: Mutex::new(EnvelopeWriter::new(me, &primary, &config.prefix, salt)),
            peers: Mutex::new(PeerTable::new(local, config.timings.announce_interval)),
            replies: Queue::new(REPLY_LIMITS),
            transport,
        }
    }

    /// Shares through one server until it fails.
    async fn share_through(&self, server: &Server, failures: u32) -> RedisFailure {
        let connections = match self.connect_or_diagnose(server).await {
            Ok(connections) => connections,
            Err(failure) => return failure,
        };
        if failures > 0 {
            self.transport.status.count(|counters| &counters.reconnects, 1);
            self.drop_queued();
        }
        tokio::select! {
            failure = self.read(connections.messages, connections.unprocessed, server) => failure,
            failure = self.write(connections.publish) => failure,
        }
    }

    /// Connects; if the error is ambiguous, examines the server to find the cause.
    pub(crate) async fn connect_or_diagnose(
        &self,
        server: &Server,
    ) -> Result<RedisConnections, RedisFailure> {
        let limit = self.timings.answer * 2;
        match timeout(limit, self.connect(server)).await.unwrap_or(Err(RedisFailure::TimedOut(limit))) {
            Err(failure) if failure.is_ambiguous() => {
                Err(RedisFailure::diagnose(server).await.unwrap_or(failure))
            }
            reached => reached,
        }
    }

    /// Queued messages are outdated, and no present router could open them.
    fn drop_queued(&self) {
        let dropped = std::iter::from_fn(|| self.transport.outgoing.try_pop()).count();
        self.transport.status.count(|counters| &counters.dropped_out, dropped as u64);
    }

    async fn connect(&self, server: &Server) -> Result<RedisConnections, RedisFailure> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.timings.answer));
        let stream = self.dialer.dial(&server.target).await?;
        let (mut publish, driver) =
            MultiplexedConnection::new_with_config(&server.login, stream, config).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        check_primary(&mut publish).await?;
        let unprocessed = UnprocessedBytes::default();
        let stream = ReadLimited::new(
            self.dialer.dial(&server.target).await?,
            unprocessed.clone(),
            UNPROCESSED_BYTES_MAX,
        );
        let mut messages = PubSub::new(&server.login, stream).await?;
        messages.subscribe(&[self.channel(None), self.channel(Some(self.me))]).await?;
        Ok(RedisConnections { publish, messages: messages.into_on_message(), unprocessed, _driver: tasks })
    }

    pub(crate) fn channel(&self, to: Option<RouterId>) -> String {
        match to {
            Some(router) => format!("{}:{router}", self.prefix),
            None => format!("{}:all", self.prefix),
        }
    }

    async fn read(
        &self,
        mut messages: PubSubStream,
        unprocessed: UnprocessedBytes,
        server: &Server,
    ) -> RedisFailure {
        let mut last_echo = Instant::now();
        loop {
            let until = last_echo + self.timings.gone_after;
            let message = match tokio::time::timeout_at(until.into(), messages.next()).await {
                Ok(Some(message)) => message,
                Ok(None) => return RedisFailure::Closed,
                Err(_) => return RedisFailure::NoEcho(self.timings.gone_after),
            };
            let envelope = message.get_payload_bytes();
            self.transport.status.count(|counters| &counters.bytes_in, envelope.len() as u64);
            let now = Instant::now();
            let events = self.peers.lock().read(envelope, now, seal::random());
            unprocessed.release(message.get_channel_name(), envelope);
            for event in events {
                last_echo = if event == PeerEvent::Echo { now } else { last_echo };
                self.handle(event, server, now);
            }
        }
    }

    fn handle(&self, event: PeerEvent, server: &Server, now: Instant) {
        let status = &self.transport.status;
        match event {
            PeerEvent::Echo => {}
            PeerEvent::Message(message) => self.transport.deliver(message),
            PeerEvent::Challenge(to, challenge) => {
                _ = self.replies.push(QueuedReply { kind: EnvelopeKind::Challenge, to, challenge })
            }
            PeerEvent::Respond(to, challenge) => {
                _ = self.replies.push(QueuedReply { kind: EnvelopeKind::Response, to, challenge })
            }
            PeerEvent::Joined(router, version) => {
                let address = format!("by Redis at {}", server.name());
                status.add_peer(router, ConnectedPeer { address, since: now, version });
            }
            PeerEvent::Left(router) => status.remove_peer(router, "it said goodbye"),
            PeerEvent::Incompatible(router, theirs) => {
                let ours = self.versions;
                status.report_problem(format!(
                    "router {router} supports version {theirs}, this router {ours}: upgrade the older one"
                ));
            }
            PeerEvent::OtherSecret => {
                status.count(|counters| &counters.refused, 1);
                status.report_problem(
                    "a router on this server uses another secret: give all routers of this fleet the same \
                     share-secret-file, and other fleets another share-redis-prefix"
                        .to_owned(),
                );
            }
            PeerEvent::Unproven => status.count(|counters| &counters.dropped_in, 1),
            PeerEvent::Refused => status.count(|counters| &counters.refused, 1),
        }
    }

    async fn write(&self, mut publish: MultiplexedConnection) -> RedisFailure {
        let mut ticks = tokio::time::interval(self.timings.announce_interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let sent = tokio::select! {
                biased;
                () = self.transport.departure.requested() => return self.say_goodbye(&mut publish).await,
                _ = ticks.tick() => self.announce(&mut publish).await,
                reply = self.replies.pop() => self.reply(&mut publish, &reply).await,
                message = self.transport.outgoing.pop() => self.publish_with(&mut publish, message).await,
            };
            if let Err(failure) = sent {
                return failure;
            }
        }
    }

    /// Announces this router, removes silent ones, and checks that the server is not a replica.
    async fn announce(&self, publish: &mut MultiplexedConnection) -> Result<(), RedisFailure> {
        for router in self.peers.lock().expire(self.timings.gone_after, Instant::now()) {
            self.transport.status.remove_peer(router, "it fell silent");
        }
        let announcement = self.writer.lock().write(
            EnvelopeKind::Announce,
            self.versions.newest,
            None,
            &[&self.introduction()],
        );
        self.publish(publish, &[(self.channel(None), announcement)]).await?;
        check_primary(publish).await
    }

    /// Says goodbye and sends nothing afterwards.
    async fn say_goodbye(&self, publish: &mut MultiplexedConnection) -> RedisFailure {
        let goodbye = self.writer.lock().write(EnvelopeKind::Goodbye, self.versions.newest, None, &[]);
        let envelopes = [(self.channel(None), goodbye)];
        _ = timeout(GOODBYE_TIMEOUT, self.publish(publish, &envelopes)).await;
        self.transport.departure.finish();
        std::future::pending().await
    }

    async fn reply(
        &self,
        publish: &mut MultiplexedConnection,
        reply: &QueuedReply,
    ) -> Result<(), RedisFailure> {
        let body: [&[u8]; 2] = [&self.introduction(), &reply.challenge];
        let envelope = self.writer.lock().write(reply.kind, self.versions.newest, Some(reply.to), &body);
        self.publish(publish, &[(self.channel(Some(reply.to)), envelope)]).await
    }

    fn introduction(&self) -> [u8; 2] {
        [self.versions.oldest, self.versions.newest]
    }

    /// Publishes this message together with others that are queued.
    async fn publish_with(
        &self,
        publish: &mut MultiplexedConnection,
        first: OutgoingMessage,
    ) -> Result<(), RedisFailure> {
        let mut envelopes = Vec::new();
        let (mut bytes, mut next) = (0, Some(first));
        while let Some(message) = next.take() {
            envelopes.extend(self.seal(&message));
            bytes += message.bytes.len();
            if envelopes.len() < BATCH_ITEMS && bytes < BATCH_BYTES {
                next = self.transport.outgoing.try_pop();
            }
        }
        let published = self.publish(publish, &envelopes).await;
        let (sent, dropped) = if published.is_ok() { (envelopes.len(), 0) } else { (0, envelopes.len()) };
        self.transport.status.count(|counters| &counters.messages_out, sent as u64);
        self.transport.status.count(|counters| &counters.dropped_out, dropped as u64);
        published
    }

    /// The channel and the sealed envelope; `None` if no receiver is present. That counts as a drop only for
    /// a message to one router.
    fn seal(&self, message: &OutgoingMessage) -> Option<(String, Vec<u8>)> {
        let to = match message.to {
            To::Everyone => None,
            To::One(router) => Some(router),
        };
        let Some(version) = self.peers.lock().version(to) else {
            self.transport.status.count(|counters| &counters.dropped_out, u64::from(to.is_some()));
            return None;
        };
        Some((
            self.channel(to),
            self.writer.lock().write(EnvelopeKind::Message, version, to, &[&message.bytes]),
        ))
    }

    pub(crate) async fn publish(
        &self,
        publish: &mut MultiplexedConnection,
        envelopes: &[(String, Vec<u8>)],
    ) -> Result<(), RedisFailure> {
        if envelopes.is_empty() {
            return Ok(());
        }
        let mut batch = redis::pipe();
        for (channel, envelope) in envelopes {
            batch.cmd("PUBLISH").arg(channel).arg(envelope).ignore();
        }
        let bytes = envelopes.iter().map(|(_, envelope)| envelope.len() as u64).sum();
        batch.query_async::<()>(publish).await?;
        self.transport.status.count(|counters| &counters.bytes_out, bytes);
        Ok(())
    }
}

/// Fails if the server is a replica, because messages there reach no other router. A server that forbids the
/// question is trusted.
async fn check_primary(publish: &mut MultiplexedConnection) -> Result<(), RedisFailure> {
    match redis::cmd("ROLE").query_async::<Value>(publish).await {
        Ok(Value::Array(role)) if role.first().is_some_and(is_replica) => Err(RedisFailure::Replica),
        Ok(_) => Ok(()),
        Err(error) if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() => {
            Err(error.into())
        }
        Err(_) => Ok(()),
    }
}

/// Redis says `slave`; other servers may say `replica`.
fn is_replica(role: &Value) -> bool {
    matches!(role, Value::BulkString(name) if name == b"slave" || name == b"replica")
}
