//! Statistics of a rank, counted as vLLM counts them. All times are engine time.

use warmroute_engine::EngineStats;
use warmroute_types::Micros;

use crate::command::FinishedReason;

/// All published statistics of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    /// The engine's own statistics, as of its last step or request.
    pub(crate) stats: EngineStats,
    /// Statistics of requests.
    pub(crate) meter: Meter,
    /// Times that the host was too slow for the engine's time.
    pub(crate) slips: u64,
    tokens_max: u32,
}

impl Board {
    pub(crate) fn new(stats: EngineStats, tokens_max: u32) -> Board {
        Board { stats, meter: Meter::new(tokens_max), slips: 0, tokens_max }
    }

    /// A step ended.
    pub(crate) fn finish_step(&mut self, stats: EngineStats) {
        let computed = stats.computed_tokens.saturating_sub(self.stats.computed_tokens);
        self.meter.iteration_tokens.observe(computed as f64);
        self.stats = stats;
    }

    /// A new process begins to count from zero.
    pub(crate) fn restart(&mut self) {
        self.meter = Meter::new(self.tokens_max);
    }
}

/// Counters and histograms.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) stopped: u64,
    pub(crate) cut_by_length: u64,
    pub(crate) aborted: u64,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) request_generation_tokens: Histogram,
    pub(crate) request_prefill_kv_computed_tokens: Histogram,
    pub(crate) iteration_tokens: Histogram,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) request_time_per_output_token: Histogram,
    pub(crate) e2e_request_latency: Histogram,
    pub(crate) request_queue_time: Histogram,
    pub(crate) request_inference_time: Histogram,
    pub(crate) request_prefill_time: Histogram,
    pub(crate) request_decode_time: Histogram,
}

/// One sequence's times in the engine.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    arrived: Micros,
    started: Micros,
    first_token: Option<Micros>,
    last_token: Micros,
    prompt_tokens: u32,
    cached_tokens: u32,
    output_tokens: u32,
    finish: FinishedReason,
}

impl Span {
    pub(crate) fn new(
        arrived: Micros,
        prompt_tokens: u32,
        output_tokens: u32,
        finish: FinishedReason,
    ) -> Span {
        Span {
            arrived,
            started: arrived,
            first_token: None,
            last_token: arrived,
            prompt_tokens,
            cached_tokens: 0,
            output_tokens,
            finish,
        }
    }
}

impl Meter {
    fn new(tokens_max: u32) -> Meter {
        let tokens = || Histogram::new(one_two_five(tokens_max));
        let latency = || Histogram::new(REQUEST_S.to_vec());
        Meter {
            prompt_tokens: 0,
            cached_tokens: 0,
            generation_tokens: 0,
            stopped: 0,
            cut_by_length: 0,
            aborted: 0,
            request_prompt_tokens: tokens(),
            request_generation_tokens: tokens(),
            request_prefill_kv_computed_tokens: tokens(),
            iteration_tokens: Histogram::new(ITERATION_TOKENS.to_vec()),
            time_to_first_token: Histogram::new(FIRST_TOKEN_S.to_vec()),
            inter_token_latency: Histogram::new(TOKEN_S.to_vec()),
            request_time_per_output_token: Histogram::new(TOKEN_S.to_vec()),
            e2e_request_latency: latency(),
            request_queue_time: latency(),
            request_inference_time: latency(),
            request_prefill_time: latency(),
            request_decode_time: latency(),
        }
    }

    /// The sequence entered a batch.
    pub(crate) fn started(&mut self, span: &mut Span, at: Micros, cached_tokens: u32) {
        span.started = at.max(span.arrived);
        span.cached_tokens = cached_tokens;
    }

    /// The sequence produced a token.
    pub(crate) fn token(&mut self, span: &mut Span, at: Micros) {
        match span.first_token {
            None => {
                span.first_token = Some(at);
                self.prompt_tokens += u64::from(span.prompt_tokens);
                self.cached_tokens += u64::from(span.cached_tokens);
                self.time_to_first_token.observe(at.since(span.arrived).as_secs_f64());
            }
            Some(_) => self.inter_token_latency.observe(at.since(span.last_token).as_secs_f64()),
        }
        self.generation_tokens += 1;
        span.last_token = at;
    }

