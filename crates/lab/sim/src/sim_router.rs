//! Router in the lab: the production router and the mapping between its workers and the engines.
//!
//! The router's index knows what was reported or presumed. To measure perfect or outdated knowledge, the
//! request carries what every engine holds; choosing, booking and releasing are the production code.

use std::sync::Arc;

use warmroute_engine::Config as EngineConfig;
use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_peers::Envelope;
use warmroute_policy::Policy;
use warmroute_prompt::CHUNK_BYTES;
use warmroute_router::{
    Answered, Change, Config, Decision, Family, Feedback, Matching, NoRoute, Outcome, PromptChunks,
    PromptText, Request, Router, Scratch, Silence, Unit,
};
use warmroute_types::{Address, CacheCapacity, LoadReport, Micros, RouterId, Usage, WorkerId};

use crate::built_rule::{BuiltRule, Needs};
use crate::feed_follower::{FeedFollower, Replays};
use crate::key_span::KeySpan;
use crate::prompt::{chunk_digests, token_ids, tokens};
use crate::rule::Rule;
use crate::session::Thread;
use crate::watch::{End, Watcher};
use crate::{Config as SimConfig, Piece, View};

/// Bytes per token. This is the router's prior, and the token counts of the engines confirm it.
const TOKEN_BYTES: u32 = 4;
const CHUNK_TOKENS: u32 = CHUNK_BYTES as u32 / TOKEN_BYTES;

/// One simulated router.
pub struct SimRouter {
    router: Router<Box<dyn Policy>>,
    /// Observer of the rule, which learns what policies do not see.
    watcher: Option<Arc<dyn Watcher>>,
    /// Number of choices so far.
    choices: u64,
    scratch: Scratch,
    needs: Needs,
    key_span: KeySpan,
    view: View,
    root: RootKey,
    digests: Vec<u64>,
    /// Namespace of reported prompts. `ids` and `text` hold the current prompt as engines report it: token
    /// ids, four bytes each.
    text_root: RootKey,
    ids: Vec<u32>,
    text: Vec<u8>,
    /// Tokens match exactly. Where answers tokenize otherwise when repeated, text is matched, as with real engines.
    unit: Unit,
    /// Event feed per engine; empty if events are not followed.
    followers: Vec<FeedFollower>,
    /// Block size, the same for all engines.
    block_tokens: u32,
    /// Worker per engine, while it is in the fleet.
    workers: Vec<Option<Arc<Worker>>>,
    /// Engine per worker index.
    nodes: Vec<usize>,
    /// Tokens of the current prompt known to be cached, per worker index.
    known_tokens: Vec<u32>,
}

/// A request to route.
#[derive(Clone, Copy, Debug)]
pub struct RoutingRequest<'a> {
    pub prompt: &'a [Piece],
    pub thread: Thread,
    /// Tokens each engine is known to hold; empty if the router finds out by itself.
    pub held_tokens: &'a [u32],
    /// Workers that failed this request.
    pub avoid: &'a [WorkerId],
}

/// A routed request.
#[derive(Debug)]
pub struct Routed {
    pub decision: Decision,
    pub node: usize,
    /// Number of the choice, for the observer.
    choice: u64,
    /// The prompt's chunks; empty if the router looks up no overlap in its own index.
    digests: Vec<u64>,
    pub predicted_tokens: Option<u32>,
    /// Tokens expected from slower memory, beyond the predicted ones.
    pub restorable_tokens: u32,
}

impl SimRouter {
    /// Creates a router without workers.
    pub fn new(rule: &Rule, config: &SimConfig, name: RouterId) -> SimRouter {
        let (view, nodes, needs) = (config.view, config.fleet.len(), rule.needs());
        let replays = if config.replay_batches > 0 { Replays::Answered } else { Replays::None };
        let followed = if view == View::Reported && needs.overlap { nodes } else { 0 };
        let BuiltRule { policy, watcher } = rule.make();
        let router = Router::new(policy, Config { without_view: config.without_view, ..Config::default() });
        if config.sharing.is_some() {
            router.peering().start(name, warmroute_peers::Config::default());
        }
        let namespace = Namespace { model: "lab", lora: None, salt: None, cut: 0, source: Source::Presumed };
        SimRouter {
            text_root: router.inspect().text_root(&Family::default(), None, None, Unit::Token),
            ids: Vec::new(),
            text: Vec::new(),
            unit: if config.retokenized > 0.0 { Unit::Byte } else { Unit::Token },
            router,
            watcher,
            choices: 0,
            scratch: Scratch::default(),
            needs,
            key_span: rule.key_span(),
            view,
            root: RootKey::of(&namespace),
            digests: Vec::new(),
            followers: (0..followed).map(|_| FeedFollower::new(replays)).collect(),
            block_tokens: config.fleet[0].block_size,
            workers: vec![None; nodes],
            nodes: Vec::new(),
            known_tokens: Vec::new(),
        }
    }

