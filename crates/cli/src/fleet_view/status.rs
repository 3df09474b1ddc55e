//! `warmroute status`: one line about a running gateway, for scripts.

use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::fleet_reading::FleetReading;
use crate::args::StatusArgs;
use crate::explain::query::{AdminListener, Refused};
use crate::output::print_line;

/// How often a gateway is asked that is not ready yet.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Prints the status. Fails if the gateway is not ready, which makes the exit code 1.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let reading = runtime.block_on(read(args))?;
    match args.json {
        true => print_line(describe(&reading)),
        false => print_line(line(&reading)),
    }?;
    anyhow::ensure!(reading.is_ready(), "the gateway is not ready: {}", reading.readiness);
    Ok(())
}

/// Reads until the gateway is ready, or the time to wait is over.
async fn read(args: &StatusArgs) -> anyhow::Result<FleetReading> {
    let mut listener = AdminListener::new(&args.gateway)?;
    let until = Instant::now().checked_add(args.wait.0).context("--wait: the time is too long")?;
    loop {
        let reading = FleetReading::take(&mut listener).await;
        let is_final = match &reading {
            Ok(reading) => reading.is_ready(),
            Err(error) => error.is::<Refused>(),
        };
        if is_final || Instant::now() >= until {
            return reading;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

fn line(reading: &FleetReading) -> String {
    format!(
        "{} workers={} ready={} in_flight={} waiting={}",
        if reading.is_ready() { "ready" } else { "not_ready" },
        reading.workers.len(),
        reading.ready_workers(),
        reading.in_flight(),
        reading.waiting()
    )
}

fn describe(reading: &FleetReading) -> Value {
    let worker = |worker: &super::fleet_reading::WorkerReading| {
        json!({
            "worker": worker.label, "state": worker.state, "view": worker.view, "in_flight": worker.in_flight,
            "expected_queue_ms": worker.queue_ms, "requests": worker.counts.requests,
            "failures": worker.counts.failures, "prompt_tokens": worker.counts.prompt_tokens,
            "cached_tokens": worker.counts.cached_tokens,
        })
    };
    json!({
        "ready": reading.is_ready(), "readiness": reading.readiness, "workers": reading.workers.len(),
        "ready_workers": reading.ready_workers(), "in_flight": reading.in_flight(), "waiting": reading.waiting(),
        "fleet": reading.workers.iter().map(worker).collect::<Vec<_>>(),
    })
}
