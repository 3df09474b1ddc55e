//! A small real run, rendered in every form.

use warmroute_engine::Profile;
use warmroute_sim::{Config, Rule, Slo, Summary, Workload, WorkloadScale, bounds, run};

use super::*;
use crate::report::RunDetail;
use crate::{markdown, table};

fn point(values: Vec<f64>, rate: f64) -> (Point, Vec<RunDetail>) {
    let config = Config::new(Profile::Llama3_1_8b, 2);
    let (mut point, mut details) = (Point { values, ..Point::default() }, Vec::new());
    for seed in 1..=2 {
        let scale = WorkloadScale { seed, rate, requests: Some(200) };
        for policy in ["round_robin", "cache_aware"] {
            let rule = Rule::parse(policy).unwrap();
            let outcome = run(&config, &rule, Workload::Sharegpt.sessions(scale)).unwrap();
            point.summaries.push(Summary::of(policy, seed, &outcome, Slo::default()));
            if seed == 1 {
                details.push(RunDetail::of(policy, &outcome));
            }
        }
        point.bounds = Some(bounds(&config, Workload::Sharegpt.sessions(scale)).unwrap());
    }
    (point, details)
}

fn report(sweep: &[&str]) -> Report {
    let mut report = Report {
        title: "Chats on <two> workers".to_owned(),
        command: "warmroute lab simulate".to_owned(),
        setup: vec![("workers".to_owned(), "2".to_owned())],
        notes: vec!["a note & more".to_owned()],
        ..Report::default()
    };
    for (index, rate) in [0.5, 1.0].into_iter().enumerate() {
        let values = sweep.iter().map(|_| rate).collect();
        let (point, details) = point(values, rate);
        report.points.push(point);
        report.details = details;
        if sweep.is_empty() && index == 0 {
            break;
        }
    }
    report.sweep = (!sweep.is_empty())
        .then(|| Sweep { parameters: sweep.iter().map(|name| name.to_string()).collect() });
    report
}

/// Asserts that elements are closed in order.
fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in page.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match tag {
            _ if tag.starts_with('!') || tag.ends_with('/') || name == "meta" => {}
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            _ => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_page_is_complete_self_contained_and_starts_with_the_answer() {
    for sweep in [&[][..], &["rate"], &["affinity weight", "queue weight"]] {
        let page = html(&report(sweep));
        assert_balanced(&page.replace("<!doctype html>", ""));
        for outside in ["http://", "https://", "<script", "<img", "@import", "url("] {
            assert!(!page.contains(outside), "{sweep:?} {outside}");
        }
        assert!(page.contains("Chats on &lt;two&gt; workers") && page.contains("a note &amp; more"));
        assert!(!page.contains("NaN") && !page.contains("inf "), "{sweep:?}");
        let (answer, figures) =
            (page.find("gives the first token soonest").unwrap(), page.find("All figures").unwrap());
        assert!(answer < figures);
    }
}

#[test]
fn a_surface_names_the_best_and_worst_point_of_each_policy() {
    let page = html(&report(&["affinity weight", "queue weight"]));
    for policy in ["round_robin", "cache_aware"] {
        assert!(
            page.contains(&format!("{policy} gives the first token soonest at affinity weight ")),
            "{policy}"
        );
    }
    assert!(page.contains("; latest at affinity weight "));
}

#[test]
fn every_policy_is_in_every_form() {
    let report = report(&[]);
    for text in [html(&report), markdown(&report), table(&report)] {
        for word in ["round_robin", "cache_aware", "of Belady", "infinite cache", "a note"] {
            assert!(text.contains(word), "{word}");
        }
    }
    assert!(markdown(&report).contains("warmroute lab simulate"));
    assert!(
        table(&report).contains("of LRU") && table(&report).contains("(about: clients wait for answers)")
    );
}

#[test]
fn a_policy_that_answers_few_requests_is_no_winner_and_losses_are_reported() {
    let mut report = report(&[]);
    let lose = |report: &mut Report, policy: &str| {
        let runs = report.points[0].summaries.iter_mut().filter(|run| run.policy == policy);
        runs.for_each(|run| (run.failed, run.ttft_ms.mean) = (10_000, 0.0));
    };
    lose(&mut report, "cache_aware");
    let page = html(&report);
    assert!(page.contains("round_robin gives the first token soonest"));
    assert!(page.contains("cache_aware: 20000 of"));
    assert!(page.contains("<tr class=\"best\"><td>round_robin</td>"), "marked as the verdict says");
    assert_eq!(page.matches("class=\"best\"").count(), 1);
    lose(&mut report, "round_robin");
    let page = html(&report);
    assert!(page.contains("nothing to compare") && !page.contains("class=\"best\""));
}
