//! A router in the lab: the real one, and who sits where.
//!
//! Its own index knows what was reported or presumed. To ask what perfect knowledge would be worth, or a directory that is so
//! many seconds old, it is told with the request what every engine holds; everything else, choosing, booking, releasing, is
//! the router as it is.

use std::sync::Arc;

use warmroute_engine::Config as EngineConfig;
use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_peers::Envelope;
use warmroute_policy::Policy;
use warmroute_prompt::CHUNK_BYTES;
use warmroute_router::{
    Answered, Change, Config, Content, Decision, Family, Feedback, Matching, NoRoute, Outcome, PromptChunks,
    PromptText, Request, Router, Scratch, Silence, Unit,
};
use warmroute_types::{Address, CacheCapacity, Micros, RouterId, Usage, WorkerId};

use crate::follower::{Follower, Replays};
use crate::prompt::{chunk_digests, head_key, token_ids, tokens};
use crate::rule::{Made, Needs, Rule};
use crate::session::Thread;
use crate::watch::{End, Watcher};
use crate::{Config as WorldConfig, Piece, View};

/// A token is this many bytes to the router, the usual figure; what it learns from engines' counts confirms it.
const TOKEN_BYTES: u32 = 4;
const CHUNK_TOKENS: u32 = CHUNK_BYTES as u32 / TOKEN_BYTES;
/// How far the prefix key reaches, as in production.
const HEAD_TOKENS: u32 = 1_024;

/// One router and its seats.
pub struct Gate {
    router: Router<Box<dyn Policy>>,
    /// Who is told what the router is not.
    watcher: Option<Arc<dyn Watcher>>,
    /// How many choices were asked for.
    choices: u64,
    scratch: Scratch,
    needs: Needs,
    view: View,
    root: RootKey,
    digests: Vec<u64>,
    /// Where engines report prompts, and the prompt at hand as they do: token ids, four bytes each.
    text_root: RootKey,
    ids: Vec<u32>,
    text: Vec<u8>,
    /// By node: its event stream, where those are followed.
    followers: Vec<Follower>,
    /// Of all engines.
    block_tokens: u32,
    /// By node: its worker, while it is in the fleet.
    workers: Vec<Option<Arc<Worker>>>,
    /// By seat: whose it is.
    nodes: Vec<usize>,
    /// By seat: what it is known to hold of the prompt at hand.
    known_tokens: Vec<u32>,
}

/// A request as the router is asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub prompt: &'a [Piece],
    pub thread: Thread,
    /// By node, what it is known to hold; empty where the router knows by itself.
    pub held_tokens: &'a [u32],
    /// Seats that have failed it.
    pub avoid: &'a [WorkerId],
}

/// Where it goes.
#[derive(Debug)]
pub struct Routed {
    pub decision: Decision,
    pub node: usize,
    /// Its number, to a watcher.
    choice: u64,
    pub predicted_tokens: Option<u32>,
    /// Beyond those, from slower memory.
    pub restorable_tokens: u32,
}

impl Gate {
    /// A router without workers, for the engines of a world.
    pub fn new(rule: &Rule, config: &WorldConfig, name: RouterId) -> Gate {
        let (view, nodes, needs) = (config.view, config.fleet.len(), rule.needs());
        let replays = if config.replay_batches > 0 { Replays::Answered } else { Replays::None };
        let followed = if view == View::Reported && needs.overlap { nodes } else { 0 };
        let Made { policy, watcher } = rule.make();
        let router = Router::new(policy, Config::default());
        if config.talk.is_some() {
            router.share(name, warmroute_peers::Config::default());
        }
        let namespace = Namespace { model: "lab", lora: None, salt: None, cut: 0, source: Source::Presumed };
        Gate {
            text_root: router.text_root(&Family::default(), None, None, Unit::Token),
            ids: Vec::new(),
            text: Vec::new(),
            router,
            watcher,
            choices: 0,
            scratch: Scratch::default(),
            needs,
            view,
            root: RootKey::of(&namespace),
            digests: Vec::new(),
            followers: (0..followed).map(|_| Follower::new(replays)).collect(),
            block_tokens: config.fleet[0].block_size,
            workers: vec![None; nodes],
            nodes: Vec::new(),
            known_tokens: Vec::new(),
        }
    }

