//! Checks of the gateway's own settings, and of all engines together.

use std::collections::BTreeSet;

use warmroute_policy::Policy;

use super::engine::EngineCheck;
use super::finding::Finding;
use crate::plan::{Plan, exposure};

/// Checks that need no connection.
pub fn configuration(plan: &Plan) -> Vec<Finding> {
    let sources = &plan.sources;
    let mut findings = vec![Finding::good(format!("it is understood; the policy is {}", plan.policy.name()))];
    if sources.is_empty() {
        findings.push(Finding::trouble(
            "it names no workers",
            "--worker-urls URL…, [[workers]] in the file, --worker-file, --worker-dns or --service-discovery",
        ));
    } else if sources.listed.is_empty() && sources.kubernetes.is_empty() {
        findings.push(Finding::note(
            "workers come from a file or from DNS, and are not examined here",
            "give some of them as --worker-urls to have them examined",
        ));
    }
    findings.extend(access(plan));
    if let Some(precise) = &plan.precise
        && let Err(error) = precise.paths.check()
    {
        findings.push(Finding::trouble(
            format!("{error:#}"),
            "--model-path must name a folder with tokenizer.json",
        ));
    }
    findings
}

/// Reports listeners that are open without authentication.
fn access(plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !plan.process.listen.ip().is_loopback() && plan.keys.is_none() {
        let address = plan.process.listen;
        findings.push(Finding::note(
            format!("every client that reaches {address} may use the engines"),
            "set --api-keys-file, unless a proxy in front of the gateway authenticates clients",
        ));
    }
    findings.extend(exposure(plan).map(|(says, remedy)| Finding::note(says, remedy)));
    findings
}

/// Reports differences between engines that should be alike.
pub fn compare(engines: &[EngineCheck]) -> Vec<Finding> {
    let versions: BTreeSet<&str> = engines.iter().filter_map(|engine| engine.version.as_deref()).collect();
    let mut findings = Vec::new();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        findings.push(Finding::note(
            format!("engines of several versions: {}", versions.join(", ")),
            "that works; answers to one prompt may differ",
        ));
    }
    let models: BTreeSet<&str> =
        engines.iter().flat_map(|engine| &engine.models).map(String::as_str).collect();
    let lacking = |model: &&str| {
        engines.iter().any(|engine| engine.is_well && !engine.models.iter().any(|one| one == *model))
    };
    for model in models.into_iter().filter(lacking) {
        let holders = engines.iter().filter(|engine| engine.models.iter().any(|one| one == model)).count();
        findings.push(Finding::note(
            format!("{holders} of {} engines serve `{model}`", engines.len()),
            "requests for it go to those only; start the others with --served-model-name if they are the same",
        ));
    }
    findings
}