    /// Adds an engine and marks it healthy.
    pub fn join(&mut self, node: usize, engine: &EngineConfig, now: Micros) {
        let address = Address::new(format!("http://engine-{node}"));
        let worker = self.router.join(address, Models::Any);
        let worker = worker.expect("the config was validated: the fleet has room for all engines");
        let worker_index = worker.id.index();
        self.nodes.resize(self.nodes.len().max(worker_index + 1), usize::MAX);
        self.nodes[worker_index] = node;
        self.workers[node] = Some(Arc::clone(&worker));
        self.notify_watcher(|watcher| watcher.joined(worker.id, engine));
        self.probed(node, ProbeResult::Answered, now);
        let capacity = CacheCapacity { tokens: engine.kv_tokens, block_tokens: engine.block_size };
        self.router.apply(Change::Capacity { worker: Arc::clone(&worker), capacity });
        if let Some(follower) = self.followers.get_mut(node) {
            follower.renew();
            let matching = Some(Matching::tokens(Family::default()));
            self.router.apply(Change::Aligned { worker, matching });
        }
    }

    /// Marks a recovered engine healthy.
    pub fn recovered(&self, node: usize, now: Micros) {
        self.probed(node, ProbeResult::Answered, now);
    }

    /// Removes an engine from the fleet.
    pub fn leave(&mut self, node: usize) {
        if let Some(worker) = self.workers[node].take() {
            self.router.apply(Change::Leave { address: worker.address.clone() });
        }
    }

    /// Applies the result of a health probe.
    fn probed(&self, node: usize, result: ProbeResult, at: Micros) {
        if let Some(worker) = &self.workers[node] {
            self.router.apply(Change::Probed { worker: Arc::clone(worker), result, at });
        }
    }

    /// Applies an engine's report of its own load.
    pub fn report_load(&self, node: usize, report: LoadReport) {
        if let Some(worker) = &self.workers[node] {
            self.router.apply(Change::Load { worker: Arc::clone(worker), report });
        }
    }

    /// Expires old state.
    pub fn tick(&self, now: Micros) {
        self.router.apply(Change::Expired { at: now });
    }

    /// Chooses a worker and books the request.
    pub fn route(&mut self, asked: &RoutingRequest<'_>, now: Micros, random: u64) -> Result<Routed, NoRoute> {
        let prompt_tokens = tokens(asked.prompt);
        self.set_known_tokens(asked);
        let uses_index = self.prepare_prompt(asked.prompt);
        let prompt = uses_index.then(|| chunks(self.root, &self.digests, prompt_tokens));
        let text = self.is_reported().then(|| text(self.text_root, &self.text, self.unit));
        let prefix_key = self.needs.prefix_key.then(|| self.key_span.key(asked.prompt, asked.thread));
        let request = Request {
            prompt_tokens,
            prompt,
            texts: text.as_slice(),
            session_key: asked.thread.key.filter(|_| self.needs.session_key),
            prefix_key: prefix_key.flatten(),
            avoid: asked.avoid,
            known_tokens: (!asked.held_tokens.is_empty()).then_some(&self.known_tokens),
            ..Request::default()
        };
        self.choices += 1;
        let choice = self.choices;
        self.watcher.iter().for_each(|watcher| watcher.asked(choice, now));
        let decision = self.router.route(&request, &mut self.scratch, now, random)?;
        let worker_index = decision.worker.id.index();
        let node = self.nodes[worker_index];
        let predicted_tokens = decision.cached_tokens;
        let chosen = decision.candidate_records[0].as_ref();
        let restorable_tokens = chosen.map_or(0, |chosen| chosen.numbers.restorable_tokens);
        let digests = if uses_index { self.digests.clone() } else { Vec::new() };
        Ok(Routed { decision, node, choice, digests, predicted_tokens, restorable_tokens })
    }

