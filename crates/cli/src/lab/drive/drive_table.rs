//! The results of a run as a table: what clients saw, and what engines measured.

use serde_json::Value;

use super::driven::ClosedLoop;
use super::engine_metrics::{EngineFigures, EngineReport};

const HEADS: [&str; 11] = [
    "measured by",
    "requests",
    "mean TTFT ms",
    "p50",
    "p95",
    "p99",
    "computed tokens",
    "token hit ratio",
    "waiting, mean",
    "last",
    "preemptions",
];

/// The table, rates, and why figures are absent.
pub fn drive_table(result: &Value, closed: Option<&ClosedLoop>, engines: Option<&EngineReport>) -> String {
    let mut rows = vec![HEADS.map(str::to_owned), client_row(result)];
    if let Some(EngineReport { sum, each }) = engines {
        rows.extend(std::iter::once(sum).chain(each).map(engine_row));
    }
    let mut text = aligned(&rows);
    text += &rates(result, closed);
    if let Some(EngineReport { sum, each }) = engines {
        for engine in std::iter::once(sum).chain(each) {
            engine.problems.iter().for_each(|problem| text += &format!("{}: {problem}\n", engine.engine));
        }
    }
    text
}

fn client_row(result: &Value) -> [String; HEADS.len()] {
    let ttft = |name: &str| figure(result["ttft_ms"][name].as_f64(), 1);
    let (computed, hits) = (result["prefill_tokens_computed"].as_f64(), result["token_hit_ratio"].as_f64());
    [
        "clients".to_owned(),
        figure(result["requests"].as_f64(), 0),
        ttft("mean"),
        ttft("p50"),
        ttft("p95"),
        ttft("p99"),
        figure(computed, 0),
        figure(hits, 3),
        figure(None, 0),
        figure(None, 0),
        figure(None, 0),
    ]
}

fn engine_row(engine: &EngineFigures) -> [String; HEADS.len()] {
    let ttft = engine.ttft_ms;
    let count = |count: Option<u64>| figure(count.map(|count| count as f64), 0);
    [
        engine.engine.clone(),
        count(engine.requests),
        figure(ttft.map(|ttft| ttft.mean), 1),
        figure(ttft.map(|ttft| ttft.p50), 1),
        figure(ttft.map(|ttft| ttft.p95), 1),
        figure(ttft.map(|ttft| ttft.p99), 1),
        count(engine.prefill_tokens_computed),
        figure(engine.token_hit_ratio, 3),
        figure(engine.waiting.mean, 1),
        figure(engine.waiting.last, 0),
        count(engine.preemptions),
    ]
}

fn rates(result: &Value, closed: Option<&ClosedLoop>) -> String {
    let rate = |name: &str| figure(result[name].as_f64(), 2);
    let mut text = format!(
        "{} requests failed. Throughput: {} requests/s ({} within the SLO), {} output tokens/s.\n",
        result["failed"],
        rate("throughput_rps"),
        rate("goodput_rps"),
        rate("output_tokens_per_s"),
    );
    if let Some(closed) = closed {
        text += &format!(
            "With {} requests in flight, for {:.1} s: {} requests/s, {} output tokens/s.\n",
            closed.concurrency,
            closed.full_s,
            figure(closed.throughput_rps, 2),
            figure(closed.output_tokens_per_s, 2),
        );
    }
    text
}

/// A figure, or a dash where there is none.
fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}

/// Aligns the first column left and the others right.
fn aligned(rows: &[[String; HEADS.len()]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let line = |row: &[String; HEADS.len()]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
