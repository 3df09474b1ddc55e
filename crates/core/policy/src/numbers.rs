//! The input of a policy (the request and its candidates) and its output (a choice with a reason).

use warmroute_types::{Micros, WorkerId};

/// The request, as numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyRequest {
    /// Tokens of the prompt: counted by a tokenizer where there is one, otherwise estimated from its bytes.
    pub prompt_tokens: u32,
    /// Hash of the session, user or tenant, if the request names one.
    pub session_key: Option<u64>,
    /// Hash of the prompt's beginning, if the request has a prompt.
    pub prefix_key: Option<u64>,
    /// Fresh random bits for this decision.
    pub random: u64,
    /// Number of earlier decisions in the same pool.
    pub turn: u64,
    /// This router's position among the routers of the same fleet, in an order on which all agree. Routers do
    /// not see each other's latest decisions, so among tied workers each router takes the one at its own
    /// position.
    pub router_rank: u32,
    /// Work that peers may have assigned in decisions that this router has not received yet.
    pub unpropagated_load: Micros,
}

/// One ready worker, as numbers.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Index of the worker in the fleet.
    pub worker: WorkerId,
    /// Hash of the worker's address: the same in every router and after every restart.
    pub identity: u64,
    /// Tokens from the start of the prompt that the worker's cache is believed to hold.
    pub overlap_tokens: u32,
    /// Tokens after the overlap that the worker holds in slower memory and must restore first.
    pub restorable_tokens: u32,
    /// Tokens beyond the overlap that the worker's cache probably holds: answers are not known until a prompt repeats them.
    pub shortfall_tokens: u32,
    /// Requests in flight on the worker.
    pub in_flight: u32,
    /// Prompt tokens booked on the worker whose prefill has not ended.
    pub prefill_tokens: u64,
    /// Context tokens of the requests in flight, which every decode step reads.
    pub decode_tokens: u64,
    /// Requests that wait inside the engine: the last report plus the requests sent since. `None` without a
    /// fresh report.
    pub waiting: Option<u32>,
    /// Expected time to this request's first token.
    pub estimate: Estimate,
}

/// The expected time to first token, split into its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Wait for the prompts booked earlier on this worker.
    pub queue_ms: f32,
    /// Prefill of the uncached part of the prompt while the worker decodes other answers. Includes the fixed
    /// cost of every request: the network and the rest of the current step.
    pub prefill_ms: f32,
    /// The share of `prefill_ms` that depends on what is cached.
    pub uncached_ms: f32,
    /// Time to load the request's LoRA adapter; zero if the worker holds it, or if the request has none.
    pub adapter_ms: f32,
    /// The share of `prefill_ms` spent on a prefix that the other workers hold and this one lacks. It is paid
    /// once.
    pub lacking_ms: f32,
    /// The smallest `own_ms` of any candidate: the work that the request costs on every worker.
    pub anywhere_ms: f32,
    /// Time that the request adds to one decode step of every answer on the worker, its own included.
    pub step_ms: f32,
    /// Time to compute again what the request's conversation will push out of the worker's cache.
    pub eviction_ms: f32,
    /// Prompts booked earlier on this worker whose prefill has not ended.
    pub prompts_ahead: u32,
    /// Requests that are expected to come while the worker computes this one.
    pub followers: f32,
    /// Time since the worker was last assigned a request.
    pub idle: Micros,
}

impl Estimate {
    /// Expected time to first token: queue, adapter and prefill.
    pub fn ttft_ms(&self) -> f32 {
        self.queue_ms + self.adapter_ms + self.prefill_ms
    }

    /// Prefill time without the one-time cost of a prefix that all other workers hold.
    pub fn work_ms(&self) -> f32 {
        self.prefill_ms - self.lacking_ms
    }

    /// The share of `work_ms` that depends on what is cached.
    pub fn own_ms(&self) -> f32 {
        self.uncached_ms - self.lacking_ms
    }

    /// Work that the request costs here and not on every worker, because more of its prompt is cached elsewhere.
    pub fn excess_ms(&self) -> f32 {
        self.own_ms() - self.anywhere_ms
    }
}

