//! A run: clients, routers and engines, from one event to the next.
//!
//! ```text
//!  session ──ask──► gate (the real router) ──hop──► node (the engine model)
//!     ▲                ▲   first token, end ──hop──┘   │
//!     └── think ◄──────┘   news of caches ──lag───► directory, feeds
//! ```
//!
//! Time is a number. Nothing here depends on the machine's clock, on addresses or on threads: the same config, rule and
//! sessions give the same records, byte for byte.

use std::iter::Peekable;

use warmroute_engine::{BlockName, Happened, Pool, Request};
use warmroute_types::{Micros, Usage, WorkerId};

use crate::config::{BadConfig, Config, History, NewsPath, View};
use crate::directory::Directory;
use crate::gate::{Asked, Gate, Routed};
use crate::incident::IncidentKind;
use crate::load::LoadSeries;
use crate::node::{Node, NodeState, Totals};
use crate::post::Post;
use crate::prompt::{block_names, tokens};
use crate::queue::{Event, Queue};
use crate::random::{Random, mix};
use crate::record::Record;
use crate::replication::Replication;
use crate::rule::Rule;
use crate::session::Session;
use crate::stream::Stream;
use crate::talk::Balancer;

/// How often a request is sent again to another engine when its engine dies before the first token.
const RETRIES_MAX: usize = 3;
/// How often routers forget what is too old.
const TICK: Micros = Micros::from_secs(10);
/// The same where engines report: what was presumed until an event came is withdrawn as often as in production.
const TICK_REPORTED: Micros = Micros::from_millis(250);

/// What a run brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Requests that were answered, in the order in which they ended.
    pub records: Vec<Record>,
    /// By engine.
    pub totals: Vec<Totals>,
    /// By engine, over time.
    pub load: LoadSeries,
    /// On how many engines lies what is cached at the end.
    pub replication: Replication,
    /// Requests that nobody answered: their engine died after the first token, or too often, or none was there.
    pub failed: u64,
    /// Requests that no engine could ever take.
    pub rejected: u64,
    /// Requests that were sent again.
    pub retried: u64,
    /// Bytes of the routers' indexes at the end.
    pub index_bytes: usize,
    /// Bytes that routers have told each other, counted once for each that was told.
    pub told_bytes: u64,
}

/// Requests of the traffic that engines with a history have served before.
const HISTORY_REQUESTS: usize = 300;

/// Runs sessions, given in the order of their start, through a fleet.
pub fn run(
    config: &Config,
    rule: &Rule,
    sessions: impl Iterator<Item = Session>,
) -> Result<Outcome, BadConfig> {
    config.validate()?;
    if config.history == History::Fresh {
        let mut world = World::new(config, rule, sessions.peekable());
        world.open();
        while world.step() {}
        return Ok(world.close());
    }
    // The same traffic has been there before, spread over all engines, so that much of what routers replay is asked for again.
    let sessions: Vec<Session> = sessions.collect();
    let mut requests = 0;
    let past: Vec<Session> = sessions
        .iter()
        .take_while(|session| {
            requests += session.turns.len();
            requests <= HISTORY_REQUESTS
        })
        .cloned()
        .collect();
    let round_robin = Rule::parse("round_robin").expect("it is a policy");
    let quiet = Config { incidents: Vec::new(), ..config.clone() };
    let mut world = World::new(&quiet, &round_robin, past.into_iter().peekable());
    world.publishes_unheard = true;
    world.open();
    while world.step() {}
    let mut world = world.succeeded_by(config, rule, sessions.into_iter());
    while world.step() {}
    Ok(world.close())
}

/// One client's session while it runs. It keeps its place in the table for all its turns.
struct Job {
    session: Session,
    turn: usize,
    router: usize,
    asked: Micros,
    /// Distinguishes what is still heard of an earlier try.
    attempt: u32,
    routed: Option<Routed>,
    avoid: Vec<WorkerId>,
    chain: Vec<BlockName>,
    cached_tokens: u32,
    first_token: Option<Micros>,
    ended: Option<Micros>,
}

