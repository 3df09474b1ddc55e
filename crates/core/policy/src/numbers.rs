//! What a policy sees, and what it says.

use warmroute_types::{Micros, WorkerId};

/// The request, as numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    /// Tokens of the prompt, estimated where nobody counted them.
    pub prompt_tokens: u32,
    /// Hash of the session, user or tenant the request belongs to, where it names one.
    pub session_key: Option<u64>,
    /// Hash of the prompt's beginning, where it has one.
    pub prefix_key: Option<u64>,
    /// Fresh random bits for this decision.
    pub random: u64,
    /// How many decisions were made before this one in the same pool.
    pub turn: u64,
    /// Routers before the same workers that come before this one, in an order that all agree on. What they have just decided is
    /// not known yet: whoever would take the first of several equals leaves it to them.
    pub place: u32,
    /// Work that other routers may have sent to the worker that seems best: news of it is under way.
    pub unheard: Micros,
}

/// One ready worker, as numbers.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Its seat in the fleet.
    pub worker: WorkerId,
    /// A hash of its address: the same in every router and after every restart.
    pub identity: u64,
    /// Prompt tokens, from the start, that its cache is believed to hold.
    pub overlap_tokens: u32,
    /// Prompt tokens beyond those that it holds in slower memory, from where they must be fetched.
    pub restorable_tokens: u32,
    /// Requests sent to it that have not ended.
    pub in_flight: u32,
    /// Prompt tokens booked on it whose prefill has not ended.
    pub prefill_tokens: u64,
    /// Context tokens of the requests in flight: what each decode step has to read.
    pub decode_tokens: u64,
    /// Requests that wait inside the engine: its last report plus what was sent since; `None` without a fresh report.
    pub waiting: Option<u32>,
    /// How long this request's first token would take.
    pub estimate: Estimate,
}

/// The time to a first token, in its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Until the prompts booked before it are computed.
    pub queue_ms: f32,
    /// What is missing of its own prompt, computed beside the answers that are being written, with everything that every
    /// request takes: the network, the end of the step under way.
    pub prefill_ms: f32,
    /// Of that, what it takes only because its worker lacks what the others have of the prompt, and will have from then on.
    pub lacking_ms: f32,
    /// What is left of it on the worker where that is least: what it takes wherever it goes.
    pub anywhere_ms: f32,
    /// What it would add to one token of every answer there, its own included.
    pub step_ms: f32,
    /// Prompts booked before it.
    pub prompts_ahead: u32,
    /// Since its worker was last given something.
    pub idle: Micros,
}

impl Estimate {
    /// In all.
    pub fn ttft_ms(&self) -> f32 {
        self.queue_ms + self.prefill_ms
    }

    /// What is this worker's to compute and not paid once for all.
    pub fn work_ms(&self) -> f32 {
        self.prefill_ms - self.lacking_ms
    }
}

impl Candidate {
    /// Share of the prompt that its cache is believed to hold, 0 to 1.
    pub(crate) fn overlap_ratio(&self, ask: &Ask) -> f64 {
        (f64::from(self.overlap_tokens) / f64::from(ask.prompt_tokens.max(1))).min(1.0)
    }

    /// The tokens that it holds, where they are enough to be followed.
    pub(crate) fn match_tokens(&self, ask: &Ask) -> u32 {
        if self.overlap_ratio(ask) < MATCH_RATIO_MIN { 0 } else { self.overlap_tokens }
    }

    /// Prompt tokens to be computed until this request's first token would come: what waits, and what is missing.
    pub(crate) fn tokens_to_first(&self, ask: &Ask) -> u64 {
        self.prefill_tokens + u64::from(ask.prompt_tokens.saturating_sub(self.match_tokens(ask)))
    }
}

/// A smaller share of the prompt than this is a head that everybody shares, not a conversation that goes on. To follow it
/// saves little, and gathers everybody on whoever had it first.
const MATCH_RATIO_MIN: f64 = 0.1;

/// A match is worth a wait for so many times the tokens that it saves: to compute them elsewhere takes as long once, and
/// takes room there from other prompts.
const WORTH_WAITING: u64 = 2;

/// So many more requests in flight, or half as many more as the least loaded worker has, are worth a match that covers half
/// of the prompt: what they cost is a place in a batch.
const WORTH_IN_FLIGHT: f64 = 8.0;

/// Whether a match is worth what its worker has to do, compared with the least that any has. Without this a head that all
/// share would gather them on one worker; with it, the more of the prompt is shared the later they spread.
pub(crate) fn is_worth_waiting_for(candidate: &Candidate, ask: &Ask, candidates: &[Candidate]) -> bool {
    let least = |of: fn(&Candidate) -> u64| candidates.iter().map(of).min().unwrap_or(0);
    let wait_tokens = candidate.prefill_tokens.saturating_sub(least(|c| c.prefill_tokens));
    let least_in_flight = least(|c| c.in_flight.into());
    let more_in_flight = u64::from(candidate.in_flight).saturating_sub(least_in_flight);
    let ratio = candidate.overlap_ratio(ask);
    wait_tokens <= WORTH_WAITING * u64::from(candidate.overlap_tokens)
        && more_in_flight as f64 * (1.0 - ratio) <= WORTH_IN_FLIGHT.max(least_in_flight as f64 / 2.0) * ratio
}