impl Candidate {
    /// Share of the prompt that the worker's cache is believed to hold, 0 to 1.
    pub(crate) fn overlap_ratio(&self, request: &PolicyRequest) -> f64 {
        (f64::from(self.overlap_tokens) / f64::from(request.prompt_tokens.max(1))).min(1.0)
    }

    /// The overlap, or 0 when it is too small a share of the prompt to follow.
    pub(crate) fn match_tokens(&self, request: &PolicyRequest) -> u32 {
        if self.overlap_ratio(request) < MATCH_RATIO_MIN { 0 } else { self.overlap_tokens }
    }

    /// Prompt tokens that the worker computes before this request's first token: those booked and those
    /// missing.
    pub(crate) fn tokens_to_first(&self, request: &PolicyRequest) -> u64 {
        self.prefill_tokens + u64::from(request.prompt_tokens.saturating_sub(self.match_tokens(request)))
    }
}

/// Overlaps below this share of the prompt count as none. Such a short prefix is usually a system prompt that
/// all requests share; following it saves little and gathers all requests on the first worker that cached it.
const MATCH_RATIO_MIN: f64 = 0.1;

/// An overlap justifies waiting for this multiple of its tokens. Computing them on another worker takes as
/// long once and evicts other prompts there.
const WORTH_WAITING: u64 = 2;

/// Extra requests in flight that an overlap of half the prompt justifies; at least half of the least loaded
/// worker's count. Each extra request costs only a slot in the batch.
const WORTH_IN_FLIGHT: f64 = 8.0;

/// Whether the overlap justifies the candidate's load, compared with the least loaded candidate. Without this
/// check a prefix shared by all requests would gather them on one worker. The larger the shared part, the
/// later requests spread.
pub(crate) fn is_worth_waiting_for(
    candidate: &Candidate,
    request: &PolicyRequest,
    candidates: &[Candidate],
) -> bool {
    let least = |of: fn(&Candidate) -> u64| candidates.iter().map(of).min().unwrap_or(0);
    let wait_tokens = candidate.prefill_tokens.saturating_sub(least(|c| c.prefill_tokens));
    let least_in_flight = least(|c| c.in_flight.into());
    let more_in_flight = u64::from(candidate.in_flight).saturating_sub(least_in_flight);
    let ratio = candidate.overlap_ratio(request);
    wait_tokens <= WORTH_WAITING * u64::from(candidate.overlap_tokens)
        && more_in_flight as f64 * (1.0 - ratio) <= WORTH_IN_FLIGHT.max(least_in_flight as f64 / 2.0) * ratio
}

/// The chosen candidate and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index into the candidates.
    pub index: usize,
    /// Reason for metrics and decision headers, from a small fixed set.
    pub reason: &'static str,
}

/// The candidate with the lowest `cost`. Ties are drawn at random; otherwise a burst of cold requests would
/// herd on the first candidate.
pub fn least_by<C: PartialOrd + Copy>(
    candidates: &[Candidate],
    random: u64,
    cost: impl Fn(&Candidate) -> C,
) -> usize {
    let mut best = 0;
    let mut equals = 1_u64;
    for index in 1..candidates.len() {
        let (challenger, champion) = (cost(&candidates[index]), cost(&candidates[best]));
        if challenger < champion {
            (best, equals) = (index, 1);
        } else if challenger == champion {
            // Reservoir sampling: the n-th tied candidate replaces the best with probability 1/n.
            equals += 1;
            if mix(random ^ index as u64).is_multiple_of(equals) {
                best = index;
            }
        }
    }
    best
}

