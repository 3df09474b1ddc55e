//! `warmroute doctor`: checks whether a configuration works, and reports what to change.
//!
//! `check` only reads a configuration; `doctor` connects. It asks every worker what the gateway would ask: health,
//! models, cache size, event sources, tokens. Workers in Kubernetes are listed once. It also sends one short prompt twice, because only an answer shows
//! whether the engine reports cached tokens. It probes peers or the Redis server without joining.

mod engine;
mod finding;
mod fleet;
mod kubernetes;
mod routers;

use std::collections::BTreeMap;

use warmroute_discovery::{EventsEntry, ListedWorker};

use crate::args::DoctorArgs;
use crate::given::{Given, file_and_urls};
use crate::options::{OnOff, Written};
use crate::output::print_line;
use crate::plan::Plan;
use engine::EngineCheck;
use finding::{Finding, Level};

/// Runs all checks, prints the findings, and fails if something does not work.
pub fn run(args: DoctorArgs, written: &Written) -> anyhow::Result<()> {
    let (file, urls) = file_and_urls(&args.places, args.config.as_deref(), written)?;
    let given = Given::read(args.options, urls, file, written)?;
    let plan = given.plan()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let troubles = runtime.block_on(check(&plan, &given.warnings(), args.requests))?;
    anyhow::ensure!(troubles == 0, "{troubles} thing(s) do not work");
    Ok(())
}

async fn check(plan: &Plan, warnings: &[String], requests: OnOff) -> anyhow::Result<usize> {
    let mut configuration = fleet::configuration(plan);
    configuration.extend(warnings.iter().map(|text| Finding::note(text, "set what it needs, or remove it")));
    let mut troubles = print_findings("configuration", &configuration)?;
    let (findings, in_kubernetes) = kubernetes::check(&plan.sources.kubernetes).await;
    troubles += print_findings("Kubernetes", &findings)?;
    let mut checked = Vec::new();
    let listed = plan.sources.listed.iter().chain(&in_kubernetes);
    for (url, (ranks, events)) in listed_engines(listed) {
        let mut engine = EngineCheck::new(&url, ranks, events, &plan.gateway.dialer);
        let findings = engine.check(plan, requests).await;
        troubles += print_findings(&url, &findings)?;
        checked.push(engine);
    }
    troubles += print_findings("together", &fleet::compare(&checked))?;
    if let Some(sharing) = &plan.sharing {
        troubles += print_findings("other routers", &routers::check(sharing).await)?;
    }
    Ok(troubles)
}

/// The listed engines, each with its number of ranks and its event settings.
fn listed_engines<'a>(
    workers: impl Iterator<Item = &'a ListedWorker>,
) -> BTreeMap<String, (Option<u16>, Option<EventsEntry>)> {
    let mut engines = BTreeMap::new();
    for listed in workers {
        let ranks = listed.address.rank.map(|rank| rank.saturating_add(1));
        let entry = engines.entry(listed.address.url.clone()).or_insert((ranks, listed.kv_events.clone()));
        entry.0 = entry.0.max(ranks);
    }
    engines
}

/// Prints findings under a title. Returns how many are troubles.
fn print_findings(title: &str, findings: &[Finding]) -> anyhow::Result<usize> {
    if !findings.is_empty() {
        print_line(title)?;
        findings.iter().try_for_each(print_line)?;
    }
    Ok(findings.iter().filter(|finding| finding.level == Level::Trouble).count())
}
