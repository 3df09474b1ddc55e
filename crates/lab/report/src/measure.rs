//! What sweeps plot: a measure's name, its unit and which way is better.

use warmroute_sim::{Bounds, Estimate};

use crate::duration::duration;
use crate::figures::{Figures, count, percent, round_duration};

/// A measure plotted against the parameters of a sweep.
pub struct Measure {
    pub caption: &'static str,
    pub about: &'static str,
    /// Label of the axis.
    pub label: &'static str,
    pub words: fn(f64) -> String,
    pub tick_words: fn(f64) -> String,
    pub of: fn(&Figures) -> Estimate,
    pub better: Better,
    pub bound: Option<fn(&Bounds) -> f64>,
}

/// Which values of a measure are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

const TTFT_MEAN: Measure = Measure {
    caption: "Time to first token, mean",
    about: "Lower is better. Dashed: if no request waited.",
    label: "TTFT mean",
    words: duration,
    tick_words: round_duration,
    of: |row| row.ttft_mean_ms,
    better: Better::Lower,
    bound: Some(|bounds| bounds.zero_queue_ttft_ms.mean),
};

const TTFT_P99: Measure = Measure {
    caption: "Time to first token, 99th percentile",
    about: "Lower is better.",
    label: "TTFT p99",
    words: duration,
    tick_words: round_duration,
    of: |row| row.ttft_p99_ms,
    better: Better::Lower,
    bound: None,
};

const TOKEN_HIT: Measure = Measure {
    caption: "Prompt tokens found in a cache",
    about: "Higher is better. Dashed: pooled Belady, the most any router could find; only about, where clients wait for answers.",
    label: "token hit",
    words: percent,
    tick_words: percent,
    of: |row| row.token_hit_ratio,
    better: Better::Higher,
    bound: Some(|bounds| bounds.pooled_belady_token_hit_ratio),
};

const QUEUE_MEAN: Measure = Measure {
    caption: "Wait in the engine's queue, mean",
    about: "Lower is better.",
    label: "queue mean",
    words: duration,
    tick_words: round_duration,
    of: |row| row.queue_mean_ms,
    better: Better::Lower,
    bound: None,
};

/// Measures of a sweep over one parameter.
pub const LINES: [Measure; 6] = [
    TTFT_MEAN,
    TTFT_P99,
    TOKEN_HIT,
    Measure {
        caption: "Goodput",
        about: "Requests a second that meet the SLO. Higher is better.",
        label: "goodput per second",
        words: count,
        tick_words: count,
        of: |row| row.goodput_rps,
        better: Better::Higher,
        bound: None,
    },
    Measure {
        caption: "Throughput",
        about: "Output tokens a second. Higher is better; with open arrivals it equals the traffic.",
        label: "output tokens per second",
        words: count,
        tick_words: count,
        of: |row| row.output_tokens_per_s,
        better: Better::Higher,
        bound: None,
    },
    QUEUE_MEAN,
];

/// Measures of a surface over two parameters.
pub const SURFACES: [Measure; 4] = [TTFT_MEAN, TTFT_P99, QUEUE_MEAN, TOKEN_HIT];
