//! `warmroute lab drive`: sends the lab's traffic in real time to any router with the OpenAI API.
//!
//! ```text
//!   sessions ──▶ stage (their own times, or N requests in flight) ──▶ driven: what clients saw ─┐
//!   engines' /metrics before, during and after ──▶ engine_metrics: what engines measured ───────┴─▶ table, JSON
//! ```
//!
//! A session's turns stay in order, as in virtual time. Results contain nothing that only a simulation can know.

mod drive_table;
mod driven;
mod engine_metrics;
mod metrics_page;
mod stage;

use std::collections::BTreeSet;

use serde_json::json;
use warmroute_sim::Session;

use super::args::DriveArgs;
use super::output::{self, Printed};
use super::runs::progress_bar;
use super::traffic::Traffic;
use crate::runtime::runtime;
use engine_metrics::{EngineReport, EngineWatch};
use stage::{Played, Stage};

/// Sends the traffic and reports the results.
pub fn run(args: &DriveArgs) -> anyhow::Result<()> {
    check(args)?;
    let seed = args.traffic.seed;
    let sessions: Vec<Session> = Traffic::new(&args.traffic, 1)?.sessions(seed).collect();
    let bar = progress_bar(sessions.iter().map(|session| session.turns.len()).sum(), "requests");
    let stage = Stage::new(args, bar.clone())?;
    let (Played { driven, full_us }, engines) = runtime(0)?.block_on(play_watched(args, sessions, stage))?;
    bar.finish_and_clear();
    driven.warn(args.token_bytes);
    anyhow::ensure!(!driven.records.is_empty(), "nothing was answered");
    let closed = args.concurrency.map(|concurrency| driven.closed_loop(concurrency, full_us));
    if let (Some(closed), Some(duration)) = (&closed, args.duration)
        && closed.full_s < duration
    {
        eprintln!("the traffic ended {:.1} s before --duration: raise --requests", duration - closed.full_s);
    }
    let name = args.name.clone().unwrap_or_else(|| args.url.to_string());
    let mut result = driven.result(&name, seed, args.slo.into());
    if let Some(closed) = &closed {
        result["closed_loop"] = json!(closed);
    }
    if let Some(engines) = &engines {
        result["engines"] = json!(engines);
    }
    if output::write_json(args.json.as_deref(), &json!({"results": [&result]}))? == Printed::All {
        return Ok(());
    }
    output::print(&drive_table::drive_table(&result, closed.as_ref(), engines.as_ref()))
}

fn check(args: &DriveArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.speed.is_finite() && args.speed > 0.0, "--speed must be greater than 0");
    anyhow::ensure!(args.url.scheme_str() == Some("http"), "--url must begin with http://");
    let is_time = |s: f64| s > 0.0 && std::time::Duration::try_from_secs_f64(s / args.speed).is_ok();
    anyhow::ensure!(args.duration.is_none_or(is_time), "--duration must be greater than 0");
    for url in &args.engine_metrics {
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        anyhow::ensure!(is_http, "--engine-metrics {url}: must begin with http:// or https://");
    }
    let mut engines = BTreeSet::new();
    let twice = args.engine_metrics.iter().find(|url| !engines.insert(base_of(&url.to_string())));
    if let Some(url) = twice {
        anyhow::bail!("--engine-metrics names {url} twice");
    }
    Ok(())
}

/// Plays the sessions between two readings of the engines' metrics.
async fn play_watched(
    args: &DriveArgs,
    sessions: Vec<Session>,
    stage: Stage,
) -> anyhow::Result<(Played, Option<EngineReport>)> {
    if args.engine_metrics.is_empty() {
        return Ok((stage.play_all(sessions).await, None));
    }
    let watch = EngineWatch::begin(&args.engine_metrics).await?;
    let played = stage.play_all(sessions).await;
    Ok((played, Some(watch.finish().await?)))
}

/// A base URL or path without a slash at its end and without the API version.
fn base_of(url: &str) -> String {
    let base = url.trim_end_matches('/');
    base.strip_suffix("/v1").unwrap_or(base).to_owned()
}

#[cfg(test)]
mod tests {
    use super::base_of;

    #[test]
    fn a_base_is_taken_with_its_version_and_without() {
        for base in ["", "/", "/v1", "/v1/"] {
            assert_eq!(base_of(base), "");
        }
        assert_eq!(base_of("/models/a/v1"), "/models/a");
        assert_eq!(base_of("http://h:80/models/a"), "http://h:80/models/a");
    }
}
