//! What breaks prefixes, as the admin listener returns it and as text.

use std::fmt::Write;

use serde::Deserialize;

/// What breaks the prefixes of prompts.
#[derive(Deserialize)]
pub struct PrefixPage {
    observed: u64,
    skipped: u64,
    models: Vec<BrokenModel>,
}

/// Breaks of one model.
#[derive(Deserialize)]
struct BrokenModel {
    model: String,
    covered_s: f64,
    compared: u64,
    broken: u64,
    broken_share: f64,
    prompt_tokens: u64,
    lost_tokens: u64,
    /// Only if enough time is covered to tell.
    lost_tokens_per_day: Option<u64>,
    breaks: Vec<PrefixBreak>,
}

/// A place where prompts part.
#[derive(Deserialize)]
struct PrefixBreak {
    typical_of: String,
    advice: String,
    field: String,
    byte: Option<u32>,
    share: f64,
    lost_tokens: u64,
    lost_tokens_per_day: Option<u64>,
}

/// Places shown for a model.
const PLACES_MAX: usize = 5;

impl PrefixPage {
    /// The page as text.
    pub fn text(&self) -> String {
        if self.models.is_empty() {
            return format!(
                "{} prompts observed; none could be compared with an earlier one yet.\n",
                self.observed
            );
        }
        let mut text: String = self.models.iter().map(BrokenModel::text).collect();
        if self.skipped > 0 {
            _ = writeln!(text, "{} prompts were not observed, to bound the cost.", self.skipped);
        }
        text + LEGEND
    }
}

const LEGEND: &str = "\
Compared: prompts of one session, conversation or application, each with the one before it. Lost: tokens
that the earlier prompt had too, after the place where they part; estimated at four bytes a token.
";

impl BrokenModel {
    fn text(&self) -> String {
        let mut text =
            format!("model {}: {} prompts compared in {}, ", self.model, self.compared, time(self.covered_s));
        if self.broken == 0 {
            return text + "none broken\n\n";
        }
        let of_all = 100.0 * self.lost_tokens as f64 / self.prompt_tokens.max(1) as f64;
        _ = writeln!(
            text,
            "{} broken; {} lost, {of_all:.0} % of all",
            percent(self.broken_share),
            loss("tokens of prefill", self.lost_tokens, self.lost_tokens_per_day),
        );
        let places = self.breaks.iter().take(PLACES_MAX);
        places.for_each(|place| text.push_str(&place.text()));
        if let Some(more) = self.breaks.len().checked_sub(PLACES_MAX + 1) {
            _ = writeln!(text, "  {} more places: --json shows them", more + 1);
        }
        text + "\n"
    }
}

impl PrefixBreak {
    fn text(&self) -> String {
        let place = match self.byte {
            Some(byte) => format!("part at byte {byte} of {}", self.field),
            None => format!("part in {}", self.field),
        };
        format!(
            "  {} of requests {place}; {} lost\n    typical of {}\n    {}\n",
            percent(self.share),
            loss("tokens", self.lost_tokens, self.lost_tokens_per_day),
            self.typical_of,
            self.advice,
        )
    }
}

/// A loss, as it would be in a day if that is known.
fn loss(unit: &str, tokens: u64, tokens_per_day: Option<u64>) -> String {
    match tokens_per_day {
        None => format!("{} {unit}", scaled(tokens)),
        Some(tokens) => format!("{} {unit} a day", scaled(tokens)),
    }
}

fn time(seconds: f64) -> String {
    match seconds / 3_600.0 {
        hours if hours < 1.0 => format!("{:.0} min", hours * 60.0),
        hours => format!("{hours:.1} h"),
    }
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        small if small < 1.0 => format!("{small:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// Formats 61200000 as 61.2 million.
fn scaled(number: u64) -> String {
    match number as f64 {
        large if large >= 1e9 => format!("{:.1} billion", large / 1e9),
        large if large >= 1e6 => format!("{:.1} million", large / 1e6),
        large if large >= 1e4 => format!("{:.0} thousand", large / 1e3),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_break_is_told_with_its_place_cause_and_advice() {
        let page = json!({"observed": 105, "skipped": 7, "models": [{
            "model": "m", "covered_s": 7200.0, "compared": 100, "broken": 38, "broken_share": 0.38,
            "prompt_tokens": 100_000, "lost_tokens": 30_000, "lost_tokens_per_day": 61_200_000,
            "breaks": [{"typical_of": "a timestamp", "advice": "Move it.", "field": "system[0]", "byte": 212,
                "share": 0.38, "lost_tokens": 30_000, "lost_tokens_per_day": 61_200_000}]}]});
        let mut early = page.clone();
        early["models"][0]["covered_s"] = json!(60.0);
        early["models"][0]["lost_tokens_per_day"] = Value::Null;
        early["models"][0]["breaks"][0]["lost_tokens_per_day"] = Value::Null;
        let page: PrefixPage = serde_json::from_value(page).unwrap();
        let expected = "model m: 100 prompts compared in 2.0 h, 38 % broken; 61.2 million tokens of prefill a day \
            lost, 30 % of all\n  38 % of requests part at byte 212 of system[0]; 61.2 million tokens a day lost\n    \
            typical of a timestamp\n    Move it.\n\n7 prompts were not observed, to bound the cost.\n";
        assert!(page.text().starts_with(expected), "{}", page.text());
        let early: PrefixPage = serde_json::from_value(early).unwrap();
        let expected = "model m: 100 prompts compared in 1 min, 38 % broken; 30 thousand tokens of prefill lost, 30 % of all\n  \
            38 % of requests part at byte 212 of system[0]; 30 thousand tokens lost\n";
        assert!(early.text().starts_with(expected), "a minute says nothing about a day: {}", early.text());
        let none: PrefixPage =
            serde_json::from_value(json!({"observed": 1, "skipped": 0, "models": []})).unwrap();
        assert!(none.text().starts_with("1 prompts observed; none could be compared"));
    }
}