    /// An engine joins, and is well.
    pub fn join(&mut self, node: usize, engine: &EngineConfig, now: Micros) {
        let address = Address::new(format!("http://engine-{node}"));
        let joined = self.router.apply(Change::Join { address: address.clone(), models: Models::Any });
        joined.expect("the config was validated: there are seats for all");
        let views = self.router.workers().into_iter();
        let worker = views.map(|view| view.worker).find(|worker| worker.address == address);
        let worker = worker.expect("it has just joined");
        let seat = worker.id.index();
        self.nodes.resize(self.nodes.len().max(seat + 1), usize::MAX);
        self.nodes[seat] = node;
        self.workers[node] = Some(Arc::clone(&worker));
        self.tell(|watcher| watcher.joined(worker.id, engine));
        self.probed(node, ProbeResult::Answered, now);
        let capacity = CacheCapacity { tokens: engine.kv_tokens, block_tokens: engine.block_size };
        self.apply(Change::Capacity { worker: Arc::clone(&worker), capacity });
        if let Some(follower) = self.followers.get_mut(node) {
            follower.renew();
            let matching = Some(Matching::tokens(Family::default()));
            self.apply(Change::Aligned { worker, matching });
        }
    }

    /// An engine is back.
    pub fn recovered(&self, node: usize, now: Micros) {
        self.probed(node, ProbeResult::Answered, now);
    }

    /// An engine is taken out.
    pub fn leave(&mut self, node: usize) {
        if let Some(worker) = self.workers[node].take() {
            self.apply(Change::Leave { address: worker.address.clone() });
        }
    }

    /// Somebody tried an engine.
    fn probed(&self, node: usize, result: ProbeResult, at: Micros) {
        if let Some(worker) = &self.workers[node] {
            self.apply(Change::Probed { worker: Arc::clone(worker), result, at });
        }
    }

    fn apply(&self, change: Change) {
        self.router.apply(change).expect("only joining needs a seat");
    }

    /// Forgets what is too old.
    pub fn tick(&self, now: Micros) {
        self.router.tick(now);
    }

    /// Chooses and books.
    pub fn route(&mut self, asked: &Asked<'_>, now: Micros, random: u64) -> Result<Routed, NoRoute> {
        let prompt_tokens = tokens(asked.prompt);
        self.look(asked);
        let looks_itself = self.digest(asked.prompt);
        let prompt = looks_itself.then(|| chunks(self.root, &self.digests, prompt_tokens));
        let text = self.is_reported().then(|| text(self.text_root, &self.text));
        // A short prompt is keyed by what stays the same while its conversation grows.
        let head_tokens = if prompt_tokens < HEAD_TOKENS { asked.thread.first_tokens } else { HEAD_TOKENS };
        let request = Request {
            prompt_tokens,
            prompt,
            texts: text.as_slice(),
            session_key: asked.thread.key.filter(|_| self.needs.session_key),
            prefix_key: self.needs.prefix_key.then(|| head_key(asked.prompt, head_tokens)),
            avoid: asked.avoid,
            known_tokens: (!asked.held_tokens.is_empty()).then_some(&self.known_tokens),
            ..Request::default()
        };
        self.choices += 1;
        let choice = self.choices;
        self.watcher.iter().for_each(|watcher| watcher.asked(choice, now));
        let decision = self.router.route(&request, &mut self.scratch, now, random)?;
        let seat = decision.worker.id.index();
        let node = self.nodes[seat];
        let predicted_tokens = decision.cached_tokens;
        let chosen = decision.candidate_records[0].as_ref();
        let restorable_tokens = chosen.map_or(0, |chosen| chosen.numbers.restorable_tokens);
        Ok(Routed { decision, node, choice, predicted_tokens, restorable_tokens })
    }