    /// The sequence produced its last token.
    pub(crate) fn finished(&mut self, span: &Span) {
        match span.finish {
            FinishedReason::Stop => self.stopped += 1,
            FinishedReason::Length => self.cut_by_length += 1,
        }
        self.request_prompt_tokens.observe(f64::from(span.prompt_tokens));
        self.request_generation_tokens.observe(f64::from(span.output_tokens));
        let computed = span.prompt_tokens.saturating_sub(span.cached_tokens);
        self.request_prefill_kv_computed_tokens.observe(f64::from(computed));
        self.observe_times(span);
    }

    fn observe_times(&mut self, span: &Span) {
        let first = span.first_token.unwrap_or(span.last_token);
        let decode_s = span.last_token.since(first).as_secs_f64();
        let gaps = span.output_tokens.saturating_sub(1).max(1);
        self.e2e_request_latency.observe(span.last_token.since(span.arrived).as_secs_f64());
        self.request_queue_time.observe(span.started.since(span.arrived).as_secs_f64());
        self.request_prefill_time.observe(first.since(span.started).as_secs_f64());
        self.request_decode_time.observe(decode_s);
        self.request_inference_time.observe(span.last_token.since(span.started).as_secs_f64());
        self.request_time_per_output_token.observe(decode_s / f64::from(gaps));
    }

    /// The client left before the end.
    pub(crate) fn abandoned(&mut self) {
        self.aborted += 1;
    }
}

/// Counts by upper bound.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    /// Upper bounds, ascending; what is above the last one counts in `count` only.
    pub(crate) bounds: Vec<f64>,
    /// Observations at most this bound and above the one before.
    pub(crate) counts: Vec<u64>,
    pub(crate) count: u64,
    pub(crate) sum: f64,
}

impl Histogram {
    fn new(bounds: Vec<f64>) -> Histogram {
        Histogram { counts: vec![0; bounds.len()], bounds, count: 0, sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        let slot = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(slot) {
            *count += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

/// vLLM's buckets for token counts: 1, 2, 5, 10, … up to the longest sequence.
fn one_two_five(max: u32) -> Vec<f64> {
    let decades = (0..).map(|exponent| 10_u64.pow(exponent));
    let bounds = decades.flat_map(|decade| [decade, 2 * decade, 5 * decade]);
    bounds.take_while(|bound| *bound <= u64::from(max)).map(|bound| bound as f64).collect()
}

// The buckets below are those of vLLM 0.32.0's /metrics.
const FIRST_TOKEN_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_S: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const ITERATION_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_buckets_are_those_of_the_captured_engine() {
        assert_eq!(one_two_five(768), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
    }

    #[test]
    fn a_value_on_the_bound_counts_below_it() {
        let mut histogram = Histogram::new(vec![1.0, 2.0]);
        [1.0, 1.5, 9.0].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!(
            (histogram.counts.as_slice(), histogram.count, histogram.sum),
            ([1, 1].as_slice(), 3, 11.5)
        );
    }

    #[test]
    fn a_request_is_timed_from_arrival_to_its_last_token() {
        let ms = Micros::from_millis;
        let mut meter = Meter::new(1_000);
        let mut span = Span::new(ms(0), 100, 3, FinishedReason::Length);
        meter.started(&mut span, ms(10), 64);
        [ms(30), ms(40), ms(50)].into_iter().for_each(|at| meter.token(&mut span, at));
        meter.finished(&span);
        let sums_ms = [
            &meter.request_queue_time,
            &meter.time_to_first_token,
            &meter.request_prefill_time,
            &meter.request_decode_time,
            &meter.e2e_request_latency,
            &meter.inter_token_latency,
            &meter.request_time_per_output_token,
        ]
        .map(|histogram| (histogram.sum * 1e3).round() as u64);
        assert_eq!(sums_ms, [10, 30, 20, 20, 50, 20, 10]);
        assert_eq!(meter.request_prefill_kv_computed_tokens.sum, 36.0);
        assert_eq!((meter.prompt_tokens, meter.generation_tokens, meter.cut_by_length), (100, 3, 1));
    }
}