    fn notify_watcher(&self, what: impl Fn(&dyn Watcher)) {
        self.watcher.iter().for_each(|watcher| what(watcher.as_ref()));
    }

    /// Copies the known tokens from engine order to worker order, if any are known.
    fn set_known_tokens(&mut self, asked: &RoutingRequest<'_>) {
        if asked.held_tokens.is_empty() {
            return;
        }
        let held = |&node: &usize| asked.held_tokens.get(node).copied().unwrap_or(0);
        self.known_tokens.clear();
        self.known_tokens.extend(self.nodes.iter().map(held));
    }

    /// Prepares the prompt's digests and tokens. Returns whether the router looks up overlap in its own
    /// index.
    fn prepare_prompt(&mut self, prompt: &[Piece]) -> bool {
        let uses_index = self.uses_index();
        if uses_index {
            chunk_digests(prompt, CHUNK_TOKENS, &mut self.digests);
        }
        self.spell(prompt);
        uses_index
    }

    /// Prepares the prompt's tokens, if prompts are matched against reported blocks.
    fn spell(&mut self, prompt: &[Piece]) {
        if self.is_reported() {
            self.ids.clear();
            token_ids(prompt.iter().copied(), 0, tokens(prompt), &mut self.ids);
            self.text.clear();
            self.text.extend(self.ids.iter().flat_map(|id| id.to_le_bytes()));
        }
    }

    /// Whether the router looks up overlap in its own index.
    fn uses_index(&self) -> bool {
        self.view != View::Exact && self.needs.overlap
    }

    /// Whether prompts are matched against reported blocks.
    fn is_reported(&self) -> bool {
        self.view == View::Reported && self.needs.overlap
    }

    /// Records a first token. A worker far slower than predicted is avoided for a while, as in production.
    pub fn first_token(&mut self, routed: &mut Routed, now: Micros) {
        self.router.observe(&mut routed.decision, Outcome::FirstToken { at: now });
        self.notify_watcher(|watcher| watcher.first_token(routed.choice, now));
    }

    /// Records a complete answer with the engine's usage, and compares it with the prediction.
    pub fn ended(&mut self, mut routed: Routed, prompt: &[Piece], usage: Usage, now: Micros) -> Feedback {
        let end = End::Answered { at: now, output_tokens: usage.output_tokens };
        self.notify_watcher(|watcher| watcher.ended(routed.choice, end));
        self.spell(prompt);
        let prompt = self.uses_index().then(|| chunks(self.root, &routed.digests, usage.prompt_tokens));
        let text = self.is_reported().then(|| text(self.text_root, &self.text, self.unit));
        let silence = Silence::MeansZero;
        let request = &Request { prompt, texts: text.as_slice(), silence, ..Request::default() };
        let answered = Some(Answered { request, usage, at: now });
        let observed = self.router.observe(&mut routed.decision, Outcome::Ended { answered });
        observed.feedback.expect("an answer with token counts is compared")
    }

    /// Records that the worker refused the request.
    pub fn refused(&mut self, mut routed: Routed, now: Micros) {
        self.router.observe(&mut routed.decision, Outcome::Refused);
        self.notify_watcher(|watcher| watcher.ended(routed.choice, End::Failed { at: now }));
    }

    /// Records that the worker died. Returns its id.
    pub fn lost(&mut self, routed: Routed, now: Micros) -> WorkerId {
        self.probed(routed.node, ProbeResult::Failed, now);
        self.notify_watcher(|watcher| watcher.ended(routed.choice, End::Failed { at: now }));
        routed.decision.worker.id
    }

    /// Messages for peers at the batch interval.
    pub fn share_batch(&self, now: Micros) -> Vec<Envelope> {
        self.router.peering().compose_messages(now)
    }

    /// Messages for peers right after routing a request, and after its first token.
    pub fn share_now(&self, now: Micros) -> Vec<Envelope> {
        let peering = self.router.peering();
        if peering.may_send_now(now) { peering.compose_messages(now) } else { Vec::new() }
    }

    /// When the next batch is due.
    pub fn next_batch_in(&self, now: Micros) -> Micros {
        self.router.peering().next_compose_in(now)
    }

    /// Applies a peer's message. Returns the replies to send.
    pub fn receive_from_peer(&self, bytes: &[u8], now: Micros) -> Vec<Envelope> {
        self.router.peering().receive(bytes, now).expect("all routers of a run use one protocol version")
    }

