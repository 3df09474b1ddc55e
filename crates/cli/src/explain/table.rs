//! Decisions as tables, as wide as the terminal.

use std::fmt::Write;

use super::decision::{Candidate, Decision};

use crate::log_lines::escaped;
use crate::text_table::{Column, ColumnKind, TextTable};

/// Maximum number of workers shown.
const ROWS_MAX: usize = 24;
const REQUEST_WIDTH: usize = 10;

const LEGEND: &str = "\
Milliseconds. cached: prompt tokens believed in the worker's cache; ahead:
prompts before it; lacking: of its prefill, what it takes because the worker
lacks what the others have; TTFT = queue + prefill; step: what it would add to
each token of the answers there; cost: what the policy compares, where it
thinks in milliseconds. The chosen worker is marked with >.
";

/// The columns of a preview. A narrow terminal shows what the policies compare.
const CANDIDATE_COLUMNS: [Column; 11] = [
    Column::new("", "", ColumnKind::Left, 0),
    Column::new("worker", "worker", ColumnKind::Address, 0),
    Column::new("cached", "cached", ColumnKind::Right, 3),
    Column::new("%", "%", ColumnKind::Right, 5),
    Column::new("ahead", "ahead", ColumnKind::Right, 6),
    Column::new("queue", "queue", ColumnKind::Right, 4),
    Column::new("prefill", "prefill", ColumnKind::Right, 2),
    Column::new("lacking", "lacking", ColumnKind::Right, 7),
    Column::new("TTFT", "TTFT", ColumnKind::Right, 0),
    Column::new("step", "step", ColumnKind::Right, 8),
    Column::new("cost", "cost", ColumnKind::Right, 1),
];

/// The columns of the last decisions.
const DECISION_COLUMNS: [Column; 8] = [
    Column::new("ago", "ago", ColumnKind::Right, 0),
    Column::new("request", "request", ColumnKind::Left, 5),
    Column::new("worker", "worker", ColumnKind::Address, 0),
    Column::new("reason", "reason", ColumnKind::Left, 3),
    Column::new("tokens", "tokens", ColumnKind::Right, 4),
    Column::new("%", "%", ColumnKind::Right, 2),
    Column::new("expected", "expected", ColumnKind::Right, 1),
    Column::new("observed", "observed", ColumnKind::Right, 1),
];

/// The candidates for a request that was not sent.
pub fn preview(decision: &Decision, width: usize) -> String {
    let mut ranked: Vec<&Candidate> = decision.candidates.iter().collect();
    ranked.sort_by(|a, b| a.compared_ms().total_cmp(&b.compared_ms()));
    let (shown, left_out) = ranked.split_at(ranked.len().min(ROWS_MAX));
    let chosen = left_out.iter().filter(|candidate| candidate.chosen);
    let rows = shown.iter().chain(chosen).map(|candidate| candidate_cells(decision, candidate)).collect();
    let lines = TextTable { columns: &CANDIDATE_COLUMNS, rows }.lines(width);
    let mut text = headline(decision) + &lines.join("\n") + "\n";
    if !left_out.is_empty() {
        _ = writeln!(text, "  {} more workers, at higher cost: --json shows all", left_out.len());
    }
    text + "\n" + LEGEND
}

fn headline(decision: &Decision) -> String {
    let Decision { policy, reason, prompt_tokens, .. } = decision;
    let chosen = decision.chosen().map_or_else(String::new, Candidate::label);
    // Clients name models.
    let model = escaped(decision.model.as_deref().unwrap_or("any model"));
    let tokens = grouped(*prompt_tokens);
    format!("{model}, {tokens} prompt tokens\n{policy}: {reason}, goes to {chosen}\n\n")
}

fn candidate_cells(decision: &Decision, candidate: &Candidate) -> [String; 11] {
    [
        if candidate.chosen { ">" } else { "" }.to_owned(),
        candidate.label(),
        grouped(candidate.overlap_tokens),
        format!("{:.0}", decision.cached_percent(candidate)),
        candidate.prompts_ahead.to_string(),
        ms(candidate.queue_ms),
        ms(candidate.prefill_ms),
        ms(candidate.lacking_ms),
        ms(candidate.expected_ttft_ms),
        format!("{:.2}", candidate.step_ms),
        candidate.cost_ms.map_or_else(|| "-".to_owned(), ms),
    ]
}