    fn tell(&self, what: impl Fn(&dyn Watcher)) {
        self.watcher.iter().for_each(|watcher| what(watcher.as_ref()));
    }

    /// Sorts what is held by seat, where somebody knows.
    fn look(&mut self, asked: &Asked<'_>) {
        let held = |&node: &usize| asked.held_tokens.get(node).copied().unwrap_or(0);
        self.known_tokens.clear();
        self.known_tokens.extend(self.nodes.iter().map(held));
    }

    /// Whether the router shall find out by itself who holds what; then the prompt is made ready for it.
    fn digest(&mut self, prompt: &[Piece]) -> bool {
        let looks_itself = self.view != View::Exact && self.needs.overlap;
        if looks_itself {
            chunk_digests(prompt, CHUNK_TOKENS, &mut self.digests);
        }
        if self.is_reported() {
            self.ids.clear();
            token_ids(prompt.iter().copied(), 0, tokens(prompt), &mut self.ids);
            self.text.clear();
            self.text.extend(self.ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        looks_itself
    }

    /// Whether prompts are compared with what engines report.
    fn is_reported(&self) -> bool {
        self.view == View::Reported && self.needs.overlap
    }

    /// A first token was heard. A worker that is far later than predicted is left alone for a while, as in production.
    pub fn first_token(&mut self, routed: &mut Routed, now: Micros) {
        self.router.observe(&mut routed.decision, Outcome::FirstToken { at: now });
        self.router.compare_first_token(&routed.decision, now);
        self.tell(|watcher| watcher.first_token(routed.choice, now));
    }

    /// An answer was heard to its end, with what the engine says it found. What was promised against that.
    pub fn ended(&mut self, mut routed: Routed, prompt: &[Piece], usage: Usage, now: Micros) -> Feedback {
        self.router.observe(&mut routed.decision, Outcome::Ended);
        let end = End::Answered { at: now, output_tokens: usage.output_tokens };
        self.tell(|watcher| watcher.ended(routed.choice, end));
        let prompt_tokens = usage.prompt_tokens;
        let looks_itself = self.digest(prompt);
        let chunks = looks_itself.then(|| chunks(self.root, &self.digests, prompt_tokens));
        let (silence, content) = (Silence::MeansZero, Content::Text);
        let text = self.is_reported().then(|| text(self.text_root, &self.text));
        let answered =
            Answered { model: None, prompt: chunks, texts: text.as_slice(), usage, silence, content };
        self.router.feedback(&mut routed.decision, answered, now)
    }

    /// The worker would not take it.
    pub fn refused(&mut self, mut routed: Routed, now: Micros) {
        self.router.observe(&mut routed.decision, Outcome::Refused);
        self.tell(|watcher| watcher.ended(routed.choice, End::Failed { at: now }));
    }

    /// The worker died with it.
    pub fn lost(&mut self, routed: Routed, now: Micros) -> WorkerId {
        self.probed(routed.node, ProbeResult::Failed, now);
        self.tell(|watcher| watcher.ended(routed.choice, End::Failed { at: now }));
        routed.decision.worker.id
    }

    /// What the router has to say to others.
    pub fn speak(&self, now: Micros) -> Vec<Envelope> {
        self.router.compose_messages(now)
    }

    /// What it says at once when it has routed something.
    pub fn speak_up(&self, now: Micros) -> Vec<Envelope> {
        self.router.compose_urgent(now)
    }

    /// Another router said something; what is to be answered.
    pub fn hear_router(&self, bytes: &[u8], now: Micros) -> Vec<Envelope> {
        self.router.receive(bytes, now).expect("they speak one language")
    }

    /// Bytes of the router's index.
    pub fn index_bytes(&self) -> usize {
        self.router.index_stats().bytes.total()
    }
}

/// A prompt as the index is asked.
fn chunks(root: RootKey, digests: &[u64], prompt_tokens: u32) -> PromptChunks<'_> {
    PromptChunks {
        root,
        digests,
        chunk_bytes: CHUNK_BYTES as u32,
        bytes: prompt_tokens.saturating_mul(TOKEN_BYTES),
    }
}

/// The same as engines report it: a token is four bytes there, too.
fn text(root: RootKey, bytes: &[u8]) -> PromptText<'_> {
    PromptText { root, bytes, unit: Unit::Token }
}

