//! `warmroute doctor`: would this work, and what should be changed?
//!
//! `check` reads a configuration; `doctor` goes and looks. It asks every worker what the gateway would ask (is it well, what
//! does it serve, how large is its cache, where are its events, does it write prompts as we do), and sends it one short prompt
//! twice, because only an answer shows whether an engine says how much it found in its cache. Other routers, or the server between, are
//! asked whether they would have this one; they do not see a router come or go.

mod engine;
mod finding;
mod fleet;
mod routers;

use std::collections::BTreeMap;

use warmroute_discovery::EventsEntry;

use crate::args::DoctorArgs;
use crate::options::{check_environment, read_file};
use crate::plan::Plan;
use engine::Patient;
use finding::{Finding, Level};

/// Examines all, prints what was found, and fails where something does not work.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    check_environment()?;
    let options = match &args.config {
        Some(file) => args.options.clone().over(read_file(file)?),
        None => args.options.clone(),
    };
    let plan = Plan::new(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let troubles = runtime.block_on(examine(&plan, args));
    anyhow::ensure!(troubles == 0, "{troubles} thing(s) do not work");
    Ok(())
}

async fn examine(plan: &Plan, args: &DoctorArgs) -> usize {
    let configuration = fleet::configuration(plan);
    let mut troubles = show("configuration", &configuration);
    let mut patients = Vec::new();
    for (url, (ranks, events)) in engines(plan) {
        let mut patient = Patient::new(&url, ranks, events, &plan.gateway.dialer);
        let findings = patient.examine(plan, args.requests).await;
        troubles += show(&url, &findings);
        patients.push(patient);
    }
    troubles += show("together", &fleet::together(&patients));
    match &plan.sharing {
        Some(sharing) => troubles + show("other routers", &routers::examine(sharing).await),
        None => troubles,
    }
}

/// The engines that are listed, each with how many ranks and with what is said of its events.
fn engines(plan: &Plan) -> BTreeMap<String, (u16, Option<EventsEntry>)> {
    let mut engines = BTreeMap::new();
    for listed in &plan.sources.listed {
        let ranks = listed.address.rank.map_or(1, |rank| rank.saturating_add(1));
        let entry = engines.entry(listed.address.url.clone()).or_insert((ranks, listed.kv_events.clone()));
        entry.0 = entry.0.max(ranks);
    }
    engines
}

/// Prints findings under a title; how many are troubles.
fn show(title: &str, findings: &[Finding]) -> usize {
    if !findings.is_empty() {
        println!("{title}");
        findings.iter().for_each(|finding| println!("{finding}"));
    }
    findings.iter().filter(|finding| finding.level == Level::Trouble).count()
}
