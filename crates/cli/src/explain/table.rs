//! Decisions as tables, no wider than 100 columns.

use std::fmt::Write;

use super::decision::{Candidate, Decision};

use crate::log_lines::escaped;

/// Maximum number of workers shown.
const ROWS_MAX: usize = 24;
/// Longer addresses are cut at the start, because their ends differ.
const WORKER_WIDTH: usize = 24;
const REQUEST_WIDTH: usize = 10;

const LEGEND: &str = "\
Milliseconds. cached: prompt tokens believed in the worker's cache; ahead: prompts before it;
lacking: of its prefill, what it takes because the worker lacks what the others have; TTFT = queue +
prefill; step: what it would add to each token of the answers there; cost: what the policy compares,
where it thinks in milliseconds. The chosen worker is marked with >.
";

/// The candidates for a request that was not sent.
pub fn preview(decision: &Decision) -> String {
    let mut ranked: Vec<&Candidate> = decision.candidates.iter().collect();
    ranked.sort_by(|a, b| a.compared_ms().total_cmp(&b.compared_ms()));
    let mut text = headline(decision);
    text.push_str(&row(
        "",
        ["worker", "cached", "%", "ahead", "queue", "prefill", "lacking", "TTFT", "step", "cost"],
    ));
    let (shown, left_out) = ranked.split_at(ranked.len().min(ROWS_MAX));
    let chosen = left_out.iter().filter(|candidate| candidate.chosen);
    shown.iter().chain(chosen).for_each(|candidate| text.push_str(&candidate_row(decision, candidate)));
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

fn candidate_row(decision: &Decision, candidate: &Candidate) -> String {
    let mark = if candidate.chosen { ">" } else { "" };
    let cells = [
        cut(&candidate.label(), WORKER_WIDTH),
        grouped(candidate.overlap_tokens),
        format!("{:.0}", decision.cached_percent(candidate)),
        candidate.prompts_ahead.to_string(),
        ms(candidate.queue_ms),
        ms(candidate.prefill_ms),
        ms(candidate.lacking_ms),
        ms(candidate.expected_ttft_ms),
        format!("{:.2}", candidate.step_ms),
        candidate.cost_ms.map_or_else(|| "-".to_owned(), ms),
    ];
    row(mark, cells.each_ref().map(String::as_str))
}

fn row(mark: &str, cells: [&str; 10]) -> String {
    let [worker, cached, percent, ahead, queue, prefill, lacking, ttft, step, cost] = cells;
    let line = format!(
        "{mark:<2}{worker:<WORKER_WIDTH$} {cached:>9} {percent:>3} {ahead:>5} {queue:>8} {prefill:>8} {lacking:>8} {ttft:>8} {step:>7} {cost:>8}"
    );
    format!("{}\n", line.trim_end())
}

/// The last decisions, newest first.
pub fn last(decisions: &[Decision]) -> String {
    if decisions.is_empty() {
        return "No request has been routed yet.\n".to_owned();
    }
    let heads = ["ago", "request", "worker", "reason", "tokens", "%", "expected", "observed"];
    let mut text = decision_row(heads);
    decisions.iter().for_each(|decision| text.push_str(&last_row(decision)));
    text + "\nMilliseconds to the first token; %: of the prompt's tokens, believed in the worker's cache.\n"
}

fn last_row(decision: &Decision) -> String {
    let chosen = decision.chosen();
    let cells = [
        age(decision.age_ms.unwrap_or(0)),
        decision
            .request_id
            .as_deref()
            .map_or_else(String::new, |id| id.chars().take(REQUEST_WIDTH).collect()),
        cut(&chosen.map_or_else(String::new, Candidate::label), WORKER_WIDTH),
        decision.reason.clone(),
        grouped(decision.prompt_tokens),
        chosen.map_or_else(String::new, |chosen| format!("{:.0}", decision.cached_percent(chosen))),
        chosen.map_or_else(String::new, |chosen| ms(chosen.expected_ttft_ms)),
        decision.observed_ttft_ms.map_or_else(|| "-".to_owned(), ms),
    ];
    decision_row(cells.each_ref().map(String::as_str))
}

fn decision_row(cells: [&str; 8]) -> String {
    let [age, request, worker, reason, tokens, percent, expected, observed] = cells;
    format!(
        "{age:>5} {request:<REQUEST_WIDTH$} {worker:<WORKER_WIDTH$} {reason:<21} {tokens:>9} {percent:>4} {expected:>8} {observed:>8}\n"
    )
}

fn cut(text: &str, width: usize) -> String {
    let len = text.chars().count();
    if len <= width {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(len + 1 - width)).collect()
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
    fn no_line_is_wider_than_a_terminal_whatever_the_numbers() {
        for text in [preview(&sample()), last(&[sample()]), last(&[])] {
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= 100, "{widest}: {text}");
        }
    }

    #[test]
    fn the_cheapest_come_first_and_the_chosen_one_is_never_left_out() {
        let text = preview(&sample());
        let rows: Vec<&str> = text.lines().filter(|line| line.contains(":8000@7 ")).collect();
        assert_eq!(rows.len(), ROWS_MAX + 1);
        assert!(rows[0].trim_end().ends_with(" 0.0"), "{text}");
        assert!(rows[ROWS_MAX].starts_with("> ") && !rows[0].starts_with('>'), "{text}");
        assert!(text.contains("76 more workers"), "{text}");
    }

    #[test]
    fn long_names_keep_their_ends_and_numbers_their_groups() {
        assert_eq!(cut("http://engine", 8), "…/engine"[..].to_owned());
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 99_999, 100_000, 7_200_000].map(age), ["0 s", "99 s", "1 m", "2 h"]);
    }
}
