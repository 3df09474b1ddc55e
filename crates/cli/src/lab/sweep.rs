//! `warmroute lab sweep`: the same contest over a range of one parameter, or of two.

use anyhow::Context;
use serde_json::json;
use warmroute_report::{Report, Sweep};
use warmroute_sim::View;

use super::args::{ContestArgs, SceneArgs, SweepArgs};
use super::output;
use super::runs::{Contest, Keep, progress_bar};
use super::scene::{self, Scene};

/// What can be varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    Rate,
    Workers,
    KvTokens,
    HostKvTokens,
    PoolKvTokens,
    PoolGbps,
    Staleness,
    Lag,
    Loss,
    Routers,
    Affinity,
    Queue,
    Threshold,
}

const PARAMETERS: [(&str, Parameter, &str); 13] = [
    ("rate", Parameter::Rate, "rate factor"),
    ("workers", Parameter::Workers, "workers"),
    ("kv-tokens", Parameter::KvTokens, "KV tokens per worker"),
    ("host-kv-tokens", Parameter::HostKvTokens, "host KV tokens per worker"),
    ("pool-kv-tokens", Parameter::PoolKvTokens, "KV tokens of the pool"),
    ("pool-gbps", Parameter::PoolGbps, "GB/s from the pool"),
    ("staleness", Parameter::Staleness, "refresh interval, s"),
    ("lag", Parameter::Lag, "event lag, ms"),
    ("loss", Parameter::Loss, "share of events lost"),
    ("routers", Parameter::Routers, "routers"),
    ("affinity", Parameter::Affinity, "affinity weight"),
    ("queue", Parameter::Queue, "queue weight"),
    ("threshold", Parameter::Threshold, "cache threshold"),
];

/// One of them with its values.
#[derive(Debug)]
struct Range {
    parameter: Parameter,
    label: &'static str,
    values: Vec<f64>,
}

/// Runs every point of the sweep.
pub fn run(args: &SweepArgs) -> anyhow::Result<()> {
    let ranges = args.over.iter().map(|over| Range::parse(over)).collect::<anyhow::Result<Vec<_>>>()?;
    anyhow::ensure!(ranges.len() <= 2, "--over can be given twice at most");
    let points: Vec<_> =
        combinations(&ranges).into_iter().map(|values| Setting::of(args, &ranges, values)).collect();
    // Before anything runs: a point that cannot be is no news for the end of an hour.
    points.iter().try_for_each(|point| scene::world(&point.scene).map(drop))?;
    let bar =
        progress_bar(Contest::new(&args.contest, args.scene.traffic.seed)?.runs() * points.len(), "runs");
    let mut report = Report {
        title: format!("{}: {}", output::traffic(&args.scene.traffic), labels(&ranges).join(" and ")),
        command: output::command(),
        setup: setup(&points, args.contest.seeds),
        sweep: Some(Sweep { parameters: labels(&ranges) }),
        ..Report::default()
    };
    for Setting { values, scene, contest } in points {
        let contest = Contest::new(&contest, scene.traffic.seed)?;
        let scene = Scene::new(&scene, args.contest.seeds)?;
        let mut ran = contest.run(&scene, Keep::Summaries, &bar)?;
        // A policy whose weights are varied is one policy to the reader.
        ran.point.summaries.iter_mut().for_each(|summary| summary.policy = plain(&summary.policy));
        ran.point.values = values;
        report.points.push(ran.point);
        report.notes = scene.notes;
    }
    bar.finish_and_clear();
    let points = report
        .points
        .iter()
        .map(|point| json!({"values": point.values, "results": point.summaries, "bounds": point.bounds}));
    let json = json!({"parameters": labels(&ranges), "points": points.collect::<Vec<_>>()});
    output::write(&args.output, &report, &json)
}

/// One point of a sweep: the flags with its values put in.
struct Setting {
    values: Vec<f64>,
    scene: SceneArgs,
    contest: ContestArgs,
}

impl Setting {
    fn of(args: &SweepArgs, ranges: &[Range], values: Vec<f64>) -> Setting {
        let (mut scene, mut contest) = (args.scene.clone(), args.contest.clone());
        for (range, &value) in ranges.iter().zip(&values) {
            range.parameter.set(value, &mut scene, &mut contest);
        }
        Setting { values, scene, contest }
    }
}

