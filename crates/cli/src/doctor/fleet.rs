//! What concerns the gateway itself, and all engines together.

use std::collections::BTreeSet;

use warmroute_policy::Policy;

use super::engine::Patient;
use super::finding::Finding;
use crate::plan::Plan;

/// What can be said before anybody is asked.
pub fn configuration(plan: &Plan) -> Vec<Finding> {
    let sources = &plan.sources;
    let mut findings = vec![Finding::good(format!("it is understood; the policy is {}", plan.policy.name()))];
    if sources.listed.is_empty() && sources.file.is_none() && sources.dns.is_empty() {
        findings.push(Finding::trouble(
            "it names no workers",
            "--worker-urls URL…, [[workers]] in the file, --worker-file or --worker-dns",
        ));
    } else if sources.listed.is_empty() {
        findings.push(Finding::note(
            "workers come from a file or from DNS, and are not examined here",
            "give some of them as --worker-urls to have them examined",
        ));
    }
    findings.extend(openness(plan));
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

/// Who could come in without being asked.
fn openness(plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !plan.listen.ip().is_loopback() && plan.keys.is_none() {
        let address = plan.listen;
        findings.push(Finding::note(
            format!("whoever reaches {address} may use the engines"),
            "--api-keys-file lets in those with a key; leave it if somebody before the gateway does that",
        ));
    }
    if !plan.admin.ip().is_loopback() && plan.admin_token.is_none() {
        findings.push(Finding::note(
            format!(
                "whoever reaches {} may read metrics and workers, and nobody may change anything",
                plan.admin
            ),
            "--admin-token-file, or WARMROUTE_ADMIN_TOKEN",
        ));
    }
    findings
}

/// What differs between engines that should be alike.
pub fn together(patients: &[Patient]) -> Vec<Finding> {
    let versions: BTreeSet<&str> = patients.iter().filter_map(|patient| patient.version.as_deref()).collect();
    let mut findings = Vec::new();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        findings.push(Finding::note(
            format!("engines of several versions: {}", versions.join(", ")),
            "that works; answers to one prompt may differ",
        ));
    }
    let models: BTreeSet<&str> =
        patients.iter().flat_map(|patient| &patient.models).map(String::as_str).collect();
    let lacking = |model: &&str| {
        patients.iter().any(|patient| patient.is_well && !patient.models.iter().any(|one| one == *model))
    };
    for model in models.into_iter().filter(lacking) {
        let holders = patients.iter().filter(|patient| patient.models.iter().any(|one| one == model)).count();
        findings.push(Finding::note(
            format!("{holders} of {} engines serve `{model}`", patients.len()),
            "requests for it go to those only; start the others with --served-model-name if they are the same",
        ));
    }
    findings
}
