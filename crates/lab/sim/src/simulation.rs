//! One run: clients, routers and engines, advanced from event to event.
//!
//! ```text
//!  session ──request──► router (production) ──hop──► node (engine model)
//!     ▲                   ▲   first token, end ──hop──┘   │
//!     └── think ◄─────────┘   cache events ──lag──► directory, feeds
//! ```
//!
//! Time is a number. The result does not depend on the machine's clock, on addresses or on threads: the same
//! config, rule and sessions give the same records, byte for byte.

use std::iter::Peekable;

use warmroute_admission::ExpectedWait;
use warmroute_engine::{BlockName, Config as EngineConfig, Happened, Pool, Request};
use warmroute_types::{Micros, Usage, WorkerId};

use crate::config::{BadConfig, Config, EventPath, History, View};
use crate::directory::Directory;
use crate::event_stream::EventStream;
use crate::event_transit::EventTransit;
use crate::incident::IncidentKind;
use crate::load::LoadSeries;
use crate::node::{Node, NodeState, Totals};
use crate::peer_network::Balancer;
use crate::prompt::tokens;
use crate::queue::{Event, Queue};
use crate::random::{Random, mix};
use crate::record::Record;
use crate::repeated_prefill::{RepeatedPrefill, Trail, sample};
use crate::replication::Replication;
use crate::rule::Rule;
use crate::sampled::sampled_chain;
use crate::session::Session;
use crate::shedding::Shedding;
use crate::sim_router::{Routed, RoutingRequest, SimRouter};

/// Retries of a request whose engine dies before the first token.
const RETRIES_MAX: usize = 3;
/// Interval at which routers expire old state.
const TICK: Micros = Micros::from_secs(10);
/// Interval where engines report events: presumed blocks that no event confirms expire as often as in
/// production.
const TICK_REPORTED: Micros = Micros::from_millis(250);

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Answered requests, in the order of their end.
    pub records: Vec<Record>,
    /// Totals per engine.
    pub totals: Vec<Totals>,
    /// State of each engine over time.
    pub load: LoadSeries,
    /// Copies of cached blocks across engines at the end of the run.
    pub replication: Replication,
    /// Share of the computed prompt blocks that the fleet had computed before, from 0 to 1.
    pub repeated_prefill_ratio: f64,
    /// In a closed loop, the time from the start until the first client found no further session: until then
    /// all clients were busy.
    pub saturated: Option<Micros>,
    /// Requests without a complete answer: their engine died after the first token, retries ran out, or no
    /// engine was up.
    pub failed: u64,
    /// Requests larger than any engine accepts.
    pub rejected: u64,
    /// Requests that the router refused, see [`Shedding`](crate::Shedding).
    pub refused: u64,
    /// Retries after an engine died.
    pub retried: u64,
    /// Size of all routers' indexes at the end, in bytes.
    pub index_bytes: usize,
    /// Bytes sent between routers, counted once per receiver.
    pub shared_bytes: u64,
}

/// Runs sessions through a fleet. Sessions must be sorted by start time.
pub fn run<'a>(
    config: &'a Config,
    rule: &Rule,
    sessions: impl Iterator<Item = Session> + 'a,
) -> Result<Outcome, BadConfig> {
    run_boxed(config, rule, Box::new(sessions))
}

fn run_boxed<'a>(config: &'a Config, rule: &Rule, sessions: AnySessions<'a>) -> Result<Outcome, BadConfig> {
    config.validate()?;
    if config.history != History::Fresh {
        return Ok(history::run(config, rule, sessions.collect()));
    }
    let mut simulation = Simulation::new(config, rule, sessions);
    simulation.start();
    Ok(simulation.run_to_end())
}

/// Sessions of any source. Boxed, so that this crate compiles the simulation once and not for every caller.
type AnySessions<'a> = Box<dyn Iterator<Item = Session> + 'a>;

/// State of one client's session. It keeps its index in the job table for all its turns.
struct Job {
    session: Session,
    turn: usize,
    router: usize,
    asked: Micros,
    /// Number of the current attempt; events of earlier attempts are ignored.
    attempt: u32,
    routed: Option<Routed>,
    avoid: Vec<WorkerId>,
    chain: Vec<BlockName>,
    trail: Trail,
    queued: Micros,
    cached_tokens: u32,
    /// Prompt tokens that the engine's cache held when it was chosen; `None` where nothing was predicted.
    held_tokens: Option<u32>,
    first_token: Option<Micros>,
    ended: Option<Micros>,
}