/// Which candidate, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index into the candidates.
    pub index: usize,
    /// A word for metrics and decision headers, from a small fixed set.
    pub reason: &'static str,
}

/// The candidate with the least `cost`; equals are drawn by lot, or a burst of cold requests would herd on the first.
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
            // Reservoir sampling: the n-th equal replaces the champion with probability 1/n.
            equals += 1;
            if mix(random ^ index as u64).is_multiple_of(equals) {
                best = index;
            }
        }
    }
    best
}

/// Spreads the bits of `x` (the finalizer of splitmix64): one number in, one well-mixed number out.
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
        in_flight.iter().enumerate().map(|(seat, &n)| candidate(seat as u16, n)).collect()
    }

    pub fn candidate(seat: u16, in_flight: u32) -> Candidate {
        Candidate {
            worker: WorkerId(seat),
            identity: mix(u64::from(seat) + 1),
            overlap_tokens: 0,
            restorable_tokens: 0,
            in_flight,
            prefill_tokens: 0,
            decode_tokens: 0,
            waiting: None,
            estimate: Estimate::default(),
        }
    }

    /// How many tokens of the prompt a worker holds, and how many requests it has in flight.
    pub type Holding = (u32, u32);

    pub fn holding(rows: &[Holding]) -> Vec<Candidate> {
        let rows = rows.iter().enumerate();
        rows.map(|(seat, &(overlap_tokens, n))| Candidate { overlap_tokens, ..candidate(seat as u16, n) })
            .collect()
    }

    /// A prompt of a thousand tokens.
    pub fn thousand(random: u64) -> Ask {
        Ask { prompt_tokens: 1_000, prefix_key: Some(mix(random)), ..drawn(random) }
    }

    /// Sends `requests` that share only their first `shared` tokens of a thousand, none of which ends; how many each of
    /// eight workers got. What was sent to a worker is in its cache from then on.
    pub fn spread(policy: &dyn crate::Policy, shared: u32, requests: usize) -> Vec<u32> {
        sent(policy, shared, 8, requests, requests)
    }

    /// The same with eighty requests over four workers, where each ends when it is one of `concurrent`.
    pub fn spread_at_low_load(policy: &dyn crate::Policy, shared: u32, concurrent: usize) -> Vec<u32> {
        sent(policy, shared, 4, 80, concurrent)
    }

    fn sent(
        policy: &dyn crate::Policy,
        shared: u32,
        workers: usize,
        requests: usize,
        concurrent: usize,
    ) -> Vec<u32> {
        let mut candidates = with_in_flight(&vec![0; workers]);
        let mut under_way = std::collections::VecDeque::new();
        let mut got = vec![0; workers];
        for draw in 0..requests {
            let choice = policy.choose(&thousand(draw as u64), &candidates);
            let chosen = &mut candidates[choice.index];
            let missing = u64::from(1_000 - chosen.overlap_tokens);
            chosen.in_flight += 1;
            chosen.prefill_tokens += missing;
            chosen.overlap_tokens = shared;
            got[choice.index] += 1;
            under_way.push_back((choice.index, missing));
            if under_way.len() == concurrent {
                let (ended, missing) = under_way.pop_front().unwrap();
                candidates[ended].in_flight -= 1;
                candidates[ended].prefill_tokens -= missing;
            }
        }
        got
    }

    /// No worker is left out, whatever share of its prompt everybody shares, one at a time or many at once.
    pub fn assert_nobody_is_left_out(policy: &dyn crate::Policy) {
        for (shared, concurrent) in [(70, 1), (70, 3), (70, 16), (450, 16), (550, 32), (900, 32)] {
            let got = spread_at_low_load(policy, shared, concurrent);
            let name = policy.name();
            assert!(
                got.iter().all(|&n| n >= 8),
                "{name}: {shared} of 1,000 shared, {concurrent} at once: {got:?}"
            );
        }
    }

    pub fn drawn(random: u64) -> Ask {
        Ask { random: mix(random), ..Ask::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::*;
    use super::*;

    #[test]
    fn equals_are_drawn_evenly() {
        let candidates = with_in_flight(&[1, 0, 0, 2, 0]);
        let mut wins = [0_u32; 5];
        for draw in 0..9_000 {
            wins[least_by(&candidates, mix(draw), |c| c.in_flight)] += 1;
        }
        assert_eq!((wins[0], wins[3]), (0, 0));
        for seat in [1, 2, 4] {
            assert!((2_700..3_300).contains(&wins[seat]), "each of three equals about 3,000 times: {wins:?}");
        }
    }
}
