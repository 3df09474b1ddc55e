//! What routing presumes: that a worker holds the prompts that were sent to it, until it must have evicted them.
//!
//! A request is presumed on its worker when it is routed, confirmed when its first token shows that the prompt was
//! computed, withdrawn when it fails before. What is presumed ages as in the engine: a request touches all spans of
//! its prompt, and when the worker's capacity in tokens is exceeded, the spans that were used longest ago go first, a
//! chain from its end. Older than the time to live, they go as well.

use std::collections::{BTreeMap, VecDeque};

use warmroute_types::Micros;

use crate::body::ones;
use crate::chain::{Links, Origin, Point, Stretch};
use crate::hash::{self, NumberMap};
use crate::node::{NodeId, NodeRef};
use crate::record::{Mark, Record, UseId};
use crate::tree::Tree;

/// One request on one worker.
#[derive(Debug)]
struct Use {
    worker: u16,
    /// The deepest node in which it still is somebody's last use, or pending.
    leaf: NodeId,
    at: Micros,
    is_pending: bool,
}

/// One worker's presumed cache.
struct Account {
    records: NumberMap<NodeId, Record>,
    /// Uses in the order of arrival; some may be gone.
    queue: VecDeque<UseId>,
    /// Uses of this worker that are not gone.
    uses: usize,
    tokens: u64,
    capacity_tokens: u64,
    /// Bytes of the records beyond the map they are in.
    bytes: usize,
    /// Bytes of the account when they were last counted.
    weighed: usize,
}

