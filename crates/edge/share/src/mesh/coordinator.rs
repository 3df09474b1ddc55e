//! The task that makes all decisions of a mesh: which routers are dialed, which connection stays, and where
//! messages go.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warmroute_types::{RouterId, To};

use crate::link::{GOODBYE_TIMEOUT, OutgoingMessage, TransportEnd};
use crate::mesh::acceptor::MeshAcceptor;
use crate::mesh::config::MeshConfig;
use crate::mesh::dial_schedule::{DialOutcome, DialSchedule, Severity};
use crate::mesh::duplicate_addresses::DuplicateAddresses;
use crate::mesh::election::{Kept, choose_connection};
use crate::mesh::event::{CloseReason, Event};
use crate::mesh::handshake::{MeshFailure, Session};
use crate::mesh::membership::{GossipNode, Membership, MembershipAction};
use crate::mesh::peer_address::{advertised_address, parse_address};
use crate::mesh::peer_connection::{ConnectionContext, PeerConnection, SendQueues};
use crate::mesh::peer_dialer::PeerDialer;
use crate::mesh::resolver::resolve_repeatedly;
use crate::{BadShare, ConnectedPeer, Link, TransportStatus, seal};

/// Events that wait for the coordinator. Senders of handshakes and closed connections wait; gossip is
/// dropped.
const EVENTS_MAX: usize = 256;

/// Connections; each holds up to two full queues.
const CONNECTIONS_MAX: usize = 256;

/// Joins a mesh in the background, for as long as the link is held. Requires a tokio runtime. Fails only for
/// invalid settings, not when no other router is reachable.
pub fn mesh(config: MeshConfig, me: RouterId) -> Result<Link, BadShare> {
    config.validate()?;
    let cannot = |error| BadShare::CannotListen { address: config.listen.to_string(), error };
    let listener = std::net::TcpListener::bind(config.listen).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let listener = TcpListener::from_std(listener).map_err(cannot)?;
    mesh_on(listener, config, me)
}

/// Joins a mesh on a listening socket.
pub fn mesh_on(listener: TcpListener, config: MeshConfig, me: RouterId) -> Result<Link, BadShare> {
    config.validate()?;
    let cannot = |error| BadShare::CannotListen { address: config.listen.to_string(), error };
    let listening = listener.local_addr().map_err(cannot)?;
    let transport = TransportEnd::new(TransportStatus::new(me, Some(listening)));
    let coordinator = Coordinator::new(config, me, listening, transport.clone());
    let task = tokio::spawn(coordinator.run(listener));
    Ok(transport.link(task.abort_handle()))
}

struct Coordinator {
    me: RouterId,
    dialer: PeerDialer,
    peers: Vec<String>,
    schedule: DialSchedule,
    membership: Membership,
    duplicates: DuplicateAddresses,
    /// When addresses are next checked for duplicates.
    duplicate_check_due: Instant,
    connections: BTreeMap<RouterId, PeerConnection>,
    /// When each router was last connected, to count reconnects.
    known: BTreeMap<RouterId, Instant>,
    next_serial: u64,
    transport: TransportEnd,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    /// All other tasks of the mesh; they end with the coordinator.
    tasks: JoinSet<()>,
}

impl Coordinator {
    fn new(config: MeshConfig, me: RouterId, listening: SocketAddr, transport: TransportEnd) -> Coordinator {
        let address = advertised_address(config.advertise.as_deref(), listening);
        Coordinator {
            me,
            dialer: PeerDialer::new(&config, me, address.clone()),
            peers: config.peers,
            schedule: DialSchedule::new(config.timings),
            membership: Membership::new(GossipNode::new(me, address), &config.timings),
            duplicates: DuplicateAddresses::default(),
            duplicate_check_due: Instant::now() + config.timings.resolve_every,
            connections: BTreeMap::new(),
            known: BTreeMap::new(),
            next_serial: 0,
            transport,
            events: mpsc::channel(EVENTS_MAX),
            tasks: JoinSet::new(),
        }
    }

    async fn run(mut self, listener: TcpListener) {
        self.start_acceptor(listener);
        self.start_resolvers();
        let departure = self.transport.departure.clone();
        tokio::select! {
            () = self.run_events() => {}
            () = departure.requested() => self.leave().await,
        }
        departure.finish();
    }

