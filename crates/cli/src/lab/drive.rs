//! `warmroute lab drive`: sends the lab's traffic in real time to any router with the OpenAI API.
//!
//! Sessions run closed loop, as in virtual time. Results contain what clients measure and what engines report about
//! their caches, and nothing that only a simulation can know.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use warmroute_sim::{LoadSeries, Outcome, Record, Replication, Session, SessionText, Summary, Turn, tokens};
use warmroute_types::{Micros, Usage};

use super::args::DriveArgs;
use super::output::{self, Printed};
use super::runs::progress_bar;
use super::traffic::Traffic;
use crate::client::{self, Question, Served};
use crate::serve::runtime;

/// Figures of a simulation that clients can measure, too. The last three need engines that report cached tokens.
const MEASURED: [&str; 14] = [
    "policy",
    "seed",
    "requests",
    "failed",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "output_tokens_per_s",
    "throughput_rps",
    "goodput_rps",
    "output_tokens",
    "token_hit_ratio",
    "request_hit_ratio",
    "prefill_tokens_computed",
];
const OF_CACHES: usize = 3;

/// Tolerated relative difference between the prompts' tokens and the engines' count: a chat template adds a few.
const TOKENS_MARGIN: f64 = 0.1;

/// Sends the traffic and reports the results.
pub fn run(args: &DriveArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.speed.is_finite() && args.speed > 0.0, "--speed must be greater than 0");
    anyhow::ensure!(args.url.scheme_str() == Some("http"), "--url must begin with http://");
    let seed = args.traffic.seed;
    let sessions: Vec<Session> = Traffic::new(&args.traffic, 1)?.sessions(seed).collect();
    let bar = progress_bar(sessions.iter().map(|session| session.turns.len()).sum(), "requests");
    let stage = Stage::new(args, bar.clone())?;
    let driven = runtime(0)?.block_on(drive(sessions, stage));
    bar.finish_and_clear();
    driven.warn_of_tokens(args.token_bytes);
    if let Some(failure) = driven.failures.first() {
        eprintln!("{} requests failed, the first with: {failure}", driven.failures.len());
    }
    anyhow::ensure!(!driven.records.is_empty(), "nothing was answered");
    let name = args.name.clone().unwrap_or_else(|| args.url.to_string());
    let result = driven.result(&name, args);
    if output::write_json(args.json.as_deref(), &json!({"results": [&result]}))? == Printed::All {
        return Ok(());
    }
    output::print(&format!("{result:#}\n"))
}

/// The completions URL for a base URL with or without the API version.
fn completions(base: &str) -> String {
    let base = base.trim_end_matches('/');
    format!("{}/v1/completions", base.strip_suffix("/v1").unwrap_or(base))
}

/// What all sessions share.
struct Stage {
    authority: String,
    path: String,
    model: String,
    token_bytes: u8,
    speed: f64,
    began: Instant,
    bar: ProgressBar,
}

/// The results.
#[derive(Default)]
struct Driven {
    records: Vec<Record>,
    failures: Vec<String>,
    /// Whether any engine reported cached tokens.
    tells_cached: bool,
    /// Prompt tokens as sent, and as counted by the engines.
    asked_tokens: u64,
    counted_tokens: u64,
}

impl Stage {
    fn new(args: &DriveArgs, bar: ProgressBar) -> anyhow::Result<Stage> {
        let authority = args.url.authority().context("--url names no host")?.as_str();
        let port = if args.url.port().is_none() { ":80" } else { "" };
        Ok(Stage {
            authority: format!("{authority}{port}"),
            path: completions(args.url.path()),
            token_bytes: args.token_bytes,
            model: args.model.clone(),
            speed: args.speed,
            began: Instant::now(),
            bar,
        })
    }

    /// Converts engine time to wall time.
    fn wall(&self, engine: Micros) -> Duration {
        Duration::from_micros(engine.0).div_f64(self.speed)
    }

    fn engine_us(&self, wall: Duration) -> u64 {
        (wall.as_secs_f64() * self.speed * 1e6).round() as u64
    }

    fn question(&self, turn: &Turn, texts: &SessionText) -> Question<'_> {
        let body = json!({
            "model": self.model, "prompt": texts.prompt(&turn.prompt), "max_tokens": tokens(&turn.answer),
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        });
        let session = turn.thread.key.map(|key| format!("{key:016x}"));
        Question { authority: &self.authority, path: &self.path, session, body: body.to_string() }
    }
}

