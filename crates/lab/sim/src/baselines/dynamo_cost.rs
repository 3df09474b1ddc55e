//! NVIDIA Dynamo's cost function.
//!
//! As published (ai-dynamo/dynamo, its KV router): `scale × max(0, active prefill + prompt blocks − credit) +
//! decode blocks`; the least wins, and ties are random. Blocks in GPU memory count as 1 credit, in host
//! memory as 0.75, on disk as 0.25. Scale and temperature are the defaults, 1 and 0.
//!
//! Differences here: policies see one slower tier, credited as host memory. Decode blocks are the contexts of
//! all requests in flight; blocks shared by two requests count twice, in Dynamo once.

use parking_lot::Mutex;
use warmroute_engine::Config as EngineConfig;
use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};
use warmroute_types::WorkerId;

use super::machines::Machines;
use crate::watch::Watcher;

const SCALE: f64 = 1.0;
const HOST_CREDIT: f64 = 0.75;

/// Dynamo's rule; see the module text.
#[derive(Default)]
pub struct DynamoCost {
    machines: Mutex<Machines>,
}

impl Policy for DynamoCost {
    fn name(&self) -> &'static str {
        "dynamo_cost"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let machines = self.machines.lock();
        let cost = |c: &Candidate| cost(ask, c, f64::from(machines.at(c.worker).block_tokens));
        Choice { index: least_by(candidates, ask.random, cost), reason: "cost" }
    }
}

impl Watcher for DynamoCost {
    fn joined(&self, worker: WorkerId, engine: &EngineConfig) {
        self.machines.lock().set(worker, engine);
    }
}

fn cost(ask: &PolicyRequest, c: &Candidate, block_tokens: f64) -> f64 {
    let credit_tokens = f64::from(c.overlap_tokens) + HOST_CREDIT * f64::from(c.restorable_tokens);
    let prefill_tokens = c.prefill_tokens as f64 + f64::from(ask.prompt_tokens) - credit_tokens;
    (SCALE * prefill_tokens.max(0.0) + c.decode_tokens as f64) / block_tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    #[test]
    fn missing_blocks_queued_blocks_and_decode_blocks_are_one_sum() {
        let rule = DynamoCost::default();
        // Tokens held, tokens to restore, tokens queued for prefill, context tokens.
        let cases = [
            (vec![(0, 0, 0, 0), (160, 0, 0, 0)], 1),
            (vec![(0, 0, 0, 0), (160, 0, 320, 0)], 0),
            (vec![(0, 0, 0, 0), (160, 0, 0, 320)], 0),
            (vec![(100, 0, 0, 0), (0, 160, 0, 0)], 1),
            (vec![(120, 0, 0, 16), (0, 160, 0, 0)], 1),
            (vec![(128, 0, 0, 0), (0, 160, 0, 0)], 0),
        ];
        for (rows, index) in cases {
            let candidates: Vec<Candidate> = rows.iter().enumerate().map(row).collect();
            assert_eq!(rule.choose(&thousand(1), &candidates).index, index, "{rows:?}");
        }
    }

    fn row((index, &row): (usize, &(u32, u32, u64, u64))) -> Candidate {
        let (overlap_tokens, restorable_tokens, prefill_tokens, decode_tokens) = row;
        Candidate { overlap_tokens, restorable_tokens, prefill_tokens, decode_tokens, ..idle(index as u16) }
    }
}
