//! What routing presumes: that a worker holds the prompts that were sent to it, until it must have evicted them.
//!
//! A request is presumed on its worker when it is routed, confirmed when its first token shows that the prompt was
//! computed, withdrawn when it fails before. The laws of ageing:
//!
//! * An answer uses all spans of its prompt. Beyond the worker's capacity the spans that were used longest ago go first,
//!   a chain from its end; and so they do when they are older than the time to live.
//! * What an unanswered request uses stays, and does not count against the capacity: nobody knows yet whether the worker
//!   will ever compute it, so it must not push out what the worker does hold. Its own length is bounded by the capacity,
//!   its time by the time to live, and all of them together by the budget.
//! * The budget takes answered spans only, longest unused first, whoever holds them. Where that is not enough, a new
//!   prompt is not presumed at all.
//!
//! No call does more than a bounded number of steps; what is left is done by the next one.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::account::Account;
use crate::body::ones;
use crate::chain::{Links, Point};
use crate::node::{NodeId, NodeRef};
use crate::record::{Mark, Record, UseId};
use crate::snapshot::Taking;
use crate::tree::Tree;

/// One request on one worker.
#[derive(Debug)]
struct Use {
    worker: u16,
    /// The deepest node in which it waits or still is somebody's last use.
    leaf: NodeId,
    at: Micros,
}

/// One request on one worker that another index has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    pub worker: u16,
    pub root: u64,
    pub at: Micros,
    /// It came after this one.
    pub after: UseId,
}

/// All that is presumed.
pub(crate) struct Presumed {
    accounts: Vec<Option<Box<Account>>>,
    /// Requests that have no first token yet, in the order of arrival.
    waiting: BTreeMap<UseId, Use>,
    /// Answered ones that are still somebody's last use, in the order of their answers.
    answered: BTreeMap<UseId, Use>,
    /// Even, as all of our own.
    next_use: UseId,
    /// The latest time that anybody said.
    now: Micros,
    capacity_tokens: u64,
    untidy: Vec<NodeId>,
    /// Bytes of all accounts.
    account_bytes: usize,
    /// Spans that were evicted because a worker's cache was full, the time was up, or the index was full.
    pub evicted_by_capacity: u64,
    pub evicted_by_age: u64,
    pub evicted_by_budget: u64,
}

/// Bytes of one use in the ordered map, with its share of the tree's nodes.
const USE_BYTES: usize = (size_of::<UseId>() + size_of::<Use>()) * 3 / 2;

/// Uses that are only looked at, for each one that is evicted from.
const LOOKS_A_STEP: usize = 16;

/// Whether a bounded piece of work was all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Done,
    Left,
}

impl Presumed {
    pub fn new(capacity_tokens: u64) -> Presumed {
        Presumed {
            accounts: Vec::new(),
            waiting: BTreeMap::new(),
            answered: BTreeMap::new(),
            next_use: 2,
            now: Micros::ZERO,
            capacity_tokens,
            untidy: Vec::new(),
            account_bytes: 0,
            evicted_by_capacity: 0,
            evicted_by_age: 0,
            evicted_by_budget: 0,
        }
    }

    /// Bytes of the records and uses.
    pub fn bytes(&self) -> usize {
        let seats = self.accounts.capacity() * size_of::<Option<Box<Account>>>();
        seats + self.account_bytes + self.len() * USE_BYTES
    }