/// Runs every session from its own start time.
async fn drive(sessions: Vec<Session>, mut stage: Stage) -> Driven {
    let first = sessions.first().map_or(Micros::ZERO, |session| session.starts);
    stage.began = Instant::now();
    let stage = Arc::new(stage);
    let mut playing = JoinSet::new();
    for session in sessions {
        let after = stage.wall(Micros(session.starts.0.saturating_sub(first.0)));
        tokio::time::sleep_until(stage.began + after).await;
        playing.spawn(play(session, Arc::clone(&stage)));
    }
    let mut driven = Driven::default();
    while let Some(played) = playing.join_next().await {
        driven.add(played.unwrap_or_else(|error| Driven::failed(error.to_string())));
    }
    driven
}

/// Runs one session. A failed turn ends it, because the next turn needs the answer.
async fn play(session: Session, stage: Arc<Stage>) -> Driven {
    let (mut driven, mut texts) = (Driven::default(), SessionText::new(stage.token_bytes));
    for (index, turn) in session.turns.iter().enumerate() {
        if index > 0 {
            tokio::time::sleep(stage.wall(turn.think)).await;
        }
        let asked = stage.began.elapsed();
        match client::ask(stage.question(turn, &texts)).await {
            Ok(served) => {
                texts.add_answer(&turn.answer, &served.text);
                driven.note(&stage, asked, index, turn, &served);
            }
            Err(error) => {
                driven.add(Driven::failed(format!("{error:#}")));
                break;
            }
        }
        stage.bar.inc(1);
    }
    driven
}

impl Driven {
    fn failed(why: String) -> Driven {
        Driven { failures: vec![why], ..Driven::default() }
    }

    fn add(&mut self, other: Driven) {
        self.records.extend(other.records);
        self.failures.extend(other.failures);
        self.tells_cached |= other.tells_cached;
        self.asked_tokens += other.asked_tokens;
        self.counted_tokens += other.counted_tokens;
    }

    /// Warns if the engines tokenize differently, because their work then differs from the trace.
    fn warn_of_tokens(&self, token_bytes: u8) {
        let ratio = self.counted_tokens as f64 / self.asked_tokens.max(1) as f64;
        if self.asked_tokens > 0 && (ratio - 1.0).abs() > TOKENS_MARGIN {
            eprintln!(
                "prompts had {ratio:.2} times the tokens of this traffic: the engines do not make one of {token_bytes} bytes; \
                 try --token-bytes {:.0}",
                f64::from(token_bytes) / ratio
            );
        }
    }

    fn note(&mut self, stage: &Stage, asked: Duration, index: usize, turn: &Turn, served: &Served) {
        // Without usage, the requested number of tokens is the best estimate.
        let asked_for = Usage {
            prompt_tokens: tokens(&turn.prompt),
            output_tokens: tokens(&turn.answer),
            cached_tokens: None,
        };
        let usage = served.usage.unwrap_or(asked_for);
        self.tells_cached |= usage.cached_tokens.is_some();
        self.asked_tokens += u64::from(asked_for.prompt_tokens);
        self.counted_tokens += u64::from(usage.prompt_tokens);
        self.records.push(Record {
            asked_us: stage.engine_us(asked),
            ttft_us: stage.engine_us(served.ttft),
            e2e_us: stage.engine_us(served.e2e),
            worker: 0,
            turn: index as u32,
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.output_tokens,
            cached_tokens: usage.cached_tokens.unwrap_or(0),
            predicted_tokens: None,
            restorable_tokens: 0,
            stale_tokens: 0,
            missed_tokens: 0,
        });
    }

    /// The results in the format of a simulation's.
    fn result(self, name: &str, args: &DriveArgs) -> Value {
        let output_tokens: u64 = self.records.iter().map(|record| u64::from(record.output_tokens)).sum();
        let outcome = Outcome {
            records: self.records,
            failed: self.failures.len() as u64,
            totals: Vec::new(),
            load: LoadSeries::default(),
            replication: Replication::default(),
            rejected: 0,
            retried: 0,
            index_bytes: 0,
            told_bytes: 0,
        };
        let mut all = json!(Summary::of(name, args.traffic.seed, &outcome, args.slo.into()));
        all["output_tokens"] = json!(output_tokens);
        let unknown = if self.tells_cached { 0 } else { OF_CACHES };
        let known = MEASURED[..MEASURED.len() - unknown].iter();
        known.map(|&figure| (figure.to_owned(), all[figure].take())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::completions;

    #[test]
    fn a_base_is_taken_with_its_version_and_without() {
        for base in ["", "/", "/v1", "/v1/"] {
            assert_eq!(completions(base), "/v1/completions");
        }
        assert_eq!(completions("/models/a/v1"), "/models/a/v1/completions");
        assert_eq!(completions("/models/a"), "/models/a/v1/completions");
    }
}
