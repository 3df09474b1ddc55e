//! Checks of the API server, of the rights there, and of the pods.

use warmroute_discovery::{KubernetesSource, KubernetesTarget, ListedWorker};
use warmroute_types::SourceReadiness;

use super::finding::Finding;

/// Lists the workers of each source once. Returns those that are ready, to be checked as engines.
pub async fn check(sources: &[KubernetesSource]) -> (Vec<Finding>, Vec<ListedWorker>) {
    let (mut findings, mut ready) = (Vec::new(), Vec::new());
    for source in sources {
        let place = place_of(source);
        match source.list_once().await {
            Ok(report) => {
                let (up, down): (Vec<_>, Vec<_>) =
                    report.workers.into_iter().partition(|worker| worker.readiness == SourceReadiness::Ready);
                findings.push(count_of(&place, up.len(), down.len(), report.unusable.len()));
                let unwatched = report.unwatched.into_iter();
                findings.extend(unwatched.map(|why| {
                    Finding::trouble(
                        format!("{place} cannot be watched: {why}"),
                        "add the verb watch to the Role; until then changes are found seconds later",
                    )
                }));
                let unusable = report.unusable.into_iter();
                findings.extend(unusable.map(|why| {
                    Finding::trouble(
                        why,
                        "correct the pod's ports or annotations; docs/kubernetes.md lists them",
                    )
                }));
                ready.extend(up);
            }
            Err(problem) => {
                findings
                    .push(Finding::trouble(format!("{place} cannot be listed: {problem}"), problem.remedy));
            }
        }
    }
    (findings, ready)
}

fn place_of(source: &KubernetesSource) -> String {
    let namespace =
        source.namespace.as_deref().map_or("all namespaces".to_owned(), |name| format!("namespace {name}"));
    let what = match &source.target {
        KubernetesTarget::Pods { selector } => format!("pods with `{selector}`"),
        KubernetesTarget::Service { name } => format!("endpoints of the Service `{name}`"),
        KubernetesTarget::Pool { name } => format!("pods of the InferencePool `{name}`"),
    };
    format!("{what} in {namespace}")
}

fn count_of(place: &str, up: usize, down: usize, unusable: usize) -> Finding {
    match (up, down + unusable) {
        (0, 0) => Finding::note(
            format!("{place}: there are none"),
            "compare the labels, or the Service's selector; a fleet that scales from zero needs wake-timeout-secs",
        ),
        (0, _) => Finding::note(
            format!("{place}: no worker is ready, {down} are not ready"),
            "kubectl describe pod shows why",
        ),
        (up, _) => Finding::good(format!("{place}: {up} workers are ready, {down} are not ready")),
    }
}