struct Simulation<'a> {
    config: &'a Config,
    needs_overlap: bool,
    /// Makes engines publish events even if the current rule reads none, because later routers replay them.
    publishes_unread: bool,
    now: Micros,
    /// Start of the run. Earlier activity is history and is not recorded.
    began: Micros,
    queue: Queue,
    sessions: Peekable<AnySessions<'a>>,
    asks: usize,
    jobs: Vec<Job>,
    vacant: Vec<u32>,
    nodes: Vec<Node>,
    routers: Vec<SimRouter>,
    directory: Directory,
    transit: EventTransit,
    /// Event stream of each engine.
    streams: Vec<EventStream>,
    messages: sharing::PeerMessages,
    shared_bytes: u64,
    random: Random,
    /// Random source for losses. It is separate so that a loss does not shift the random choices of policies.
    losses: Random,
    held_tokens: Vec<u32>,
    happened: Vec<Happened>,
    load: LoadSeries,
    records: Vec<Record>,
    prefill: RepeatedPrefill,
    saturated: Option<Micros>,
    failed: u64,
    rejected: u64,
    refused: u64,
    retried: u64,
}

impl<'a> Simulation<'a> {
    fn new(config: &'a Config, rule: &Rule, sessions: AnySessions<'a>) -> Simulation<'a> {
        let nodes = config.fleet.len();
        let pool = Pool::new(config.pool_blocks());
        let reports_blocks = config.needs_events();
        let engine = |engine: &EngineConfig| EngineConfig { reports_blocks, ..engine.clone() };
        Simulation {
            config,
            needs_overlap: rule.needs().overlap,
            publishes_unread: false,
            now: Micros::ZERO,
            began: Micros::ZERO,
            queue: Queue::default(),
            sessions: sessions.peekable(),
            asks: 0,
            jobs: Vec::new(),
            vacant: Vec::new(),
            nodes: config.fleet.iter().map(|one| Node::new(engine(one), pool.clone())).collect(),
            routers: (0..config.routers)
                .map(|router| SimRouter::new(rule, config, sharing::name(router)))
                .collect(),
            directory: Directory::new(nodes),
            transit: EventTransit::new(nodes),
            streams: (0..nodes).map(|_| EventStream::new(config.replay_batches)).collect(),
            messages: sharing::PeerMessages::default(),
            shared_bytes: 0,
            random: Random::new(config.seed, 0x0077_6f72_6c64),
            losses: Random::new(config.seed, 0x006c_6f73_7365),
            held_tokens: Vec::new(),
            happened: Vec::new(),
            load: LoadSeries::default(),
            records: Vec::new(),
            prefill: RepeatedPrefill::default(),
            saturated: None,
            failed: 0,
            rejected: 0,
            refused: 0,
            retried: 0,
        }
    }

    fn schedule_incidents(&mut self) {
        for (index, incident) in self.config.incidents.iter().enumerate() {
            self.queue.push(self.began + incident.at, Event::Incident { index: index as u32 });
        }
    }

    fn run_to_end(mut self) -> Outcome {
        while self.step() {}
        self.finish()
    }

    /// Adds the fleet to the routers. An engine whose first incident is a join starts absent.
    fn start(&mut self) {
        self.schedule_incidents();
        for node in 0..self.nodes.len() {
            let mut own = self.config.incidents.iter().filter(|incident| incident.worker == node);
            let first = own.clone().map(|incident| incident.at).min();
            let joins = own.any(|one| Some(one.at) == first && one.kind == IncidentKind::Join);
            if joins {
                self.nodes[node].state = NodeState::Absent;
            } else {
                self.routers
                    .iter_mut()
                    .for_each(|router| router.join(node, &self.config.fleet[node], self.now));
                self.open_stream(node);
            }
        }
        self.queue.push(self.tick_interval(), Event::Tick);
        self.start_load_reports();
        self.start_sharing();
    }

    fn tick_interval(&self) -> Micros {
        if self.config.view == View::Reported { TICK_REPORTED } else { TICK }
    }

    /// Processes the next arrival or event. Returns false when none is left.
    fn step(&mut self) -> bool {
        let arrival = self.next_arrival();
        let event = self.queue.next_at();
        match (arrival, event) {
            (None, None) => return false,
            (Some(at), next) if next.is_none_or(|next| at < next) => {
                self.move_to(at);
                self.arrive();
            }
            _ => {
                let (at, event) = self.queue.pop().expect("the queue has a next event");
                self.move_to(at);
                self.handle(event);
            }
        }
        true
    }

    fn move_to(&mut self, at: Micros) {
        while self.load.due() < at.since(self.began) {
            self.load.take(self.nodes.iter().map(Node::sample));
        }
        self.now = self.now.max(at);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Due { node, stamp } => self.due(node as usize, stamp),
            Event::Ask { job } => self.ask(job),
            Event::Submit { job, attempt } => self.submit(job, attempt),
            Event::FirstToken { job, attempt } => self.receive_first_token(job, attempt),
            Event::Ended { job, attempt } => self.receive_end(job, attempt),
            Event::CacheChanges { delivery } => self.deliver_changes(delivery),
            Event::StreamMessage { node } => self.receive_stream_message(node as usize),
            Event::Replay { router, node, number } => self.replay(router.into(), node.into(), number),
            Event::Replayed { router, node, number } => self.replayed(router.into(), node.into(), number),
            Event::Tick => self.tick(),
            Event::LoadReports => self.report_loads(),
            Event::Incident { index } => self.apply_incident(index as usize),
            Event::ShareBatch { router } => self.share_batch(router.into()),
            Event::PeerMessage { message } => self.receive_peer_message(message),
        }
    }

    fn tick(&mut self) {
        self.routers.iter().for_each(|router| router.tick(self.now));
        self.tick_feeds();
        if !self.is_over() {
            self.queue.push(self.now + self.tick_interval(), Event::Tick);
        }
    }

    /// Whether all sessions have ended.
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
            trail: Trail::new(),
            queued: Micros::ZERO,
            cached_tokens: 0,
            held_tokens: None,
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

    /// Starts a turn: picks a router, routes the request and sends it.
    fn ask(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        job.asked = self.now;
        let turn = &job.session.turns[job.turn];
        let number = match self.config.balancer {
            Balancer::Turns => self.asks,
            Balancer::Session => mix(turn.thread.key.unwrap_or(self.asks as u64)) as usize,
        };
        job.router = number % self.routers.len();
        self.asks += 1;
        job.avoid.clear();
        job.chain = sampled_chain(turn, self.config.fleet[0].block_size, self.config.retokenized);
        sample(&job.chain, &mut job.trail);
        self.route(place);
    }

    fn route(&mut self, place: u32) {
        self.look_up_held_tokens(place);
        let job = &mut self.jobs[place as usize];
        job.attempt += 1;
        (job.cached_tokens, job.first_token, job.ended) = (0, None, None);
        let turn = &job.session.turns[job.turn];
        let asked = RoutingRequest {
            prompt: &turn.prompt,
            thread: turn.thread,
            held_tokens: &self.held_tokens,
            avoid: &job.avoid,
        };
        let router = job.router;
        match self.routers[router].route(&asked, self.now, self.random.bits()) {
            Ok(routed) if !self.accepts(&routed) => {
                self.routers[router].refused(routed, self.now);
                self.refused += 1;
                self.release_job(place);
            }
            Ok(routed) => {
                let node = &mut self.nodes[routed.node];
                node.in_flight += 1;
                let job = &mut self.jobs[place as usize];
                let prompt_tokens = tokens(&job.session.turns[job.turn].prompt);
                let is_predicted = routed.predicted_tokens.is_some_and(|predicted| predicted > 0);
                job.held_tokens = is_predicted.then(|| node.held_tokens(&job.chain, prompt_tokens));
                job.routed = Some(routed);
                let submit = Event::Submit { job: place, attempt: job.attempt };
                self.queue.push(self.now + self.config.hop, submit);
                self.share_now(router);
            }
            Err(_) => self.fail_request(place),
        }
    }

    fn accepts(&self, routed: &Routed) -> bool {
        if self.config.shedding == Shedding::Off {
            return true;
        }
        let in_flight: u32 = self.nodes.iter().map(|node| node.in_flight).sum();
        let in_flight = f64::from(in_flight) / self.nodes.len() as f64;
        let micros = |ms: f32| Micros((f64::from(ms.max(0.0)) * 1e3) as u64);
        let ahead_ms = routed.decision.expected_queue_ms();
        let own_ms = routed.decision.expected_ttft_ms() - ahead_ms;
        let expected_ttft = ExpectedWait { ahead: micros(ahead_ms), own: micros(own_ms) };
        self.config.shedding.accepts(in_flight, expected_ttft, self.now)
    }

    /// Looks up the prompt tokens that each engine holds. Empty unless the view is exact and the rule uses
    /// overlap.
    fn look_up_held_tokens(&mut self, place: u32) {
        self.held_tokens.clear();
        if self.config.view != View::Exact || !self.needs_overlap {
            return;
        }
        let job = &self.jobs[place as usize];
        let prompt_tokens = tokens(&job.session.turns[job.turn].prompt);
        let block_tokens = self.config.fleet[0].block_size;
        let usable = prompt_tokens.saturating_sub(1) / block_tokens * block_tokens;
        let (directory, chain, path) = (&self.directory, &job.chain, self.config.events);
        self.held_tokens.extend(self.nodes.iter().enumerate().map(|(index, node)| match path {
            EventPath::DIRECT => node.held_tokens(chain, prompt_tokens),
            _ => (directory.blocks(index, chain) as u32 * block_tokens).min(usable),
        }));
    }

    fn submit(&mut self, place: u32, attempt: u32) {
        let job = &mut self.jobs[place as usize];
        let Some(routed) = job.routed.as_ref().filter(|_| job.attempt == attempt) else { return };
        let index = routed.node;
        let node = &mut self.nodes[index];
        if node.state != NodeState::Up {
            return self.retry_elsewhere(place);
        }
        let turn = &job.session.turns[job.turn];
        // Cache events of this request name its blocks, so the chain must stay with the job.
        let chain =
            if self.config.needs_events() { job.chain.clone() } else { std::mem::take(&mut job.chain) };
        let (prompt_tokens, output_tokens) = (tokens(&turn.prompt), tokens(&turn.answer));
        match node.submit(self.now, Request { chain, prompt_tokens, output_tokens }, place) {
            Ok(()) => self.run_engine(index),
            Err(_) => self.reject(place),
        }
    }

    fn run_engine(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if let Some(at) = node.run(self.now) {
            self.queue.push(at, Event::Due { node: index as u32, stamp: node.stamp });
        }
    }

    /// Ends an engine's step, or its run of steps.
    fn due(&mut self, index: usize, stamp: u32) {
        if self.nodes[index].stamp != stamp {
            return;
        }
        let mut happened = std::mem::take(&mut self.happened);
        self.nodes[index].finish(&mut happened);
        for &one in &happened {
            self.record_progress(index, one);
        }
        self.send_changes(index, &happened);
        // Clear only now: the cache events above refer to sequences that ended in this step.
        happened.clear();
        self.happened = happened;
        self.run_engine(index);
    }

    fn record_progress(&mut self, index: usize, happened: Happened) {
        let hop = self.config.hop;
        match happened {
            Happened::Started { id, cached_tokens, queued } => {
                let node = &mut self.nodes[index];
                let job = &mut self.jobs[node.job(id) as usize];
                (job.cached_tokens, job.queued) = (cached_tokens, queued);
                node.totals.requests += 1;
                let prompt_tokens = tokens(&job.session.turns[job.turn].prompt);
                node.totals.uncached_tokens += u64::from(prompt_tokens - cached_tokens);
                let block_tokens = self.config.fleet[0].block_size;
                self.prefill.prefill(&job.trail, cached_tokens / block_tokens, prompt_tokens / block_tokens);
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

    fn receive_first_token(&mut self, place: u32, attempt: u32) {
        let job = &mut self.jobs[place as usize];
        if let Some(routed) = job.routed.as_mut().filter(|_| job.attempt == attempt) {
            let router = job.router;
            self.routers[router].first_token(routed, self.now);
            self.share_now(router);
        }
    }

    fn receive_end(&mut self, place: u32, attempt: u32) {
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
        let feedback = self.routers[job.router].ended(routed, &turn.prompt, usage, self.now);
        let margin = self.config.fleet[0].block_size;
        let (stale_tokens, missed_tokens) = match self.config.view {
            View::Presumed | View::Reported => (feedback.stale, feedback.missed),
            View::Exact => differences(predicted_tokens, job.cached_tokens, margin),
        };
        self.prefill.answered(&job.trail, usage.prompt_tokens / margin);
        let (first_token, held_tokens) = (job.first_token.unwrap_or(self.now), job.held_tokens);
        self.records.push(Record {
            asked_us: job.asked.since(self.began).0,
            ttft_us: first_token.since(job.asked).0,
            e2e_us: self.now.since(job.asked).0,
            queued_us: job.queued.0,
            worker: node as u32,
            turn: job.turn as u32,
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.output_tokens,
            cached_tokens: job.cached_tokens,
            predicted_tokens,
            held_tokens,
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
            Some(turn) => {
                let think = if self.config.concurrency.is_some() { Micros::ZERO } else { turn.think };
                self.queue.push(self.now + think, Event::Ask { job: place });
            }
            None => self.release_job(place),
        }
    }

    /// Ends a request that its engine can never run.
    fn reject(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        if let Some(routed) = job.routed.take() {
            self.nodes[routed.node].in_flight -= 1;
            self.routers[job.router].refused(routed, self.now);
        }
        self.rejected += 1;
        self.release_job(place);
    }

    /// Retries a request whose engine died, unless its client has already received a token.
    fn retry_elsewhere(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        if let Some(routed) = job.routed.take() {
            self.nodes[routed.node].in_flight -= 1;
            job.avoid.push(self.routers[job.router].lost(routed, self.now));
        }
        let has_begun = job.first_token.is_some_and(|at| at <= self.now);
        if has_begun || job.avoid.len() > RETRIES_MAX {
            return self.fail_request(place);
        }
        self.retried += 1;
        let turn = &job.session.turns[job.turn];
        job.chain = sampled_chain(turn, self.config.fleet[0].block_size, self.config.retokenized);
        self.route(place);
    }

    /// Counts a request as failed and ends its session.
    fn fail_request(&mut self, place: u32) {
        self.failed += 1;
        self.release_job(place);
    }

    fn release_job(&mut self, place: u32) {
        let job = &mut self.jobs[place as usize];
        job.attempt += 1;
        job.chain = Vec::new();
        self.vacant.push(place);
    }

    fn apply_incident(&mut self, index: usize) {
        let incident = self.config.incidents[index];
        let node = incident.worker;
        match incident.kind {
            IncidentKind::Fail => self.fail(node),
            IncidentKind::Recover => {
                self.nodes[node].state = NodeState::Up;
                self.routers.iter().for_each(|router| router.recovered(node, self.now));
                self.connect(node);
            }
            IncidentKind::Leave => self.routers.iter_mut().for_each(|router| router.leave(node)),
            IncidentKind::Join => {
                self.nodes[node].state = NodeState::Up;
                self.routers
                    .iter_mut()
                    .for_each(|router| router.join(node, &self.config.fleet[node], self.now));
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
        lost.into_iter().for_each(|place| self.retry_elsewhere(place));
    }

    fn finish(mut self) -> Outcome {
        self.nodes.iter_mut().for_each(Node::count);
        Outcome {
            replication: crate::replication::of(self.nodes.iter().map(|node| &node.engine)),
            totals: self.nodes.iter().map(|node| node.totals).collect(),
            repeated_prefill_ratio: self.prefill.ratio(),
            saturated: self.saturated.map(|at| at.since(self.began)),
            index_bytes: self.routers.iter().map(SimRouter::index_bytes).sum(),
            shared_bytes: self.shared_bytes,
            records: self.records,
            load: self.load,
            failed: self.failed,
            rejected: self.rejected,
            refused: self.refused,
            retried: self.retried,
        }
    }
}

/// Stale tokens (predicted but not cached) and missed tokens (cached but not predicted). Differences up to
/// the margin count as zero.
fn differences(predicted_tokens: Option<u32>, cached_tokens: u32, margin: u32) -> (u32, u32) {
    let Some(predicted) = predicted_tokens else { return (0, 0) };
    let beyond =
        |more: u32, less: u32| Some(more.saturating_sub(less)).filter(|&by| by > margin).unwrap_or(0);
    (beyond(predicted, cached_tokens), beyond(cached_tokens, predicted))
}

mod cache_events;
mod closed_loop;
mod history;
mod load_reports;
mod sharing;

#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod throughput_tests;