struct World<'a, S: Iterator<Item = Session>> {
    config: &'a Config,
    needs_overlap: bool,
    /// Engines publish their events even though the present rule reads none: routers that come later replay them.
    publishes_unheard: bool,
    now: Micros,
    /// When the run began: what was before is its history.
    began: Micros,
    queue: Queue,
    sessions: Peekable<S>,
    asks: usize,
    jobs: Vec<Job>,
    vacant: Vec<u32>,
    nodes: Vec<Node>,
    gates: Vec<Gate>,
    directory: Directory,
    post: Post,
    /// By engine.
    streams: Vec<Stream>,
    messages: talk::Messages,
    told_bytes: u64,
    random: Random,
    /// What is lost, drawn apart: otherwise a loss would also shift every choice that is drawn by lot.
    losses: Random,
    held_tokens: Vec<u32>,
    happened: Vec<Happened>,
    load: LoadSeries,
    records: Vec<Record>,
    failed: u64,
    rejected: u64,
    retried: u64,
}

impl<'a, S: Iterator<Item = Session>> World<'a, S> {
    fn new(config: &'a Config, rule: &Rule, sessions: Peekable<S>) -> World<'a, S> {
        let nodes = config.fleet.len();
        let pool = Pool::new(config.pool_blocks());
        World {
            config,
            needs_overlap: rule.needs().overlap,
            publishes_unheard: false,
            now: Micros::ZERO,
            began: Micros::ZERO,
            queue: Queue::default(),
            sessions,
            asks: 0,
            jobs: Vec::new(),
            vacant: Vec::new(),
            nodes: config.fleet.iter().map(|engine| Node::new(engine, pool.clone())).collect(),
            gates: (0..config.routers).map(|gate| Gate::new(rule, config, talk::name(gate))).collect(),
            directory: Directory::new(nodes),
            post: Post::new(nodes),
            streams: (0..nodes).map(|_| Stream::new(config.replay_batches)).collect(),
            messages: talk::Messages::default(),
            told_bytes: 0,
            random: Random::new(config.seed, 0x0077_6f72_6c64),
            losses: Random::new(config.seed, 0x006c_6f73_7365),
            held_tokens: Vec::new(),
            happened: Vec::new(),
            load: LoadSeries::default(),
            records: Vec::new(),
            failed: 0,
            rejected: 0,
            retried: 0,
        }
    }

    /// New routers with another rule before engines that have a history, and sessions that start now.
    fn succeeded_by<'b, T: Iterator<Item = Session>>(
        self,
        config: &'b Config,
        rule: &Rule,
        sessions: T,
    ) -> World<'b, impl Iterator<Item = Session> + use<'b, T, S>> {
        let now = self.now;
        let later = move |session: Session| Session { starts: session.starts + now, ..session };
        let mut world = World::new(config, rule, sessions.map(later).peekable());
        (world.now, world.began) = (now, now);
        (world.nodes, world.streams) = (self.nodes, self.streams);
        (world.directory, world.post) = (self.directory, self.post);
        world.nodes.iter_mut().for_each(Node::begin_run);
        if config.history == History::Reset {
            world.nodes.iter_mut().for_each(Node::reset);
        }
        for node in 0..world.nodes.len() {
            let engine = &config.fleet[node];
            world.gates.iter_mut().for_each(|gate| gate.join(node, engine, now));
            world.connect(node);
        }
        let ticks = now.0 / world.tick_interval().0 + 1;
        world.queue.push(Micros(ticks * world.tick_interval().0), Event::Tick);
        world.open_talk();
        world.schedule_incidents();
        world
    }

    fn schedule_incidents(&mut self) {
        for (index, incident) in self.config.incidents.iter().enumerate() {
            self.queue.push(self.began + incident.at, Event::Incident { index: index as u32 });
        }
    }

    /// Seats the fleet. An engine whose first incident is that it joins is not there yet.
    fn open(&mut self) {
        self.schedule_incidents();
        for node in 0..self.nodes.len() {
            let mut own = self.config.incidents.iter().filter(|incident| incident.worker == node);
            let first = own.clone().map(|incident| incident.at).min();
            let joins = own.any(|one| Some(one.at) == first && one.kind == IncidentKind::Join);
            if joins {
                self.nodes[node].state = NodeState::Absent;
            } else {
                self.gates.iter_mut().for_each(|gate| gate.join(node, &self.config.fleet[node], self.now));
                self.open_stream(node);
            }
        }
        self.queue.push(self.tick_interval(), Event::Tick);
        self.open_talk();
    }

    fn tick_interval(&self) -> Micros {
        if self.config.view == View::Reported { TICK_REPORTED } else { TICK }
    }