/// The last decisions, newest first.
pub fn last(decisions: &[Decision], width: usize) -> String {
    if decisions.is_empty() {
        return "No request has been routed yet.\n".to_owned();
    }
    let legend =
        "Milliseconds to the first token; %: of the prompt's tokens, believed in the\nworker's cache.\n";
    format!("{}\n\n{legend}", last_lines(decisions, width).join("\n"))
}

/// A head and a line for each decision.
pub fn last_lines(decisions: &[Decision], width: usize) -> Vec<String> {
    TextTable { columns: &DECISION_COLUMNS, rows: decisions.iter().map(decision_cells).collect() }
        .lines(width)
}

fn decision_cells(decision: &Decision) -> [String; 8] {
    let chosen = decision.chosen();
    let request = decision.request_id.as_deref().unwrap_or_default();
    [
        age(decision.age_ms.unwrap_or(0)),
        request.chars().take(REQUEST_WIDTH).collect(),
        chosen.map_or_else(String::new, Candidate::label),
        decision.reason.clone(),
        grouped(decision.prompt_tokens),
        chosen.map_or_else(String::new, |chosen| format!("{:.0}", decision.cached_percent(chosen))),
        chosen.map_or_else(String::new, |chosen| ms(chosen.expected_ttft_ms)),
        decision.observed_ttft_ms.map_or_else(|| "-".to_owned(), ms),
    ]
}

fn ms(value: f64) -> String {
    if value < 9_999.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn age(ms: u64) -> String {
    match ms / 1_000 {
        secs @ 0..100 => format!("{secs} s"),
        secs @ 100..6_000 => format!("{} m", secs / 60),
        secs => format!("{} h", secs / 3_600),
    }
}

/// Formats 12345 as 12,345.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(number: usize, cost_ms: f64) -> Candidate {
        Candidate {
            worker: format!("http://a-long-name-of-an-engine-{number}.example.org:8000"),
            rank: Some(7),
            chosen: number == 99,
            overlap_tokens: 1_234_567,
            prompts_ahead: 12_345,
            queue_ms: 1_234_567.0,
            prefill_ms: 123_456.7,
            lacking_ms: 12_345.6,
            step_ms: 1_234.567,
            expected_ttft_ms: 1_358_023.7,
            cost_ms: Some(cost_ms),
        }
    }

    fn sample() -> Decision {
        Decision {
            model: Some("llama".to_owned()),
            policy: "expected_ttft".to_owned(),
            reason: "soonest_though_colder".to_owned(),
            prompt_tokens: 2_000_000,
            candidates: (0..100).map(|number| candidate(number, number as f64 * 7_919.0)).collect(),
            age_ms: Some(86_400_000),
            request_id: Some("0123456789abcdef".to_owned()),
            observed_ttft_ms: Some(1_234_567.8),
        }
    }

    #[test]
    fn no_table_is_wider_than_the_terminal_whatever_the_numbers() {
        for width in [40, 80, 100] {
            let preview = preview(&sample(), width);
            let table = preview.lines().skip(3).take(ROWS_MAX + 2);
            let last = last(&[sample()], width);
            for line in table.chain(last.lines().take(2)) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        let legends = [LEGEND, &last(&[], 80), &last(&[sample()], 80)].concat();
        assert!(legends.lines().all(|line| line.chars().count() <= 80), "{legends}");
    }

    #[test]
    fn the_cheapest_come_first_and_the_chosen_one_is_never_left_out() {
        let text = preview(&sample(), 120);
        let rows: Vec<&str> = text.lines().filter(|line| line.contains(":8000@7 ")).collect();
        assert_eq!(rows.len(), ROWS_MAX + 1);
        assert!(rows[0].trim_end().ends_with(" 0.0"), "{text}");
        assert!(rows[ROWS_MAX].starts_with("> ") && !rows[0].starts_with('>'), "{text}");
        assert!(text.contains("76 more workers"), "{text}");
    }

    #[test]
    fn numbers_are_grouped_and_ages_are_short() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 99_999, 100_000, 7_200_000].map(age), ["0 s", "99 s", "1 m", "2 h"]);
    }
}
