//! Memories behind the GPU's: the host's, and a pool that several engines share.
//!
//! ```text
//!   GPU ──evicted──▶ host ──evicted────▶ pool        a fetch: latency, then bytes / bandwidth
//!    ▲                │ moved               │ copied
//!    └────────────────┴─────────────────────┘
//! ```
//!
//! A prompt uses the beginning that the GPU holds; the blocks after it may be here. They are fetched, all or none, when that
//! takes less time than computing them. The step that admits the prompt waits for the fetch, with all its sequences. Real
//! connectors hide a part of it behind the computation, so a fetch costs rather too much here than too little.

use warmroute_types::Micros;

use crate::lru_tier::{LruTier, Pool, PoolMember};
use crate::{BlockName, Config, Happened, Memory, StepCost, Tier};

/// An engine's slower memories.
#[derive(Clone, Debug)]
pub struct Tiers {
    host: Option<(LruTier, Tier)>,
    pool: Option<(PoolMember, Tier)>,
    /// Events of these memories that are not reported yet.
    pub events: Vec<Happened>,
    cost: StepCost,
    block_size: u32,
    step_tokens_max: u32,
    block_bytes: u64,
}

/// The blocks that could be fetched, and the time for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    pub host_blocks: u32,
    pub pool_blocks: u32,
    pub takes: Micros,
}

impl Offer {
    pub fn blocks(&self) -> u32 {
        self.host_blocks + self.pool_blocks
    }
}

impl Tiers {
    /// The configured memories; `None` where there is only the GPU. Without a shared pool the engine has its own.
    pub fn new(config: &Config, pool: Option<Pool>) -> Option<Tiers> {
        let blocks = |tier: &Tier| tier.tokens / u64::from(config.block_size);
        let host = config.host.map(|tier| (LruTier::new(blocks(&tier)), tier));
        let pool = config.pool.map(|tier| (pool.unwrap_or_else(|| Pool::new(blocks(&tier))).join(), tier));
        let is_any = host.is_some() || pool.is_some();
        is_any.then(|| Tiers {
            host,
            pool,
            events: Vec::new(),
            cost: config.profile.cost().at_speed(config.speed_percent),
            block_size: config.block_size,
            step_tokens_max: config.step_tokens_max,
            block_bytes: u64::from(config.block_size) * config.profile.kv_token_bytes(),
        })
    }

    /// Keeps a block that the GPU evicted.
    pub fn keep(&mut self, name: BlockName) {
        let memory = Memory::Host;
        let pushed_out = match &mut self.host {
            Some((host, _)) => {
                if !host.has(name) {
                    self.events.push(Happened::Kept { name, memory });
                }
                host.put(name)
            }
            None => Some(name),
        };
        let Some(name) = pushed_out else { return };
        self.pool.iter().for_each(|(pool, _)| pool.put(name, &mut self.events));
        if self.host.is_some() {
            self.events.push(Happened::Dropped { name, memory });
        }
    }

    /// Removes blocks from the host that the GPU has again.
    pub fn release(&mut self, names: &[BlockName]) {
        let Some((host, _)) = &mut self.host else { return };
        let gone = names.iter().filter(|&&name| host.take(name));
        self.events.extend(gone.map(|&name| Happened::Dropped { name, memory: Memory::Host }));
    }

    /// Reports blocks of this engine that others evicted from the pool.
    pub fn report_lost(&mut self) {
        self.pool.iter().for_each(|(pool, _)| pool.report_lost(&mut self.events));
    }

    /// Empties the host memory after a restart or a clear. The pool's blocks stay, but count as unreported.
    pub fn restart(&mut self) {
        self.host.iter_mut().for_each(|(host, _)| host.clear());
        self.pool.iter().for_each(|(pool, _)| pool.forget());
        self.events.clear();
    }

    /// The blocks of a chain, from its start, that are worth fetching for a prompt with `computed` tokens before and
    /// `remaining` tokens including them.
    pub fn offer(&self, chain: &[BlockName], computed: u32, remaining: u32) -> Option<Offer> {
        let offer = self.reach(chain);
        let fetched = offer.blocks() * self.block_size;
        let pays = fetched > 0
            && self.computing(computed + fetched, remaining - fetched) + offer.takes
                < self.computing(computed, remaining);
        pays.then_some(offer)
    }

    fn computing(&self, computed: u32, remaining: u32) -> Micros {
        self.cost.of_prompt(computed, remaining, self.step_tokens_max)
    }

    /// The blocks of a chain, from its start, and the time to fetch them.
    pub fn reach(&self, chain: &[BlockName]) -> Offer {
        let pool = self.pool.as_ref().map(|(pool, _)| pool.look());
        let mut offer = Offer::default();
        for &name in chain {
            if self.host.as_ref().is_some_and(|(host, _)| host.has(name)) {
                offer.host_blocks += 1;
            } else if pool.as_ref().is_some_and(|pool| pool.has(name)) {
                offer.pool_blocks += 1;
            } else {
                break;
            }
        }
        let takes = |tier: Option<Tier>, blocks: u32| {
            let bytes = u64::from(blocks) * self.block_bytes;
            tier.filter(|_| blocks > 0).map_or(Micros::ZERO, |tier| tier.takes(bytes))
        };
        let (host, pool) = (self.host.as_ref().map(|one| one.1), self.pool.as_ref().map(|one| one.1));
        offer.takes = takes(host, offer.host_blocks) + takes(pool, offer.pool_blocks);
        offer
    }

    /// Fetches an offer: the host's blocks move, the pool's blocks are copied and count as used.
    pub fn fetch(&mut self, chain: &[BlockName]) {
        let is_on_host = |name: &BlockName| self.host.as_ref().is_some_and(|(host, _)| host.has(*name));
        let copied = chain.iter().filter(|name| !is_on_host(name));
        copied.for_each(|&name| self.pool.iter().for_each(|(pool, _)| pool.touch(name)));
        self.release(chain);
    }

    /// Blocks in host memory.
    #[cfg(test)]
    pub fn host_blocks(&self) -> usize {
        self.host.as_ref().map_or(0, |(host, _)| host.len())
    }

    /// Panics unless all limits hold and the host has none of `names`.
    #[cfg(test)]
    pub fn check(&self, mut names: impl Iterator<Item = BlockName>) {
        let blocks = |tier: &Tier| tier.tokens / u64::from(self.block_size);
        if let Some((host, tier)) = &self.host {
            assert!(host.len() as u64 <= blocks(tier), "the host is bounded");
            assert!(!names.any(|name| host.has(name)), "a block is on the GPU or on the host, never on both");
        }
        self.pool.iter().for_each(|(pool, tier)| assert!(pool.look().len() as u64 <= blocks(tier)));
    }
}
