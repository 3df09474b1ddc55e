//! The one task that decides: who is dialed, which connection stays, who gets what.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warmroute_types::{RouterId, To};
use warmroute_wire::{Acceptor, AppProtocol, Dialer, Stream, WorkerTls};

use crate::link::{Ends, GOODBYE_WITHIN, Outgoing};
use crate::mesh::book::{Book, Outcome, Place, Tell};
use crate::mesh::config::{MeshConfig, parse_place};
use crate::mesh::dial::Dial;
use crate::mesh::door::Door;
use crate::mesh::election::{Keep, keep};
use crate::mesh::handshake::{Card, Failed, Guard, Session};
use crate::mesh::hello::Errand;
use crate::mesh::lane::{Ended, Lane, Waiting, Work};
use crate::mesh::members::{Members, Node, Order};
use crate::mesh::places::{advertised, resolve};
use crate::mesh::twins::Twins;
use crate::{BadShare, Link, Peer, Secrets, Status, seal};

/// What may wait for the hub: handshakes and ends wait their turn, gossip is dropped.
const EVENTS_MAX: usize = 256;

/// Each may hold as much as a queue has room for.
const LANES_MAX: usize = 256;

/// What happens around the hub.
#[derive(Debug)]
pub(crate) enum Event {
    Accepted(Session, Stream),
    Dialed { address: String, met: Result<(Session, Stream), Failed> },
    Ended { router: RouterId, serial: u64, ended: Ended },
    Gossip(Vec<u8>),
    Resolved { entry: usize, places: Vec<Place> },
}

/// Joins the mesh, in the background and for as long as the link is held. Must be called inside a tokio runtime. Fails only where the
/// settings cannot work; that nobody is there is no failure.
pub fn mesh(config: MeshConfig, me: RouterId) -> Result<Link, BadShare> {
    config.validate()?;
    let cannot = |error| BadShare::CannotListen { address: config.listen.to_string(), error };
    let listener = std::net::TcpListener::bind(config.listen).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let listener = TcpListener::from_std(listener).map_err(cannot)?;
    mesh_on(listener, config, me)
}

/// The same on a socket that listens already.
pub fn mesh_on(listener: TcpListener, config: MeshConfig, me: RouterId) -> Result<Link, BadShare> {
    config.validate()?;
    let cannot = |error| BadShare::CannotListen { address: config.listen.to_string(), error };
    let listening = listener.local_addr().map_err(cannot)?;
    let (dialer, acceptor) = encryption(&config)?;
    let ends = Ends::new(Status::new(me, Some(listening)));
    let hub = Hub::new(config, me, listening, dialer, ends.clone());
    let task = tokio::spawn(hub.run(listener, acceptor));
    Ok(ends.link(task.abort_handle()))
}

/// Certificates, read.
pub(crate) fn encryption(config: &MeshConfig) -> Result<(Dialer, Acceptor), BadShare> {
    let Some(tls) = &config.tls else { return Ok((Dialer::default(), Acceptor::default())) };
    let shown = WorkerTls { ca: Some(tls.ca.clone()), identity: Some(tls.identity.clone()) };
    let dialer = Dialer::with_protocol(AppProtocol::Mesh, shown)?;
    Ok((dialer, Acceptor::with_protocol(AppProtocol::Mesh, &tls.identity, Some(&tls.ca))?))
}

/// How others are dialed, and told who we are.
pub(crate) fn dial(config: &MeshConfig, me: RouterId, address: String, dialer: Dialer) -> Dial {
    // Certificates alone decide where there is no secret; what is proved then proves nothing, and is not missed.
    let secrets = config.secret.as_ref().map_or_else(|| vec![Vec::new()], Secrets::keys);
    let card = Card { me, address, versions: config.versions, secrets, errand: Errand::Join };
    let guard = if config.tls.is_some() { Guard::Tls } else { Guard::Seal };
    let server_name = config.tls.as_ref().and_then(|tls| tls.server_name.clone());
    Dial { dialer, card, guard, server_name, pace: config.pace }
}

struct Hub {
    me: RouterId,
    dial: Dial,
    peers: Vec<String>,
    book: Book,
    members: Members,
    twins: Twins,
    /// For twins.
    look_due: Instant,
    lanes: BTreeMap<RouterId, Lane>,
    /// Who was connected once, to count those who come back.
    known: BTreeMap<RouterId, Instant>,
    next_serial: u64,
    ends: Ends,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    /// All other tasks: they end with the hub.
    tasks: JoinSet<()>,
}

