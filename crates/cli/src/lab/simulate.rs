//! `warmroute lab simulate`.

use warmroute_report::Report;

use super::args::SimulateArgs;
use super::output;
use super::runs::{Contest, Keep, progress_bar};
use super::scene::Scene;

/// Runs every policy on the same arrivals and compares them.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    // A sweep may compare one router with several.
    anyhow::ensure!(
        args.scene.routers > 1 || args.scene.share_delay_ms.is_none(),
        "--share-delay-ms means nothing with one router: set --routers"
    );
    let contest = Contest::new(&args.contest, args.scene.traffic.seed)?;
    let scene = Scene::new(&args.scene, args.contest.seeds)?;
    let keep = if args.requests_out.is_some() { Keep::Records } else { Keep::Summaries };
    let bar = progress_bar(contest.runs(), "runs");
    let ran = contest.run(&scene, keep, &bar)?;
    bar.finish_and_clear();
    if let Some(file) = &args.requests_out {
        output::write_rows(file, &ran.records)?;
    }
    let workers = scene.config.fleet.len();
    let report = Report {
        title: format!("{} on {workers} workers", output::traffic(&args.scene.traffic)),
        command: output::command(),
        setup: output::setup(&args.scene, args.contest.seeds),
        notes: scene.notes,
        points: vec![ran.point],
        sweep: None,
        details: ran.details,
    };
    output::write(&args.output, &report, &output::results(&report))
}