mod listening;

#[cfg(test)]
impl Gate {
    /// Of each engine: how its cache is known, and how much of a prompt it is believed to hold, and beyond that in slower
    /// memory.
    pub fn known(
        &mut self,
        prompt: &[Piece],
        now: Micros,
    ) -> Vec<(usize, warmroute_types::CacheView, [u32; 2])> {
        self.digest(prompt);
        let prompt_tokens = tokens(prompt);
        let chunks = chunks(self.root, &self.digests, prompt_tokens);
        let texts = [text(self.text_root, &self.text)];
        let request = Request { prompt_tokens, prompt: Some(chunks), texts: &texts, ..Request::default() };
        let preview = self.router.preview(&request, &mut self.scratch, now, 0).expect("somebody is there");
        let known = |one: warmroute_router::CandidateRecord| {
            let held = [one.numbers.overlap_tokens, one.numbers.restorable_tokens];
            (self.nodes[one.worker.id.index()], one.view, held)
        };
        preview.candidates.into_iter().map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;
    use warmroute_engine::Profile;

    /// Asks a gate whose engines answer one request at a time, and returns which was asked.
    fn answered(gate: &mut Gate, now: &mut Micros, takes: impl Fn(usize) -> Micros) -> usize {
        let prompt = [Piece { content: mix(now.0), tokens: 1_000 }];
        let asked = Asked { prompt: &prompt, thread: Thread::default(), held_tokens: &[], avoid: &[] };
        let mut routed = gate.route(&asked, *now, 0).unwrap();
        let node = routed.node;
        *now = *now + takes(node);
        gate.first_token(&mut routed, *now);
        let usage = Usage { prompt_tokens: 1_000, output_tokens: 1, cached_tokens: Some(0) };
        gate.ended(routed, &prompt, usage, *now);
        node
    }

    #[test]
    fn an_engine_that_has_become_slow_is_left_alone_for_a_while() {
        let config = WorldConfig::new(Profile::Llama3_1_8b, 6);
        let mut gate = Gate::new(&Rule::parse("round_robin").unwrap(), &config, RouterId(1));
        let mut now = Micros::ZERO;
        (0..6).for_each(|node| gate.join(node, &config.fleet[node], now));
        let soon = Micros::from_millis(20);
        for _ in 0..200 {
            answered(&mut gate, &mut now, |_| soon);
        }
        let late = |node| if node == 0 { Micros::from_secs(2) } else { soon };
        let slow = (0..200).filter(|_| answered(&mut gate, &mut now, late) == 0).count();
        assert!((2..20).contains(&slow), "{slow} of 200, where a turn each would be 33");
    }

    #[test]
    fn every_view_counts_a_prompt_as_it_is() {
        for view in [View::Exact, View::Reported, View::Presumed] {
            let config = WorldConfig { view, ..WorldConfig::new(Profile::Llama3_1_8b, 1) };
            let mut gate = Gate::new(&Rule::parse("cache_aware").unwrap(), &config, RouterId(1));
            gate.join(0, &config.fleet[0], Micros::ZERO);
            for prompt_tokens in (1..200_000).step_by(777) {
                let prompt = [Piece { content: mix(u64::from(prompt_tokens)), tokens: prompt_tokens }];
                let thread = Thread::default();
                let asked = Asked { prompt: &prompt, thread, held_tokens: &[], avoid: &[] };
                let mut routed = gate.route(&asked, Micros::ZERO, 0).unwrap();
                assert_eq!(routed.decision.prompt_tokens, prompt_tokens, "{view}");
                gate.first_token(&mut routed, Micros::ZERO);
                let usage = Usage { prompt_tokens, output_tokens: 1, cached_tokens: Some(0) };
                gate.ended(routed, &prompt, usage, Micros::ZERO);
            }
        }
    }
}