    /// The next thing that happens, an arrival or an event; false when there is nothing left.
    fn step(&mut self) -> bool {
        let arrival = self.sessions.peek().map(|session| session.starts);
        let event = self.queue.next_at();
        match (arrival, event) {
            (None, None) => return false,
            (Some(at), next) if next.is_none_or(|next| at < next) => {
                self.move_to(at);
                self.arrive();
            }
            _ => {
                let (at, event) = self.queue.pop().expect("it was looked at");
                self.move_to(at);
                self.happen(event);
            }
        }
        true
    }

    fn move_to(&mut self, at: Micros) {
        while self.load.due() < at.since(self.began) {
            self.load.take(self.nodes.iter().map(|node| node.in_flight));
        }
        self.now = self.now.max(at);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Due { node, stamp } => self.due(node as usize, stamp),
            Event::Ask { job } => self.ask(job),
            Event::Submit { job, attempt } => self.submit(job, attempt),
            Event::FirstToken { job, attempt } => self.hear_first_token(job, attempt),
            Event::Ended { job, attempt } => self.hear_end(job, attempt),
            Event::News { delivery } => self.pass_news(delivery),
            Event::Letter { node } => self.receive(node as usize),
            Event::Replay { gate, node, number } => self.replay(gate.into(), node.into(), number),
            Event::Replayed { gate, node, number } => self.replayed(gate.into(), node.into(), number),
            Event::Tick => self.tick(),
            Event::Incident { index } => self.suffer(index as usize),
            Event::Speak { gate } => self.speak(gate.into()),
            Event::Told { message } => self.told(message),
        }
    }

    fn tick(&mut self) {
        self.gates.iter().for_each(|gate| gate.tick(self.now));
        self.pulse();
        if !self.is_over() {
            self.queue.push(self.now + self.tick_interval(), Event::Tick);
        }
    }

    /// Whether everybody who would ask has been answered.
    fn is_over(&mut self) -> bool {
        self.sessions.peek().is_none() && self.vacant.len() == self.jobs.len()
    }

    fn arrive(&mut self) {
        let Some(session) = self.sessions.next() else { return };
        let job = Job {
            session,
            turn: 0,
            router: 0,
            asked: self.now,
            attempt: 0,
            routed: None,
            avoid: Vec::new(),
            chain: Vec::new(),
            cached_tokens: 0,
            first_token: None,
            ended: None,
        };
        let place = match self.vacant.pop() {
            Some(place) => {
                self.jobs[place as usize] = job;
                place
            }
            None => {
                self.jobs.push(job);
                (self.jobs.len() - 1) as u32
            }
        };
        self.ask(place);
    }

    /// A turn begins: it is routed and sent.
    fn ask(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        job.asked = self.now;
        let turn = &job.session.turns[job.turn];
        let number = match self.config.balancer {
            Balancer::Turns => self.asks,
            Balancer::Session => mix(turn.thread.key.unwrap_or(self.asks as u64)) as usize,
        };
        job.router = number % self.gates.len();
        self.asks += 1;
        job.avoid.clear();
        job.chain = block_names(&turn.prompt, &turn.answer, self.config.fleet[0].block_size);
        self.route(place);
    }

    fn route(&mut self, place: u32) {
        self.look(place);
        let job = &mut self.jobs[place as usize];
        job.attempt += 1;
        (job.cached_tokens, job.first_token, job.ended) = (0, None, None);
        let turn = &job.session.turns[job.turn];
        let asked = Asked {
            prompt: &turn.prompt,
            thread: turn.thread,
            held_tokens: &self.held_tokens,
            avoid: &job.avoid,
        };
        let router = job.router;
        match self.gates[router].route(&asked, self.now, self.random.bits()) {
            Ok(routed) => {
                self.nodes[routed.node].in_flight += 1;
                job.routed = Some(routed);
                let submit = Event::Submit { job: place, attempt: job.attempt };
                self.queue.push(self.now + self.config.hop, submit);
                self.speak_up(router);
            }
            Err(_) => self.give_up(place),
        }
    }

    /// What each engine holds of a prompt, where the view is that somebody knows.
    fn look(&mut self, place: u32) {
        self.held_tokens.clear();
        if self.config.view != View::Exact || !self.needs_overlap {
            return;
        }
        let job = &self.jobs[place as usize];
        let prompt_tokens = tokens(&job.session.turns[job.turn].prompt);
        let block_tokens = self.config.fleet[0].block_size;
        let usable = prompt_tokens.saturating_sub(1) / block_tokens * block_tokens;
        let (directory, chain, news) = (&self.directory, &job.chain, self.config.news);
        self.held_tokens.extend(self.nodes.iter().enumerate().map(|(index, node)| match news {
            NewsPath::DIRECT => node.held_tokens(chain, prompt_tokens),
            _ => (directory.blocks(index, chain) as u32 * block_tokens).min(usable),
        }));
    }

    fn submit(&mut self, place: u32, attempt: u32) {
        let job = &mut self.jobs[place as usize];
        let Some(routed) = job.routed.as_ref().filter(|_| job.attempt == attempt) else { return };
        let index = routed.node;
        let node = &mut self.nodes[index];
        if node.state != NodeState::Up {
            return self.lose(place);
        }
        let turn = &job.session.turns[job.turn];
        // News of it name its blocks.
        let chain = if self.config.needs_news() { job.chain.clone() } else { std::mem::take(&mut job.chain) };
        let (prompt_tokens, output_tokens) = (tokens(&turn.prompt), tokens(&turn.answer));
        match node.submit(self.now, Request { chain, prompt_tokens, output_tokens }, place) {
            Ok(()) => self.go_on(index),
            Err(_) => self.reject(place),
        }
    }

    fn go_on(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if let Some(at) = node.go_on(self.now) {
            self.queue.push(at, Event::Due { node: index as u32, stamp: node.stamp });
        }
    }

    /// An engine's step or run has ended.
    fn due(&mut self, index: usize, stamp: u32) {
        if self.nodes[index].stamp != stamp {
            return;
        }
        let mut happened = std::mem::take(&mut self.happened);
        self.nodes[index].finish(&mut happened);
        for &one in &happened {
            self.notice(index, one);
        }
        self.post_news(index, &happened);
        // Only now: what has ended in this step is needed for the news of it.
        happened.clear();
        self.happened = happened;
        self.go_on(index);
    }

    fn notice(&mut self, index: usize, happened: Happened) {
        let hop = self.config.hop;
        match happened {
            Happened::Started { id, cached_tokens } => {
                let node = &mut self.nodes[index];
                let job = &mut self.jobs[node.job(id) as usize];
                job.cached_tokens = cached_tokens;
                node.totals.requests += 1;
                let prompt_tokens = tokens(&job.session.turns[job.turn].prompt);
                node.totals.uncached_tokens += u64::from(prompt_tokens - cached_tokens);
            }
            Happened::Token { id, index: 0 } => {
                let place = self.nodes[index].job(id);
                let job = &mut self.jobs[place as usize];
                job.first_token = Some(self.now + hop);
                self.queue.push(self.now + hop, Event::FirstToken { job: place, attempt: job.attempt });
            }
            Happened::Finished { id } => {
                let place = self.nodes[index].job(id);
                let job = &mut self.jobs[place as usize];
                job.ended = Some(self.now + hop);
                self.queue.push(self.now + hop, Event::Ended { job: place, attempt: job.attempt });
            }
            _ => {}
        }
    }

    fn hear_first_token(&mut self, place: u32, attempt: u32) {
        let job = &mut self.jobs[place as usize];
        if let Some(routed) = job.routed.as_mut().filter(|_| job.attempt == attempt) {
            let router = job.router;
            self.gates[router].first_token(routed, self.now);
            self.speak_up(router);
        }
    }

    fn hear_end(&mut self, place: u32, attempt: u32) {
        let job = &mut self.jobs[place as usize];
        let Some(routed) = job.routed.take_if(|_| job.attempt == attempt) else { return };
        let turn = &job.session.turns[job.turn];
        let usage = Usage {
            prompt_tokens: tokens(&turn.prompt),
            output_tokens: tokens(&turn.answer),
            cached_tokens: Some(job.cached_tokens),
        };
        let Routed { node, predicted_tokens, restorable_tokens, .. } = routed;
        self.nodes[node].in_flight -= 1;
        let feedback = self.gates[job.router].ended(routed, &turn.prompt, usage, self.now);
        let margin = self.config.fleet[0].block_size;
        let (stale_tokens, missed_tokens) = match self.config.view {
            View::Presumed | View::Reported => (feedback.stale, feedback.missed),
            View::Exact => differences(predicted_tokens, job.cached_tokens, margin),
        };
        let first_token = job.first_token.unwrap_or(self.now);
        self.records.push(Record {
            asked_us: job.asked.since(self.began).0,
            ttft_us: first_token.since(job.asked).0,
            e2e_us: self.now.since(job.asked).0,
            worker: node as u32,
            turn: job.turn as u32,
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.output_tokens,
            cached_tokens: job.cached_tokens,
            predicted_tokens,
            restorable_tokens,
            stale_tokens,
            missed_tokens,
        });
        self.next_turn(place);
    }

    fn next_turn(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        job.turn += 1;
        match job.session.turns.get(job.turn) {
            Some(turn) => self.queue.push(self.now + turn.think, Event::Ask { job: place }),
            None => self.dismiss(place),
        }
    }

    /// The engine could never run it.
    fn reject(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        if let Some(routed) = job.routed.take() {
            self.nodes[routed.node].in_flight -= 1;
            self.gates[job.router].refused(routed, self.now);
        }
        self.rejected += 1;
        self.dismiss(place);
    }

    /// Its engine is dead: to another one, unless its client has already read something.
    fn lose(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        if let Some(routed) = job.routed.take() {
            self.nodes[routed.node].in_flight -= 1;
            job.avoid.push(self.gates[job.router].lost(routed, self.now));
        }
        let has_begun = job.first_token.is_some_and(|at| at <= self.now);
        if has_begun || job.avoid.len() > RETRIES_MAX {
            return self.give_up(place);
        }
        self.retried += 1;
        let turn = &job.session.turns[job.turn];
        job.chain = block_names(&turn.prompt, &turn.answer, self.config.fleet[0].block_size);
        self.route(place);
    }

    /// Nobody answers it, and its client goes away.
    fn give_up(&mut self, place: u32) {
        self.failed += 1;
        self.dismiss(place);
    }

    fn dismiss(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        job.attempt += 1;
        job.chain = Vec::new();
        self.vacant.push(place);
    }

    fn suffer(&mut self, index: usize) {
        let incident = self.config.incidents[index];
        let node = incident.worker;
        match incident.kind {
            IncidentKind::Fail => self.fail(node),
            IncidentKind::Recover => {
                self.nodes[node].state = NodeState::Up;
                self.gates.iter().for_each(|gate| gate.recovered(node, self.now));
                self.connect(node);
            }
            IncidentKind::Leave => self.gates.iter_mut().for_each(|gate| gate.leave(node)),
            IncidentKind::Join => {
                self.nodes[node].state = NodeState::Up;
                self.gates.iter_mut().for_each(|gate| gate.join(node, &self.config.fleet[node], self.now));
                self.connect(node);
            }
            IncidentKind::Reset => self.nodes[node].reset(),
        }
    }

    fn fail(&mut self, node: usize) {
        self.nodes[node].die();
        self.disconnect(node);
        let is_there =
            |job: &Job| job.ended.is_none() && job.routed.as_ref().is_some_and(|routed| routed.node == node);
        let lost: Vec<u32> = (0..self.jobs.len())
            .filter(|&place| is_there(&self.jobs[place]))
            .map(|place| place as u32)
            .collect();
        lost.into_iter().for_each(|place| self.lose(place));
    }

    fn close(mut self) -> Outcome {
        self.nodes.iter_mut().for_each(Node::count);
        Outcome {
            replication: crate::replication::of(self.nodes.iter().map(|node| &node.engine)),
            totals: self.nodes.iter().map(|node| node.totals).collect(),
            index_bytes: self.gates.iter().map(Gate::index_bytes).sum(),
            told_bytes: self.told_bytes,
            records: self.records,
            load: self.load,
            failed: self.failed,
            rejected: self.rejected,
            retried: self.retried,
        }
    }
}

/// Promised and not there, there and not promised; up to the margin they mean nothing.
fn differences(predicted_tokens: Option<u32>, cached_tokens: u32, margin: u32) -> (u32, u32) {
    let Some(predicted) = predicted_tokens else { return (0, 0) };
    let beyond =
        |more: u32, less: u32| Some(more.saturating_sub(less)).filter(|&by| by > margin).unwrap_or(0);
    (beyond(predicted, cached_tokens), beyond(cached_tokens, predicted))
}

mod news;
mod talk;

#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