    /// Uses that are remembered.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.answered.len()
    }

    /// Tokens that a worker is presumed to hold.
    pub fn tokens(&self, worker: u16) -> u64 {
        self.peek(worker).map_or(0, |account| account.tokens)
    }

    /// Tokens that a worker can hold; of one without a seat, what is believed of anybody.
    pub fn capacity_tokens(&self, worker: Option<u16>) -> u64 {
        let account = worker.and_then(|worker| self.peek(worker));
        account.map_or(self.capacity_tokens, |account| account.capacity_tokens)
    }

    /// Presumes a chain on a worker, from the root on, as far as its cache could hold it.
    pub fn presume(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        root: u64,
        links: Links<'_>,
        now: Micros,
    ) -> UseId {
        self.now = self.now.max(now);
        let by = self.next_id();
        let links = links.first(fitting(links, self.account(worker).capacity_tokens));
        if links.len() == 0 {
            return by;
        }
        let mut point = Point { node: tree.root_or_new(root), at: 0 };
        let mut laid = 0;
        while laid < links.len() {
            let stretch = tree.lay(worker, point, links.from(laid));
            (point, laid) = (stretch.end(), laid + stretch.count);
            let mark = Mark { end: point.at as u8, by };
            self.change(tree, worker, stretch.node, |record| record.wait(mark));
        }
        self.waiting.insert(by, Use { worker, leaf: point.node.id, at: self.now });
        self.weigh(worker);
        by
    }

    /// A number for a request, where nothing is presumed about it.
    pub fn next_id(&mut self) -> UseId {
        let id = self.next_use.max(first_id(self.now));
        self.next_use = id + 2;
        id
    }

    /// A number for a use of which others tell, among those of its time. Those are odd, and our own are even.
    fn past_id(&mut self, at: Micros, after: UseId) -> UseId {
        let mut id = first_id(at).max(after + 1) | 1;
        while self.answered.contains_key(&id) {
            id += 2;
        }
        // Whatever is ours from now on comes later.
        self.next_use = self.next_use.max(id + 1);
        id
    }

    /// When the longest unused was used.
    pub fn oldest(&self) -> Option<Micros> {
        self.answered.first_key_value().map(|(_, oldest)| oldest.at)
    }

    /// Changes what is known of a worker's share of a node, and with it who holds what in the tree.
    fn change<T>(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        node: NodeRef,
        change: impl FnOnce(&mut Record) -> T,
    ) -> T {
        let (result, held) = self.account(worker).change(node, change);
        if held.now != held.before {
            tree.set_mask(node, worker, ones(held.now));
        }
        if held.now < held.before {
            self.untidy.push(node.id);
        }
        result
    }

    /// The first token came: what the request presumed is now believed, and used last by it. What no longer fits the
    /// worker's cache is evicted, within so many steps.
    pub fn confirm(&mut self, tree: &mut Tree, id: UseId, steps_max: usize) {
        let Some(request) = self.waiting.remove(&id) else { return };
        let (worker, by) = (request.worker, self.next_id());
        let mut node = tree.living(request.leaf);
        let mut is_used = false;
        while let Some(here) = node {
            let touch = |record: &mut Record| {
                let mark = record.settle(id)?;
                Some(record.touch(Mark { end: mark.end, by }))
            };
            let Some(displaced) = self.change(tree, worker, here, touch) else { break };
            for other in displaced {
                self.drop_if_displaced(other, here.id);
            }
            node = tree.ledger(here).parent;
            is_used = true;
        }
        if is_used {
            self.answered.insert(by, Use { at: self.now, ..request });
            self.account(worker).order.insert(by);
        }
        self.fit(tree, worker, steps_max);
    }

    /// Adds so many answered uses to what is being taken, from this one on and back in time; `None` when there are no more or it has
    /// enough, else where to go on.
    pub fn save_some(
        &self,
        tree: &Tree,
        from: UseId,
        now: Micros,
        uses_max: usize,
        taking: &mut Taking,
    ) -> Option<UseId> {
        let mut uses = self.answered.range(..=from).rev();
        for (&id, one) in uses.by_ref().take(uses_max) {
            if !taking.has_room() {
                return None;
            }
            if let Some((worker, leaf, spans)) = self.last_used(tree, id) {
                taking.add(tree, worker, leaf, spans.end, now.since(one.at));
            }
        }
        uses.next().map(|(&id, _)| id)
    }

    /// A worker was answered then, as others tell: what was used since, and known here, stays as it is. Returns the use's number.
    pub fn recall(&mut self, tree: &mut Tree, past: Past, links: Links<'_>, steps_max: usize) -> UseId {
        let Past { worker, root, at, after } = past;
        let id = self.past_id(at, after);
        let links = links.first(fitting(links, self.account(worker).capacity_tokens));
        if links.len() == 0 {
            return id;
        }
        let mut point = Point { node: tree.root_or_new(root), at: 0 };
        let mut laid = 0;
        while laid < links.len() {
            let stretch = tree.lay(worker, point, links.from(laid));
            (point, laid) = (stretch.end(), laid + stretch.count);
            let mark = Mark { end: point.at as u8, by: id };
            for other in self.change(tree, worker, stretch.node, |record| record.touch(mark)) {
                self.drop_if_displaced(other, stretch.node.id);
            }
        }
        // Who is nobody's last use in its leaf is so nowhere.
        let is_last = |record: &Record| record.used_last_by(id).is_some();
        if self.record(worker, point.node.id).is_some_and(is_last) {
            self.answered.insert(id, Use { worker, leaf: point.node.id, at });
            self.account(worker).order.insert(id);
            self.fit(tree, worker, steps_max);
        }
        id
    }

    /// A use that is displaced in its leaf is displaced everywhere: who passes the leaf has passed all before it.
    fn drop_if_displaced(&mut self, other: UseId, node: NodeId) {
        if self.answered.get(&other).is_some_and(|old| old.leaf == node) {
            self.drop_use(other);
        }
    }

    fn drop_use(&mut self, id: UseId) {
        if let Some(gone) = self.answered.remove(&id) {
            self.account(gone.worker).order.remove(&id);
        }
    }

    /// The request failed before its first token: what only it presumed is given up.
    pub fn withdraw(&mut self, tree: &mut Tree, id: UseId) {
        let Some(request) = self.waiting.remove(&id) else { return };
        let mut node = tree.living(request.leaf);
        while let Some(here) = node {
            if self.change(tree, request.worker, here, |record| record.settle(id)).is_none() {
                break;
            }
            node = tree.ledger(here).parent;
        }
        self.tidy(tree);
        self.weigh(request.worker);
    }

    pub fn set_capacity(&mut self, worker: u16, tokens: u64) {
        self.account(worker).capacity_tokens = tokens;
    }

    /// Evicts from a worker what does not fit, longest unused first, within so many steps. Where all that it saw is used
    /// by unanswered requests, that is all there is to do.
    pub fn fit(&mut self, tree: &mut Tree, worker: u16, steps_max: usize) -> Work {
        let (mut from, mut evicted) = (0, 0);
        let mut looks = steps_max * LOOKS_A_STEP;
        while looks > 0
            && let Some(excess) = self.account(worker).excess()
            && let Some(&oldest) = self.account(worker).order.range(from..).next()
        {
            match self.evict(tree, oldest, excess) {
                0 => (from, looks) = (oldest + 1, looks - 1),
                spans => (evicted, looks) = (evicted + spans, looks.saturating_sub(LOOKS_A_STEP)),
            }
        }
        self.evicted_by_capacity += evicted;
        self.tidy(tree);
        self.weigh(worker);
        if looks == 0 && evicted > 0 { Work::Left } else { Work::Done }
    }

    /// Evicts spans that this use used last from one node, from the end of the chain, until `tokens` are free; none that
    /// an unanswered request uses. Returns how many spans.
    fn evict(&mut self, tree: &mut Tree, id: UseId, tokens: u64) -> u64 {
        let Some((worker, node, spans)) = self.last_used(tree, id) else { return 0 };
        let floor = spans.start.max(self.record(worker, node.id).map_or(0, Record::pinned));
        if floor >= spans.end {
            return 0;
        }
        let mut end = spans.end - 1;
        let freed = |end: usize| u64::from(node.reach(spans.end).tokens - node.reach(end).tokens);
        while end > floor && freed(end) < tokens {
            end -= 1;
        }
        self.shorten(tree, worker, node, end);
        (spans.end - end) as u64
    }

    /// Where a use is still somebody's last, deepest first.
    fn last_used(&self, tree: &Tree, id: UseId) -> Option<(u16, NodeRef, std::ops::Range<usize>)> {
        let oldest = self.answered.get(&id)?;
        let spans = self.record(oldest.worker, oldest.leaf)?.used_last_by(id)?;
        Some((oldest.worker, tree.node(oldest.leaf), spans))
    }

    /// Forgets all answered uses of a node's spans from `end` on.
    fn shorten(&mut self, tree: &mut Tree, worker: u16, node: NodeRef, end: usize) {
        for id in self.change(tree, worker, node, |record| record.evict(end)) {
            self.move_up(tree, id, node);
        }
    }

    /// A use that lost its leaf now ends in the parent, if it still means anything there.
    fn move_up(&mut self, tree: &Tree, id: UseId, node: NodeRef) {
        let Some(one) = self.answered.get(&id).or_else(|| self.waiting.get(&id)) else { return };
        if one.leaf != node.id {
            return;
        }
        let parent = tree.ledger(node).parent.map_or(0, |parent| parent.id);
        let means = |record: &Record| record.used_last_by(id).is_some() || record.waits(id);
        if self.record(one.worker, parent).is_some_and(means) {
            let uses = if self.answered.contains_key(&id) { &mut self.answered } else { &mut self.waiting };
            uses.entry(id).and_modify(|one| one.leaf = parent);
        } else {
            self.drop_use(id);
            self.waiting.remove(&id);
        }
    }

    /// Ends a use in one node, its deepest: what an unanswered request uses there as well is from now on only waited
    /// for. Returns how many spans nobody holds any more.
    fn retire(&mut self, tree: &mut Tree, id: UseId) -> u64 {
        let Some((worker, node, spans)) = self.last_used(tree, id) else {
            self.drop_use(id);
            return 0;
        };
        let pinned = self.record(worker, node.id).map_or(0, Record::pinned);
        self.shorten(tree, worker, node, spans.start);
        spans.end.saturating_sub(spans.start.max(pinned)) as u64
    }

    /// Ends what was last used `ttl` or longer ago, within so many steps.
    pub fn expire(&mut self, tree: &mut Tree, now: Micros, ttl: Micros, steps_max: usize) -> Work {
        self.now = self.now.max(now);
        for _ in 0..steps_max {
            if let Some(id) = overdue(&self.waiting, now, ttl) {
                self.withdraw(tree, id);
            } else if let Some(id) = overdue(&self.answered, now, ttl) {
                let worker = self.answered[&id].worker;
                self.evicted_by_age += self.retire(tree, id);
                self.tidy(tree);
                self.weigh(worker);
            } else {
                return Work::Done;
            }
        }
        Work::Left
    }

    /// Evicts from whoever has not used it longest. `from` says where to go on looking, and is moved on past what
    /// unanswered requests use; `None` when there is nothing more.
    pub fn evict_oldest(&mut self, tree: &mut Tree, from: &mut UseId) -> Option<u64> {
        let (&id, oldest) = self.answered.range(*from..).next()?;
        let worker = oldest.worker;
        let evicted = self.evict(tree, id, u64::MAX);
        *from = if evicted == 0 { id + 1 } else { id };
        self.evicted_by_budget += evicted;
        self.tidy(tree);
        self.weigh(worker);
        Some(evicted)
    }

    /// Forgets that the worker holds a node's spans from `end` on. Deeper nodes have gone before.
    pub fn forget(&mut self, tree: &mut Tree, worker: u16, node: NodeRef, end: usize) {
        for id in self.change(tree, worker, node, |record| record.trim(end)) {
            self.move_up(tree, id, node);
        }
        self.tidy(tree);
        self.weigh(worker);
    }

    /// The next request's number: what [`Presumed::clear`] forgets lies before it.
    pub fn horizon(&self) -> UseId {
        self.next_use
    }

    /// Forgets what is presumed of one worker since before `horizon`, within so many steps; its capacity stays.
    pub fn clear(&mut self, tree: &mut Tree, worker: u16, horizon: UseId, steps_max: usize) -> Work {
        let is_mine = |(_, one): &(&UseId, &Use)| one.worker == worker;
        let waiting: Vec<UseId> =
            self.waiting.range(..horizon).filter(is_mine).map(|(&id, _)| id).take(steps_max / 4).collect();
        waiting.iter().for_each(|&id| self.withdraw(tree, id));
        let mut work = Work::Left;
        for _ in waiting.len() * 4..steps_max {
            let oldest = self.peek(worker).and_then(|account| account.order.range(..horizon).next().copied());
            let Some(id) = oldest else {
                work = Work::Done;
                break;
            };
            self.retire(tree, id);
        }
        self.tidy(tree);
        if self.peek(worker).is_some() {
            self.weigh(worker);
        }
        work
    }

    fn tidy(&mut self, tree: &mut Tree) {
        while let Some(id) = self.untidy.pop() {
            if let Some(node) = tree.living(id) {
                tree.tidy(node);
            }
        }
    }

    fn record(&self, worker: u16, node: NodeId) -> Option<&Record> {
        self.peek(worker)?.records.get(&node)
    }

    fn peek(&self, worker: u16) -> Option<&Account> {
        self.accounts.get(usize::from(worker))?.as_deref()
    }

    fn account(&mut self, worker: u16) -> &mut Account {
        let seat = usize::from(worker);
        if self.accounts.len() <= seat {
            self.accounts.resize_with(seat + 1, || None);
        }
        let capacity_tokens = self.capacity_tokens;
        self.accounts[seat].get_or_insert_with(|| Box::new(Account::new(capacity_tokens)))
    }

    /// Counts a worker's bytes again after a change.
    fn weigh(&mut self, worker: u16) {
        let account = self.account(worker);
        let (before, after) = (account.weighed, account.bytes());
        account.weighed = after;
        self.account_bytes = self.account_bytes + after - before;
    }
}

/// The first number of a time. Far more than are ever answered in a microsecond follow before the next.
fn first_id(at: Micros) -> UseId {
    at.0.min(1 << 54) << 8
}

/// The first of these, if it is `ttl` old.
fn overdue(uses: &BTreeMap<UseId, Use>, now: Micros, ttl: Micros) -> Option<UseId> {
    let (&id, oldest) = uses.first_key_value()?;
    (now.since(oldest.at) >= ttl).then_some(id)
}

/// How many of the first links a cache of this many tokens can hold.
fn fitting(links: Links<'_>, capacity_tokens: u64) -> usize {
    let mut tokens = 0;
    let fits = |size: &&crate::span::Size| {
        tokens += u64::from(size.tokens());
        tokens <= capacity_tokens
    };
    links.sizes.iter().take_while(fits).count()
}