impl Hub {
    fn new(config: MeshConfig, me: RouterId, listening: SocketAddr, dialer: Dialer, ends: Ends) -> Hub {
        let address = advertised(&config, listening);
        Hub {
            me,
            dial: dial(&config, me, address.clone(), dialer),
            peers: config.peers,
            book: Book::new(config.pace),
            members: Members::new(Node::new(me, address), &config.pace),
            twins: Twins::default(),
            look_due: Instant::now() + config.pace.resolve_every,
            lanes: BTreeMap::new(),
            known: BTreeMap::new(),
            next_serial: 0,
            ends,
            events: mpsc::channel(EVENTS_MAX),
            tasks: JoinSet::new(),
        }
    }

    async fn run(mut self, listener: TcpListener, acceptor: Acceptor) {
        self.open_door(listener, acceptor);
        self.resolve_names();
        let departure = self.ends.departure.clone();
        tokio::select! {
            () = self.work() => {}
            () = departure.asked() => self.leave().await,
        }
        departure.done();
    }

    /// For ever.
    async fn work(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            let (outgoing, due) = (Arc::clone(&self.ends.outgoing), self.next_due());
            tokio::select! {
                Some(event) = self.events.1.recv() => self.happened(event),
                message = outgoing.pop() => self.send(&message),
                () = tokio::time::sleep_until(due.into()) => {}
            }
            self.on_time();
        }
    }

    /// What waits goes out, and a goodbye after it. Whoever has heard it closes the connection.
    async fn leave(&mut self) {
        while let Some(message) = self.ends.outgoing.try_pop() {
            self.send(&message);
        }
        self.lanes.retain(|_, lane| lane.says_goodbye());
        let (lanes, events) = (&mut self.lanes, &mut self.events.1);
        let heard = async {
            while !lanes.is_empty() {
                if let Some(Event::Ended { router, .. }) = events.recv().await {
                    lanes.remove(&router);
                }
            }
        };
        _ = tokio::time::timeout(GOODBYE_WITHIN, heard).await;
    }

    fn open_door(&mut self, listener: TcpListener, acceptor: Acceptor) {
        let door = Door {
            acceptor,
            card: self.dial.card.clone(),
            guard: self.dial.guard,
            patience: self.dial.pace.handshake,
            ends: self.ends.clone(),
            events: self.events.0.clone(),
        };
        self.tasks.spawn(door.watch(listener));
    }

    fn resolve_names(&mut self) {
        for (entry, name) in self.peers.iter().cloned().enumerate() {
            let (ends, events) = (self.ends.clone(), self.events.0.clone());
            self.tasks.spawn(resolve(entry, name, self.dial.pace, ends, events));
        }
    }

    fn next_due(&self) -> Instant {
        let book = self.book.next_due(|router| self.is_connected(router));
        book.into_iter().chain(self.members.next_due()).fold(self.look_due, Instant::min)
    }

    /// Ourselves, too: we need no connection to ourselves.
    fn is_connected(&self, router: RouterId) -> bool {
        router == self.me || self.lanes.contains_key(&router)
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        let orders = self.members.tick(now);
        self.obey(orders, now);
        self.look_for_twins(now);
        let (me, lanes) = (self.me, &self.lanes);
        for place in self.book.due(now, |router| router == me || lanes.contains_key(&router)) {
            let (dial, status, events) =
                (self.dial.clone(), Arc::clone(&self.ends.status), self.events.0.clone());
            self.tasks.spawn(async move {
                let address = place.address.clone();
                let met = dial.meet(place, &status).await;
                _ = events.send(Event::Dialed { address, met }).await;
            });
        }
    }

    fn look_for_twins(&mut self, now: Instant) {
        if now < self.look_due {
            return;
        }
        self.look_due = now + self.dial.pace.resolve_every;
        for (address, routers) in self.twins.look(self.members.places()) {
            let routers: Vec<String> = routers.iter().map(RouterId::to_string).collect();
            self.ends.status.troubled(format!(
                "routers {} both say that they are at {address}, where only one can answer: each needs a mesh-advertise of its own",
                routers.join(" and ")
            ));
        }
    }

    fn happened(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Accepted(session, stream) => self.connected(session, stream, now),
            Event::Dialed { address, met } => self.dialed(&address, met, now),
            Event::Ended { router, serial, ended } => self.ended(router, serial, &ended, now),
            Event::Resolved { entry, places } => self.book.listed(entry, places, now),
            Event::Gossip(bytes) => {
                let orders = self.members.heard(&bytes, now);
                self.obey(orders, now);
            }
        }
    }

    fn dialed(&mut self, address: &str, met: Result<(Session, Stream), Failed>, now: Instant) {
        let outcome = match &met {
            Ok((session, _)) => Outcome::Answered(session.peer),
            Err(Failed::Connected(router)) => Outcome::Answered(*router),
            Err(Failed::Ourselves) => Outcome::Answered(self.me),
            Err(failed) if failed.is_final() => Outcome::Refused,
            // One that hangs up may be about to end.
            Err(failed) if failed.is_absence() || matches!(failed, Failed::HungUp) => Outcome::Absent,
            Err(_) => Outcome::Failed,
        };
        match (self.book.outcome(address, outcome, now, chance()), &met) {
            (Tell::Trouble, Err(failed)) => {
                self.ends.status.troubled(format!("router at {address}: {failed}"));
            }
            (Tell::Nothing, Err(failed)) => tracing::debug!(address, %failed, "dialed a router"),
            _ => {}
        }
        if let Ok((session, stream)) = met {
            self.connected(session, stream, now);
        }
    }

    /// A connection is there. Another may be, too.
    fn connected(&mut self, session: Session, stream: Stream, now: Instant) {
        let router = session.peer;
        let old = self.lanes.get(&router).map(Lane::standing);
        let quiet_max = self.dial.pace.dead_after / 2;
        if old.is_some_and(|old| keep(old, session.dialed_by, quiet_max) == Keep::Old) {
            return;
        }
        if old.is_none() && self.lanes.len() >= LANES_MAX {
            return self.ends.status.troubled(format!("more than {LANES_MAX} routers; {router} is left out"));
        }
        let address = session.address.clone();
        let peer = Peer { address: address.clone(), since: now, version: session.version };
        self.open_lane(session, stream);
        if old.is_none() {
            self.arrived(router, peer, now);
        }
        let orders = self.members.connected(router, address, now);
        self.obey(orders, now);
    }

    fn arrived(&mut self, router: RouterId, peer: Peer, now: Instant) {
        let remember = self.dial.pace.remember;
        self.known.retain(|_, seen| now.duration_since(*seen) < remember);
        let again = self.known.insert(router, now).is_some();
        self.ends.status.count(|counts| &counts.reconnects, u64::from(again));
        self.ends.status.present(router, peer);
    }

    /// What waits for a router waits on: it goes out on whichever connection is there.
    fn open_lane(&mut self, session: Session, stream: Stream) {
        let router = session.peer;
        let old = self.lanes.remove(&router);
        let waiting = old.map_or_else(|| Arc::new(Waiting::new()), |old| Arc::clone(&old.waiting));
        self.next_serial += 1;
        let work = Work {
            serial: self.next_serial,
            waiting,
            ends: self.ends.clone(),
            pace: self.dial.pace,
            events: self.events.0.clone(),
        };
        let lane = Lane::open(session, stream, work, |task| self.tasks.spawn(task));
        self.lanes.insert(router, lane);
    }

    fn ended(&mut self, router: RouterId, serial: u64, ended: &Ended, now: Instant) {
        if let Ended::BadFrame(_) = ended {
            self.ends.status.count(|counts| &counts.refused, 1);
            self.ends.status.troubled(format!("router {router}: {ended}"));
        }
        if self.lanes.get(&router).is_none_or(|lane| lane.serial != serial) {
            return;
        }
        let unsent = self.lanes.remove(&router).map_or(0, |lane| lane.waiting.messages.len());
        self.ends.status.count(|counts| &counts.dropped_out, unsent as u64);
        self.known.insert(router, now);
        self.ends.status.gone(router, &ended.to_string());
        if !matches!(ended, Ended::Goodbye) {
            return self.book.lost(router, now, chance());
        }
        self.book.goodbye(router, now);
        let orders = self.members.goodbye(router, now);
        self.obey(orders, now);
    }

    fn send(&mut self, message: &Outgoing) {
        let (count, to) = (|by| self.ends.status.count(|counts| &counts.dropped_out, by), message.to);
        match to {
            To::Everyone => self.lanes.values().for_each(|lane| count(lane.push(message))),
            To::One(router) => count(self.lanes.get(&router).map_or(1, |lane| lane.push(message))),
        }
    }

    fn obey(&mut self, orders: Vec<Order>, now: Instant) {
        for order in orders {
            match order {
                Order::Send(router, bytes) => {
                    self.lanes.get(&router).inspect(|lane| _ = lane.waiting.gossip.push(bytes.into()));
                }
                Order::Joined(router, address) => self.joined(router, address, now),
                Order::Left(router) => self.book.left(router, now),
                Order::Announce => self.announce(now),
            }
        }
    }

    fn joined(&mut self, router: RouterId, address: String, now: Instant) {
        if let Ok((host, _)) = parse_place(&address) {
            let host = host.to_owned();
            self.book.joined(router, Place { address, host }, now);
        }
    }

    fn announce(&mut self, now: Instant) {
        let routers: Vec<RouterId> = self.lanes.keys().copied().collect();
        for router in routers {
            let orders = self.members.connected(router, String::new(), now);
            self.obey(orders, now);
        }
    }
}

impl Lane {
    /// How many had to go for it.
    fn push(&self, message: &Outgoing) -> u64 {
        self.waiting.messages.push(Arc::clone(&message.bytes))
    }
}

fn chance() -> u64 {
    u64::from_le_bytes(seal::random())
}
