//! `warmroute demo`: engines, gateway and workload in one process, in under a minute.
//!
//! Simulated engines and the real gateway listen on free loopback ports. A workload of conversations runs once for
//! each policy, every time on fresh engines. The figures come from the clients' measurements and the engines'
//! counters.

mod fleet;
mod load;
mod report;
mod workload;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warmroute_operate::{StopSignals, announce};

use crate::args::DemoArgs;
use crate::output::print_line;
use crate::plan::parse_policy;
use crate::runtime::runtime;
use fleet::Fleet;
use report::Run;
use workload::Workload;

/// Runs the workload, or keeps the gateway and engines running.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    anyhow::ensure!(args.speed.is_finite() && args.speed > 0.0, "--speed must be greater than 0");
    anyhow::ensure!(!args.policies.is_empty(), "--policies must name at least one policy");
    for policy in &args.policies {
        parse_policy(policy)?;
    }
    runtime(0)?.block_on(async { if args.keep { keep(&args).await } else { compare(&args).await } })
}

/// Runs each policy once, then prints the table.
async fn compare(args: &DemoArgs) -> anyhow::Result<()> {
    let workload = Workload::new(args.conversations, args.seed);
    let mut runs = Vec::new();
    for policy in &args.policies {
        runs.push(measure(args, policy, &workload).await.with_context(|| format!("with {policy}"))?);
    }
    let text = if args.json {
        report::as_json(&workload, &runs).to_string()
    } else {
        report::as_table(args, &workload, &runs)
    };
    print_line(text)
}

async fn measure(args: &DemoArgs, policy: &str, workload: &Workload) -> anyhow::Result<Run> {
    let fleet = Fleet::start(args, policy).await?;
    let bar = progress_bar(policy, workload.requests());
    let target = load::Target { gateway: fleet.service.listening, model: fleet::MODEL, speed: args.speed };
    let served = load::run(workload, target, &bar).await;
    bar.finish_and_clear();
    let run = Run::new(policy, &served, &fleet.stats(), args.speed);
    fleet.stop().await?;
    Ok(run)
}

fn progress_bar(policy: &str, requests: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{msg:<18} {bar:40} {pos}/{len} requests  {elapsed}")
        .expect("the template is a constant");
    ProgressBar::with_draw_target(Some(requests), target).with_style(style).with_message(policy.to_owned())
}

/// Keeps the gateway and the engines running until SIGTERM.
async fn keep(args: &DemoArgs) -> anyhow::Result<()> {
    let policy = args.policies.last().expect("checked in run");
    let mut stop = StopSignals::listen()?;
    let fleet = Fleet::start(args, policy).await?;
    announce(&fleet.service).await;
    eprintln!(
        "{} simulated engines behind {policy}; the text is filler. Try:\n\n  curl -N http://{}/v1/chat/completions \
         -H 'content-type: application/json' \\\n    -d '{{\"model\":\"{}\",\"stream\":true,\"max_tokens\":20,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'\n\n  warmroute top --admin http://{admin}\n  curl http://{admin}/workers\n\nThe live console is at \
         http://{admin}/ui. Ctrl-C ends it.",
        args.engines,
        fleet.service.listening,
        fleet::MODEL,
        admin = fleet.service.admin,
    );
    stop.received().await;
    tokio::select! {
        stopped = fleet.stop() => stopped,
        () = stop.received() => Ok(()),
        () = tokio::time::sleep(Duration::from_secs(10)) => Ok(()),
    }
}
