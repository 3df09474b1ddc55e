//! Statistics of a replica, for its process.

use warmroute_types::Micros;

use crate::meter::Board;

/// Sums over a replica's ranks, since its start or restart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Sequences that wait for a slot in a batch.
    pub waiting: u32,
    /// Sequences in a batch.
    pub running: u32,
    /// Blocks in the prefix cache.
    pub blocks_cached: u32,
    /// Sequences answered to their end.
    pub finished: u64,
    /// Sequences whose client left first.
    pub aborted: u64,
    /// Prompt tokens looked up in the cache.
    pub prefix_queries_tokens: u64,
    /// Prompt tokens found there.
    pub prefix_hits_tokens: u64,
    /// Prompt tokens of sequences with a first token.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Times a sequence lost its blocks to others.
    pub preemptions: u64,
    /// Steps computed.
    pub steps: u64,
    /// Sum of the times to first token, in engine time.
    pub ttft_sum: Micros,
    /// Sequences with a first token.
    pub ttft_count: u64,
    /// Times that the host was too slow, so that engine time was stretched. Figures of a run with many of them
    /// describe the host, not the engine.
    pub slips: u64,
}

impl Stats {
    pub(crate) fn of(boards: impl Iterator<Item = Board>) -> Stats {
        let mut sum = Stats::default();
        boards.for_each(|board| sum.add(&board));
        sum
    }

    fn add(&mut self, board: &Board) {
        let (stats, meter) = (&board.stats, &board.meter);
        self.waiting += stats.waiting;
        self.running += stats.running;
        self.blocks_cached += stats.blocks_cached;
        self.finished += meter.stopped + meter.cut_by_length;
        self.aborted += meter.aborted;
        self.prefix_queries_tokens += stats.prefix_queries_tokens;
        self.prefix_hits_tokens += stats.prefix_hits_tokens;
        self.prompt_tokens += meter.prompt_tokens;
        self.output_tokens += meter.generation_tokens;
        self.preemptions += stats.preemptions;
        self.steps += stats.steps;
        self.ttft_sum = self.ttft_sum + Micros::from_millis_f64(meter.time_to_first_token.sum * 1e3);
        self.ttft_count += meter.time_to_first_token.count;
        self.slips += board.slips;
    }
}