/// Mixes the bits of `x` (the finalizer of splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    /// Candidates with the given numbers of requests in flight.
    pub fn with_in_flight(in_flight: &[u32]) -> Vec<Candidate> {
        in_flight.iter().enumerate().map(|(index, &n)| candidate(index as u16, n)).collect()
    }

    pub fn candidate(index: u16, in_flight: u32) -> Candidate {
        Candidate {
            worker: WorkerId(index),
            identity: mix(u64::from(index) + 1),
            overlap_tokens: 0,
            restorable_tokens: 0,
            shortfall_tokens: 0,
            in_flight,
            prefill_tokens: 0,
            decode_tokens: 0,
            waiting: None,
            estimate: Estimate::default(),
        }
    }

    /// (tokens of the prompt that the worker holds, requests in flight)
    pub type Holding = (u32, u32);

    pub fn holding(rows: &[Holding]) -> Vec<Candidate> {
        let rows = rows.iter().enumerate();
        rows.map(|(index, &(overlap_tokens, n))| Candidate { overlap_tokens, ..candidate(index as u16, n) })
            .collect()
    }

    /// A prompt of a thousand tokens.
    pub fn thousand_tokens(random: u64) -> PolicyRequest {
        PolicyRequest { prompt_tokens: 1_000, prefix_key: Some(mix(random)), ..request_with_random(random) }
    }

    /// Sends `requests` of a thousand tokens that share their first `shared` tokens to eight workers and
    /// returns the requests per worker. No request ends, and each prompt is in its worker's cache from then
    /// on.
    pub fn spread(policy: &dyn crate::Policy, shared: u32, requests: usize) -> Vec<u32> {
        requests_per_worker(policy, shared, 8, requests, requests)
    }

    /// As `spread`, with eighty requests over four workers. The oldest request ends when `concurrent` are in
    /// flight.
    pub fn spread_at_low_load(policy: &dyn crate::Policy, shared: u32, concurrent: usize) -> Vec<u32> {
        requests_per_worker(policy, shared, 4, 80, concurrent)
    }

    fn requests_per_worker(
        policy: &dyn crate::Policy,
        shared: u32,
        workers: usize,
        requests: usize,
        concurrent: usize,
    ) -> Vec<u32> {
        let mut candidates = with_in_flight(&vec![0; workers]);
        let mut in_flight = std::collections::VecDeque::new();
        let mut per_worker = vec![0; workers];
        for draw in 0..requests {
            let choice = policy.choose(&thousand_tokens(draw as u64), &candidates);
            let chosen = &mut candidates[choice.index];
            let missing = u64::from(1_000 - chosen.overlap_tokens);
            chosen.in_flight += 1;
            chosen.prefill_tokens += missing;
            chosen.overlap_tokens = shared;
            per_worker[choice.index] += 1;
            in_flight.push_back((choice.index, missing));
            if in_flight.len() == concurrent {
                let (ended, missing) = in_flight.pop_front().unwrap();
                candidates[ended].in_flight -= 1;
                candidates[ended].prefill_tokens -= missing;
            }
        }
        per_worker
    }

    /// Every worker gets at least 8 of 80 requests, for any shared prefix and any concurrency.
    pub fn assert_every_worker_gets_work(policy: &dyn crate::Policy) {
        for (shared, concurrent) in [(70, 1), (70, 3), (70, 16), (450, 16), (550, 32), (900, 32)] {
            let per_worker = spread_at_low_load(policy, shared, concurrent);
            let name = policy.name();
            assert!(
                per_worker.iter().all(|&n| n >= 8),
                "{name}: {shared} of 1,000 shared, {concurrent} at once: {per_worker:?}"
            );
        }
    }

    pub fn request_with_random(random: u64) -> PolicyRequest {
        PolicyRequest { random: mix(random), ..PolicyRequest::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::*;
    use super::*;

    #[test]
    fn ties_are_drawn_evenly() {
        let candidates = with_in_flight(&[1, 0, 0, 2, 0]);
        let mut wins = [0_u32; 5];
        for draw in 0..9_000 {
            wins[least_by(&candidates, mix(draw), |c| c.in_flight)] += 1;
        }
        assert_eq!((wins[0], wins[3]), (0, 0));
        for index in [1, 2, 4] {
            assert!(
                (2_700..3_300).contains(&wins[index]),
                "each of three equals about 3,000 times: {wins:?}"
            );
        }
    }
}