/// All that is presumed.
pub(crate) struct Presumed {
    accounts: Vec<Option<Box<Account>>>,
    uses: BTreeMap<UseId, Use>,
    next_use: UseId,
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

impl Presumed {
    pub fn new(capacity_tokens: u64) -> Presumed {
        Presumed {
            accounts: Vec::new(),
            uses: BTreeMap::new(),
            next_use: 1,
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
        seats + self.account_bytes + self.uses.len() * USE_BYTES
    }

    /// Counts a worker's bytes again after a change.
    fn weigh(&mut self, worker: u16) {
        self.compact(worker);
        let account = self.account(worker);
        let (before, after) = (account.weighed, account.bytes());
        account.weighed = after;
        self.account_bytes = self.account_bytes + after - before;
    }

    /// Uses that are remembered.
    pub fn len(&self) -> usize {
        self.uses.len()
    }

    /// Tokens that a worker is presumed to hold.
    pub fn tokens(&self, worker: u16) -> u64 {
        self.accounts.get(usize::from(worker)).and_then(Option::as_ref).map_or(0, |account| account.tokens)
    }

    /// Presumes a chain on a worker, from the root on.
    pub fn presume(
        &mut self,
        tree: &mut Tree,
        worker: u16,
        root: u64,
        links: Links<'_>,
        now: Micros,
    ) -> UseId {
        let by = self.next_use;
        self.next_use += 1;
        if links.len() == 0 {
            return by;
        }
        let mut point = Point { node: tree.root_or_new(root), at: 0 };
        let (mut laid, mut is_pending) = (0, false);
        while laid < links.len() {
            let stretch = tree.lay(worker, point, links.from(laid));
            is_pending |= self.touch(tree, worker, stretch, by);
            (point, laid) = (stretch.end(), laid + stretch.count);
        }
        self.uses.insert(by, Use { worker, leaf: point.node.id, at: now, is_pending });
        self.account(worker).enlist(by);
        self.fit(tree, worker);
        by
    }

    /// Counts a stretch as held and just used. True where it is not confirmed by anybody.
    fn touch(&mut self, tree: &mut Tree, worker: u16, stretch: Stretch, by: UseId) -> bool {
        let Stretch { node, from, .. } = stretch;
        let mark = Mark { end: stretch.end().at as u8, by };
        let held = if stretch.origin == Origin::Laid { from } else { self.held(worker, node.id) };
        if stretch.origin == Origin::Found && usize::from(mark.end) > held {
            tree.set_mask(node, worker, ones(mark.end.into()));
        }
        let account = self.account(worker);
        account.tokens += tokens_between(node, held, mark.end.into());
        let record = account.records.entry(node.id).or_default();
        let before = record.bytes();
        let displaced = record.touch(mark);
        let is_unsure = record.await_first_token(mark);
        account.bytes = account.bytes + record.bytes() - before;
        for other in displaced {
            self.drop_if_displaced(other, node.id);
        }
        is_unsure
    }

    /// A use that is displaced in its leaf is displaced everywhere: who passes the leaf has passed all before it.
    fn drop_if_displaced(&mut self, other: UseId, node: NodeId) {
        if self.uses.get(&other).is_some_and(|old| old.leaf == node && !old.is_pending) {
            self.drop_use(other);
        }
    }

    fn drop_use(&mut self, id: UseId) {
        if let Some(gone) = self.uses.remove(&id) {
            self.account(gone.worker).uses -= 1;
        }
    }

    /// The first token came: what the use presumed is now believed.
    pub fn confirm(&mut self, tree: &Tree, id: UseId) {
        self.settle(tree, id, |record, mark| record.sure = record.sure.max(mark.end));
        self.forget_if_displaced(id);
    }

    /// The request failed before its first token: what only it presumed is given up.
    pub fn withdraw(&mut self, tree: &mut Tree, id: UseId) {
        let path = self.settle(tree, id, |_, _| ());
        let Some(worker) = self.uses.get(&id).map(|gone| gone.worker) else { return };
        for node in path {
            let supported = self.record(worker, node).map_or(0, Record::supported);
            if supported < self.held(worker, node) {
                self.trim(tree, worker, tree.node(node), supported);
            }
        }
        self.forget_if_displaced(id);
        self.tidy(tree);
        self.weigh(worker);
    }

    /// Ends the waiting of a use, from its leaf upwards. Returns the nodes where it had waited.
    fn settle(&mut self, tree: &Tree, id: UseId, then: impl Fn(&mut Record, Mark)) -> Vec<NodeId> {
        let mut path = Vec::new();
        let Some(pending) = self.uses.get_mut(&id).filter(|pending| pending.is_pending) else { return path };
        pending.is_pending = false;
        let (worker, mut node) = (pending.worker, Some(tree.node(pending.leaf)));
        while let Some(here) = node {
            let Some(record) = self.account(worker).records.get_mut(&here.id) else { break };
            let before = record.bytes();
            let Some(mark) = record.settle(id) else { break };
            then(record, mark);
            let after = record.bytes();
            let account = self.account(worker);
            account.bytes = account.bytes + after - before;
            path.push(here.id);
            node = tree.ledger(&here).parent;
        }
        path
    }

    /// Forgets a use that is nobody's last any more.
    fn forget_if_displaced(&mut self, id: UseId) {
        let Some(one) = self.uses.get(&id) else { return };
        let is_last =
            self.record(one.worker, one.leaf).is_some_and(|record| record.used_last_by(id).is_some());
        if !is_last && !one.is_pending {
            self.drop_use(id);
        }
    }

    /// Changes a worker's capacity, and evicts what no longer fits.
    pub fn set_capacity(&mut self, tree: &mut Tree, worker: u16, tokens: u64) {
        self.account(worker).capacity_tokens = tokens;
        self.fit(tree, worker);
    }

    /// Evicts from a worker what does not fit.
    fn fit(&mut self, tree: &mut Tree, worker: u16) {
        let mut evicted = 0;
        while let Some(excess) = self.account(worker).excess() {
            let Some(oldest) = self.oldest_of(worker) else { break };
            evicted += self.evict(tree, oldest, excess);
        }
        self.evicted_by_capacity += evicted;
        self.tidy(tree);
        self.weigh(worker);
    }

    /// The use of a worker that came first and is not gone.
    fn oldest_of(&mut self, worker: u16) -> Option<UseId> {
        loop {
            let oldest = *self.account(worker).queue.front()?;
            if self.is_last_of_any(oldest) {
                return Some(oldest);
            }
            self.account(worker).queue.pop_front();
        }
    }

    fn is_last_of_any(&self, id: UseId) -> bool {
        let Some(one) = self.uses.get(&id) else { return false };
        self.record(one.worker, one.leaf).is_some_and(|record| record.used_last_by(id).is_some())
    }

    /// Evicts spans that this use used last from one node, from the end of the chain, until `tokens` are free.
    /// Returns how many spans.
    fn evict(&mut self, tree: &mut Tree, id: UseId, tokens: u64) -> u64 {
        let Some(oldest) = self.uses.get(&id) else { return 0 };
        let (worker, node) = (oldest.worker, tree.node(oldest.leaf));
        let Some(spans) = self.record(worker, node.id).and_then(|record| record.used_last_by(id)) else {
            return 0;
        };
        let mut end = spans.end;
        while end > spans.start && tokens_between(node, end, spans.end) < tokens {
            end -= 1;
        }
        self.trim(tree, worker, node, end.min(spans.end - 1));
        (spans.end - end.min(spans.end - 1)) as u64
    }

    /// Evicts all that this use used last, and forgets it. Returns how many spans.
    fn evict_all(&mut self, tree: &mut Tree, id: UseId) -> u64 {
        let mut evicted = 0;
        let worker = self.uses.get(&id).map(|one| one.worker);
        while self.is_last_of_any(id) {
            evicted += self.evict(tree, id, u64::MAX);
        }
        self.drop_use(id);
        worker.into_iter().for_each(|worker| self.weigh(worker));
        evicted
    }

    /// Evicts what was last used `ttl` or longer ago.
    pub fn expire(&mut self, tree: &mut Tree, now: Micros, ttl: Micros) {
        while let Some((&id, oldest)) = self.uses.first_key_value() {
            if now.since(oldest.at) < ttl {
                break;
            }
            self.withdraw(tree, id);
            let evicted = self.evict_all(tree, id);
            self.evicted_by_age += evicted;
        }
        self.tidy(tree);
    }

    /// Evicts the oldest use of all; false where there is none.
    pub fn evict_oldest(&mut self, tree: &mut Tree) -> bool {
        let Some((&id, _)) = self.uses.first_key_value() else { return false };
        self.withdraw(tree, id);
        let evicted = self.evict_all(tree, id);
        self.evicted_by_budget += evicted;
        self.tidy(tree);
        true
    }

    /// Takes all spans of a node from `end` on from a worker. Whoever used them last may have spans left further up.
    fn trim(&mut self, tree: &mut Tree, worker: u16, node: NodeRef, end: usize) {
        let account = self.account(worker);
        let Some(record) = account.records.get_mut(&node.id) else { return };
        let (held, before) = (record.end(), record.bytes());
        let gone = record.trim(end);
        account.bytes = account.bytes + record.bytes() - before;
        account.tokens -= tokens_between(node, end, held);
        if end == 0 {
            let record = account.records.remove(&node.id).unwrap_or_default();
            account.bytes -= record.bytes();
            hash::shrink(&mut account.records);
        }
        tree.set_mask(node, worker, ones(end));
        self.untidy.push(node.id);
        for id in gone {
            self.move_up(tree, id, node, end);
        }
    }

    /// A use that lost its leaf now ends in the parent, if it still means anything there.
    fn move_up(&mut self, tree: &Tree, id: UseId, node: NodeRef, end: usize) {
        let parent = tree.ledger(&node).parent;
        let Some(one) = self.uses.get_mut(&id).filter(|one| one.leaf == node.id) else { return };
        let is_waiting_here = end > 0 && one.is_pending;
        match parent {
            _ if is_waiting_here => return,
            Some(parent) => one.leaf = parent.id,
            None => one.is_pending = false,
        }
        let worker = one.worker;
        let still_waits = self.record(worker, self.uses[&id].leaf).is_some_and(|record| record.waits(id));
        if let Some(one) = self.uses.get_mut(&id) {
            one.is_pending &= still_waits;
        }
        self.forget_if_displaced(id);
    }

    /// Forgets that the worker holds these spans, given as (node, bits), deepest nodes first.
    pub fn forget(&mut self, tree: &mut Tree, worker: u16, spans: &[(NodeId, u64)]) {
        for &(id, bits) in spans {
            self.trim(tree, worker, tree.node(id), bits.trailing_zeros() as usize);
        }
        self.tidy(tree);
        self.weigh(worker);
    }

    /// Forgets all that is presumed of one worker; its capacity stays.
    pub fn clear(&mut self, tree: &mut Tree, worker: u16) {
        let Some(account) = self.accounts.get_mut(usize::from(worker)).and_then(Option::as_mut) else {
            return;
        };
        let (capacity_tokens, weighed) = (account.capacity_tokens, account.weighed);
        let records = std::mem::take(&mut account.records);
        **account = Account { weighed, ..Account::new(capacity_tokens) };
        for id in records.into_keys() {
            tree.set_mask(tree.node(id), worker, 0);
            self.untidy.push(id);
        }
        self.uses.retain(|_, one| one.worker != worker);
        self.tidy(tree);
        self.weigh(worker);
    }

    fn tidy(&mut self, tree: &mut Tree) {
        while let Some(id) = self.untidy.pop() {
            if let Some(node) = tree.living(id) {
                tree.tidy(node);
            }
        }
    }

    fn record(&self, worker: u16, node: NodeId) -> Option<&Record> {
        self.accounts.get(usize::from(worker))?.as_ref()?.records.get(&node)
    }

    fn held(&self, worker: u16, node: NodeId) -> usize {
        self.record(worker, node).map_or(0, Record::end)
    }

    /// Forgets uses in the queue that are gone, once they are the greater part of it.
    fn compact(&mut self, worker: u16) {
        let uses = &self.uses;
        let Some(account) = self.accounts.get_mut(usize::from(worker)).and_then(Option::as_mut) else {
            return;
        };
        if account.queue.len() > 2 * account.uses + 64 || account.uses == 0 {
            account.queue.retain(|id| uses.contains_key(id));
            account.queue.shrink_to_fit();
        }
    }

    fn account(&mut self, worker: u16) -> &mut Account {
        let seat = usize::from(worker);
        if self.accounts.len() <= seat {
            self.accounts.resize_with(seat + 1, || None);
        }
        let capacity_tokens = self.capacity_tokens;
        self.accounts[seat].get_or_insert_with(|| Box::new(Account::new(capacity_tokens)))
    }
}

impl Account {
    fn new(capacity_tokens: u64) -> Account {
        Account {
            records: NumberMap::default(),
            queue: VecDeque::new(),
            uses: 0,
            tokens: 0,
            capacity_tokens,
            bytes: 0,
            weighed: 0,
        }
    }

    fn enlist(&mut self, id: UseId) {
        self.uses += 1;
        self.queue.push_back(id);
    }

    /// Tokens beyond the capacity, if there are any.
    fn excess(&self) -> Option<u64> {
        self.tokens.checked_sub(self.capacity_tokens).filter(|&excess| excess > 0)
    }

    fn bytes(&self) -> usize {
        size_of::<Account>()
            + hash::allocated(&self.records)
            + self.queue.capacity() * size_of::<UseId>()
            + self.bytes
    }
}

/// Tokens of a node's spans `from..to`.
fn tokens_between(node: NodeRef, from: usize, to: usize) -> u64 {
    let body = node.body();
    (from..to).map(|at| u64::from(body.size(at).tokens())).sum()
}
