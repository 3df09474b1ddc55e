//! Tables of figures: for a terminal, and as cells for the other formats.

use warmroute_sim::Bounds;

use crate::duration::duration;
use crate::figures::{Figures, TimeUnit, count, percent, with_confidence};
use crate::report::{Point, Report};

const COLUMNS: usize = 12;

/// Column headings.
pub(crate) const HEADS: [&str; COLUMNS] = [
    "policy",
    "TTFT mean",
    "p50",
    "p95",
    "p99",
    "TPOT",
    "token hit",
    "of Belady",
    "of LRU",
    "stale",
    "max/mean",
    "goodput/s",
];

/// Column headings of the second table: throughput, caches and queues.
pub(crate) const FLEET_HEADS: [&str; 9] = [
    "policy",
    "requests/s",
    "output tokens/s",
    "request hit",
    "stale requests",
    "copies of a block",
    "prefill repeated",
    "queue mean",
    "queue p99",
];

/// Cells of one policy in the second table.
pub(crate) fn fleet_cells(policy: &str, figures: &Figures) -> [String; FLEET_HEADS.len()] {
    if !figures.is_answered {
        return unanswered(policy);
    }
    [
        policy.to_owned(),
        with_confidence(figures.throughput_rps, count),
        with_confidence(figures.output_tokens_per_s, count),
        percent(figures.request_hit_ratio.mean),
        percent(figures.stale_request_ratio.mean),
        format!("{:.2}", figures.copies.mean),
        percent(figures.repeated_prefill_ratio.mean),
        duration(figures.queue_mean_ms.mean),
        duration(figures.queue_p99_ms.mean),
    ]
}

/// Cells of a policy of which no request was answered.
fn unanswered<const N: usize>(policy: &str) -> [String; N] {
    std::array::from_fn(|column| if column == 0 { policy } else { "–" }.to_owned())
}

/// The unit of all times to first token at a point.
pub(crate) fn ttft_unit(report: &Report, point: &Point) -> TimeUnit {
    let figures = report.policies().into_iter().filter_map(|policy| Figures::of(point, policy));
    let figures = figures.filter(|figures| figures.is_answered);
    TimeUnit::of(figures.map(|figures| figures.ttft_p50_ms.mean).fold(f64::INFINITY, f64::min))
}

/// Cells of one policy.
pub(crate) fn cells(
    policy: &str,
    figures: &Figures,
    bounds: Option<&Bounds>,
    ttft_unit: TimeUnit,
) -> [String; COLUMNS] {
    if !figures.is_answered {
        return unanswered(policy);
    }
    let ttft = |ms: f64| ttft_unit.words(ms);
    let share_of = |of: fn(&Bounds) -> f64| {
        let most = bounds.map(of).filter(|most| *most > 0.0);
        most.map_or("–".to_owned(), |most| percent(figures.token_hit_ratio.mean / most))
    };
    [
        policy.to_owned(),
        with_confidence(figures.ttft_mean_ms, ttft),
        ttft(figures.ttft_p50_ms.mean),
        ttft(figures.ttft_p95_ms.mean),
        with_confidence(figures.ttft_p99_ms, ttft),
        TimeUnit::Millis.words(figures.tpot_mean_ms.mean),
        with_confidence(figures.token_hit_ratio, percent),
        share_of(|bounds| bounds.pooled_belady_token_hit_ratio),
        share_of(|bounds| bounds.pooled_lru_token_hit_ratio),
        percent(figures.stale_ratio.mean),
        format!("{:.2}", figures.load_max_over_mean.mean),
        count(figures.goodput_rps.mean),
    ]
}

/// Names and values of the bounds.
pub(crate) fn bound_rows(bounds: &Bounds) -> [(&'static str, String); 5] {
    let spread = |spread: &warmroute_sim::Spread| {
        format!("mean {}, p99 {}", duration(spread.mean), duration(spread.p99))
    };
    let about = if bounds.is_closed_loop { " (about: clients wait for answers)" } else { "" };
    let pooled = |share: f64| format!("{}{about}", percent(share));
    [
        ("infinite cache, token hit", percent(bounds.infinite_cache_token_hit_ratio)),
        ("pooled Belady, token hit", pooled(bounds.pooled_belady_token_hit_ratio)),
        ("pooled LRU, token hit", pooled(bounds.pooled_lru_token_hit_ratio)),
        ("zero-queue floor, TTFT", spread(&bounds.zero_queue_ttft_ms)),
        ("central queue (a reference, prefill only), TTFT", spread(&bounds.central_queue_ttft_ms)),
    ]
}

/// Heading of a point: the values of the varied parameters.
pub(crate) fn heading(report: &Report, point: &Point) -> Option<String> {
    let sweep = report.sweep.as_ref()?;
    let pairs = sweep.parameters.iter().zip(&point.values);
    Some(pairs.map(|(name, value)| format!("{name} {}", count(*value))).collect::<Vec<_>>().join(", "))
}

/// Renders the report for a terminal.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    for point in &report.points {
        if let Some(heading) = heading(report, point) {
            text += &format!("{heading}\n");
        }
        let unit = ttft_unit(report, point);
        let mut rows = vec![HEADS.map(str::to_owned)];
        rows.extend(report.policies().iter().filter_map(|policy| {
            Some(cells(policy, &Figures::of(point, policy)?, point.bounds.as_ref(), unit))
        }));
        text += &aligned(&rows);
        let mut rows = vec![FLEET_HEADS.map(str::to_owned)];
        rows.extend(
            report
                .policies()
                .iter()
                .filter_map(|policy| Some(fleet_cells(policy, &Figures::of(point, policy)?))),
        );
        text += &format!("\n{}", aligned(&rows));
        if let Some(bounds) = &point.bounds {
            for (name, value) in bound_rows(bounds) {
                text += &format!("  bound: {name}: {value}\n");
            }
        }
        text.push('\n');
    }
    report.remarks().iter().for_each(|note| text += &format!("note: {note}\n"));
    text
}

/// Aligns the first column left and the others right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