    /// Size of the router's index, in bytes.
    pub fn index_bytes(&self) -> usize {
        self.router.inspect().index_stats().bytes.total()
    }
}

/// A prompt as digests for the presumed index.
fn chunks(root: RootKey, digests: &[u64], prompt_tokens: u32) -> PromptChunks<'_> {
    PromptChunks {
        root,
        digests,
        chunk_bytes: CHUNK_BYTES as u32,
        bytes: prompt_tokens.saturating_mul(TOKEN_BYTES),
    }
}

/// A prompt as engines report it, also with four bytes per token.
fn text(root: RootKey, bytes: &[u8], unit: Unit) -> PromptText<'_> {
    PromptText { root, bytes, unit }
}

mod event_feeds;

#[cfg(test)]
impl SimRouter {
    /// Per engine: the state of its cache view, and the prompt tokens believed cached in GPU memory and in
    /// slower memory.
    pub fn known(
        &mut self,
        prompt: &[Piece],
        now: Micros,
    ) -> Vec<(usize, warmroute_types::CacheView, [u32; 2])> {
        self.prepare_prompt(prompt);
        let prompt_tokens = tokens(prompt);
        let chunks = chunks(self.root, &self.digests, prompt_tokens);
        let texts = [text(self.text_root, &self.text, self.unit)];
        let request = Request { prompt_tokens, prompt: Some(chunks), texts: &texts, ..Request::default() };
        let preview = self
            .router
            .inspect()
            .preview(&request, &mut self.scratch, now, 0)
            .expect("the fleet has a worker");
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

    /// Routes one request to completion, with engines that serve one at a time. Returns the engine chosen.
    fn answered(router: &mut SimRouter, now: &mut Micros, takes: impl Fn(usize) -> Micros) -> usize {
        let prompt = [Piece { content: mix(now.0), tokens: 1_000 }];
        let asked =
            RoutingRequest { prompt: &prompt, thread: Thread::default(), held_tokens: &[], avoid: &[] };
        let mut routed = router.route(&asked, *now, 0).unwrap();
        let node = routed.node;
        *now = *now + takes(node);
        router.first_token(&mut routed, *now);
        let usage = Usage { prompt_tokens: 1_000, output_tokens: 1, cached_tokens: Some(0) };
        router.ended(routed, &prompt, usage, *now);
        node
    }

    #[test]
    fn an_engine_that_became_slow_is_avoided_for_a_while() {
        let config = SimConfig::new(Profile::Llama3_1_8b, 6);
        let mut router = SimRouter::new(&Rule::parse("round_robin").unwrap(), &config, RouterId(1));
        let mut now = Micros::ZERO;
        (0..6).for_each(|node| router.join(node, &config.fleet[node], now));
        let soon = Micros::from_millis(20);
        for _ in 0..200 {
            answered(&mut router, &mut now, |_| soon);
        }
        let late = |node| if node == 0 { Micros::from_secs(2) } else { soon };
        let slow = (0..200).filter(|_| answered(&mut router, &mut now, late) == 0).count();
        assert!((2..20).contains(&slow), "{slow} of 200, where a turn each would be 33");
    }

    #[test]
    fn every_view_counts_all_prompt_tokens() {
        for view in [View::Exact, View::Reported, View::Presumed] {
            let config = SimConfig { view, ..SimConfig::new(Profile::Llama3_1_8b, 1) };
            let mut router = SimRouter::new(&Rule::parse("cache_aware").unwrap(), &config, RouterId(1));
            router.join(0, &config.fleet[0], Micros::ZERO);
            for prompt_tokens in (1..200_000).step_by(777) {
                let prompt = [Piece { content: mix(u64::from(prompt_tokens)), tokens: prompt_tokens }];
                let thread = Thread::default();
                let asked = RoutingRequest { prompt: &prompt, thread, held_tokens: &[], avoid: &[] };
                let mut routed = router.route(&asked, Micros::ZERO, 0).unwrap();
                assert_eq!(routed.decision.prompt_tokens, prompt_tokens, "{view}");
                router.first_token(&mut routed, Micros::ZERO);
                let usage = Usage { prompt_tokens, output_tokens: 1, cached_tokens: Some(0) };
                router.ended(routed, &prompt, usage, Micros::ZERO);
            }
        }
    }
}