/// The set-up of all points: what differs is told from the first to the last.
fn setup(points: &[Setting], seeds: u64) -> Vec<(String, String)> {
    let of = |point: Option<&Setting>| point.map_or(Vec::new(), |point| output::setup(&point.scene, seeds));
    let both = of(points.first()).into_iter().zip(of(points.last()));
    let told =
        |first: String, last: String| if first == last { first } else { format!("{first} … {last}") };
    both.map(|((word, first), (_, last))| (word, told(first, last))).collect()
}

fn labels(ranges: &[Range]) -> Vec<String> {
    ranges.iter().map(|range| range.label.to_owned()).collect()
}

/// Every combination of values.
fn combinations(ranges: &[Range]) -> Vec<Vec<f64>> {
    ranges.iter().fold(vec![Vec::new()], |before, range| {
        let each = |head: &Vec<f64>| {
            range.values.iter().map(|&value| [&head[..], &[value]].concat()).collect::<Vec<_>>()
        };
        before.iter().flat_map(each).collect()
    })
}

/// A policy's name without the parameters that the sweep has set.
fn plain(policy: &str) -> String {
    let kept = policy
        .split(':')
        .filter(|part| !["affinity=", "queue=", "threshold="].iter().any(|set| part.starts_with(set)));
    kept.collect::<Vec<_>>().join(":")
}

impl Range {
    fn parse(text: &str) -> anyhow::Result<Range> {
        let (name, values) =
            text.split_once('=').with_context(|| format!("--over {text}: expected NAME=VALUES"))?;
        let known = PARAMETERS.map(|(name, ..)| name).join(", ");
        let &(_, parameter, label) = PARAMETERS
            .iter()
            .find(|(known, ..)| *known == name)
            .with_context(|| format!("--over {name}: known are {known}"))?;
        let number = |value: &str| {
            let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
            number.with_context(|| format!("--over {text}: `{value}` is no number from 0 on"))
        };
        let values = values.split(',').map(number).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Range { parameter, label, values })
    }
}

impl Parameter {
    fn set(self, value: f64, scene: &mut SceneArgs, contest: &mut ContestArgs) {
        match self {
            Parameter::Rate => scene.traffic.rate_scale *= value,
            Parameter::Workers => scene.workers = value as usize,
            Parameter::KvTokens => scene.kv_tokens = Some(value as u64),
            Parameter::HostKvTokens => scene.host_kv_tokens = value as u64,
            Parameter::PoolKvTokens => scene.pool_kv_tokens = value as u64,
            Parameter::PoolGbps => scene.pool_gbps = value,
            Parameter::Staleness => (scene.view, scene.refresh_s) = (View::Exact, value),
            Parameter::Lag => scene.event_lag_ms = value,
            Parameter::Loss => scene.event_loss = value,
            Parameter::Routers => scene.routers = value as usize,
            Parameter::Affinity => set_policy(contest, "weighted_score", "affinity", value),
            Parameter::Queue => set_policy(contest, "weighted_score", "queue", value),
            Parameter::Threshold => set_policy(contest, "cache_aware", "threshold", value),
        }
    }
}

/// Sets a parameter of every policy of a kind.
fn set_policy(contest: &mut ContestArgs, kind: &str, key: &str, value: f64) {
    for policy in contest.policies.iter_mut().chain(&mut contest.policy) {
        if policy.split(':').next().is_some_and(|name| name.replace('-', "_") == kind) {
            *policy = format!("{policy}:{key}={value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_combined() {
        let ranges = ["rate=1,2", "workers=4,8,16"].map(|text| Range::parse(text).unwrap());
        let all = combinations(&ranges);
        assert_eq!(all.len(), 6);
        assert_eq!(all[0], [1.0, 4.0]);
        for (bad, why) in [("rate", "NAME=VALUES"), ("size=1", "known are"), ("rate=1,x", "no number")] {
            assert!(Range::parse(bad).unwrap_err().to_string().contains(why), "{bad}");
        }
    }

    #[test]
    fn a_swept_policy_keeps_its_name() {
        assert_eq!(plain("weighted_score:affinity=3:queue=1"), "weighted_score");
        assert_eq!(plain("cache_aware:preset=balanced:threshold=0.5"), "cache_aware:preset=balanced");
    }
}