    /// Handles events until it is cancelled.
    async fn run_events(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            let (outgoing, due) = (Arc::clone(&self.transport.outgoing), self.next_due());
            tokio::select! {
                Some(event) = self.events.1.recv() => self.handle(event),
                message = outgoing.pop() => self.send(&message),
                () = tokio::time::sleep_until(due.into()) => {}
            }
            self.run_due();
        }
    }

    /// Sends queued messages and then a goodbye. Peers close their connections when they receive it.
    async fn leave(&mut self) {
        while let Some(message) = self.transport.outgoing.try_pop() {
            self.send(&message);
        }
        self.connections.retain(|_, connection| connection.start_goodbye());
        let (connections, events) = (&mut self.connections, &mut self.events.1);
        let all_closed = async {
            while !connections.is_empty() {
                if let Some(Event::Closed { router, .. }) = events.recv().await {
                    connections.remove(&router);
                }
            }
        };
        _ = tokio::time::timeout(GOODBYE_TIMEOUT, all_closed).await;
    }

    fn start_acceptor(&mut self, listener: TcpListener) {
        let acceptor_task = MeshAcceptor {
            identity: self.dialer.identity.clone(),
            handshake_timeout: self.dialer.timings.handshake,
            transport: self.transport.clone(),
            events: self.events.0.clone(),
        };
        self.tasks.spawn(acceptor_task.run(listener));
    }

    fn start_resolvers(&mut self) {
        for (entry, name) in self.peers.iter().cloned().enumerate() {
            let (transport, events) = (self.transport.clone(), self.events.0.clone());
            self.tasks.spawn(resolve_repeatedly(entry, name, self.dialer.timings, transport, events));
        }
    }

    fn next_due(&self) -> Instant {
        let schedule = self.schedule.next_due(|router| self.is_connected(router));
        schedule.into_iter().chain(self.membership.next_due()).fold(self.duplicate_check_due, Instant::min)
    }

    /// This router counts as connected to itself, so it never dials itself.
    fn is_connected(&self, router: RouterId) -> bool {
        router == self.me || self.connections.contains_key(&router)
    }

    fn run_due(&mut self) {
        let now = Instant::now();
        let actions = self.membership.tick(now);
        self.execute(actions, now);
        self.check_duplicates(now);
        let (me, connections) = (self.me, &self.connections);
        for address in self.schedule.take_due(now, |router| router == me || connections.contains_key(&router))
        {
            let (dialer, status, events) =
                (self.dialer.clone(), Arc::clone(&self.transport.status), self.events.0.clone());
            self.tasks.spawn(async move {
                let dialed = address.clone();
                let result = dialer.connect(address, &status).await;
                _ = events.send(Event::Dialed { address: dialed, result }).await;
            });
        }
    }

    fn check_duplicates(&mut self, now: Instant) {
        if now < self.duplicate_check_due {
            return;
        }
        self.duplicate_check_due = now + self.dialer.timings.resolve_every;
        for (address, routers) in self.duplicates.check(self.membership.addresses()) {
            let routers: Vec<String> = routers.iter().map(RouterId::to_string).collect();
            self.transport.status.report_problem(format!(
                "routers {} advertise the same address {address}: give each its own mesh-advertise",
                routers.join(" and ")
            ));
        }
    }

    fn handle(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Accepted(session, stream) => self.connected(session, stream, now),
            Event::Dialed { address, result } => self.dialed(&address, result, now),
            Event::Closed { router, serial, reason } => self.connection_closed(router, serial, &reason, now),
            Event::Resolved { entry, addresses } => self.schedule.set_listed(entry, addresses, now),
            Event::Gossip(bytes) => {
                let actions = self.membership.handle_gossip(&bytes, now);
                self.execute(actions, now);
            }
        }
    }

    fn dialed(&mut self, address: &str, result: Result<(Session, TcpStream), MeshFailure>, now: Instant) {
        let outcome = match &result {
            Ok((session, _)) => DialOutcome::Connected(session.peer),
            Err(MeshFailure::AlreadyConnected(router)) => DialOutcome::Connected(*router),
            Err(MeshFailure::SelfDial) => DialOutcome::Connected(self.me),
            Err(failure) if failure.is_final() => DialOutcome::Refused,
            // A router that closes the connection may be shutting down.
            Err(failure) if failure.is_unreachable() || matches!(failure, MeshFailure::Closed) => {
                DialOutcome::Unreachable
            }
            Err(_) => DialOutcome::Failed,
        };
        match (self.schedule.record_outcome(address, outcome, now, random()), &result) {
            (Severity::Problem, Err(failure)) => {
                self.transport.status.report_problem(format!("router at {address}: {failure}"));
            }
            (Severity::Expected, Err(failure)) => tracing::debug!(address, %failure, "dialed a router"),
            _ => {}
        }
        if let Ok((session, stream)) = result {
            self.connected(session, stream, now);
        }
    }

    /// Adds a connection, unless the existing one to the same router stays.
    fn connected(&mut self, session: Session, stream: TcpStream, now: Instant) {
        let router = session.peer;
        let old = self.connections.get(&router).map(PeerConnection::existing);
        let silence_max = self.dialer.timings.dead_after / 2;
        if old.is_some_and(|old| choose_connection(old, session.dialed_by, silence_max) == Kept::Existing) {
            return;
        }
        if old.is_none() && self.connections.len() >= CONNECTIONS_MAX {
            return self
                .transport
                .status
                .report_problem(format!("more than {CONNECTIONS_MAX} routers: router {router} is ignored"));
        }
        let address = session.address.clone();
        let peer = ConnectedPeer { address: address.clone(), since: now, version: session.version };
        self.open_connection(session, stream);
        if old.is_none() {
            self.peer_connected(router, peer, now);
        }
        let actions = self.membership.connected(router, address, now);
        self.execute(actions, now);
    }

    fn peer_connected(&mut self, router: RouterId, peer: ConnectedPeer, now: Instant) {
        let remember = self.dialer.timings.remember;
        self.known.retain(|_, seen| now.duration_since(*seen) < remember);
        let again = self.known.insert(router, now).is_some();
        self.transport.status.count(|counters| &counters.reconnects, u64::from(again));
        self.transport.status.add_peer(router, peer);
    }

    /// Starts a connection. It takes over the queues of the one that it replaces, so queued messages are not
    /// lost.
    fn open_connection(&mut self, session: Session, stream: TcpStream) {
        let router = session.peer;
        let old = self.connections.remove(&router);
        let queues = old.map_or_else(|| Arc::new(SendQueues::new()), |old| Arc::clone(&old.queues));
        self.next_serial += 1;
        let context = ConnectionContext {
            serial: self.next_serial,
            queues,
            transport: self.transport.clone(),
            timings: self.dialer.timings,
            events: self.events.0.clone(),
        };
        let connection = PeerConnection::spawn(session, stream, context, |task| self.tasks.spawn(task));
        self.connections.insert(router, connection);
    }

    fn connection_closed(&mut self, router: RouterId, serial: u64, reason: &CloseReason, now: Instant) {
        if let CloseReason::BadFrame(_) = reason {
            self.transport.status.count(|counters| &counters.refused, 1);
            self.transport.status.report_problem(format!("router {router}: {reason}"));
        }
        if self.connections.get(&router).is_none_or(|connection| connection.serial != serial) {
            return;
        }
        let unsent =
            self.connections.remove(&router).map_or(0, |connection| connection.queues.messages.len());
        self.transport.status.count(|counters| &counters.dropped_out, unsent as u64);
        self.known.insert(router, now);
        self.transport.status.remove_peer(router, &reason.to_string());
        if !matches!(reason, CloseReason::Goodbye) {
            return self.schedule.connection_lost(router, now, random());
        }
        self.schedule.router_left(router, now);
        let actions = self.membership.router_left(router, now);
        self.execute(actions, now);
    }

    fn send(&mut self, message: &OutgoingMessage) {
        let (count, to) =
            (|by| self.transport.status.count(|counters| &counters.dropped_out, by), message.to);
        match to {
            To::Everyone => self.connections.values().for_each(|connection| count(connection.push(message))),
            To::One(router) => {
                count(self.connections.get(&router).map_or(1, |connection| connection.push(message)))
            }
        }
    }

    fn execute(&mut self, actions: Vec<MembershipAction>, now: Instant) {
        for action in actions {
            match action {
                MembershipAction::Send(router, bytes) => {
                    self.connections
                        .get(&router)
                        .inspect(|connection| _ = connection.queues.gossip.push(bytes.into()));
                }
                MembershipAction::Joined(router, address) => self.joined(router, address, now),
                MembershipAction::Left(router) => self.schedule.remove_member(router, now),
                MembershipAction::Announce => self.announce(now),
            }
        }
    }

    fn joined(&mut self, router: RouterId, address: String, now: Instant) {
        if parse_address(&address).is_ok() {
            self.schedule.add_member(router, address, now);
        }
    }

    fn announce(&mut self, now: Instant) {
        let routers: Vec<RouterId> = self.connections.keys().copied().collect();
        for router in routers {
            let actions = self.membership.connected(router, String::new(), now);
            self.execute(actions, now);
        }
    }
}

impl PeerConnection {
    /// Queues a message; returns how many older ones were dropped.
    fn push(&self, message: &OutgoingMessage) -> u64 {
        self.queues.messages.push(Arc::clone(&message.bytes))
    }
}

fn random() -> u64 {
    u64::from_le_bytes(seal::random())
}
