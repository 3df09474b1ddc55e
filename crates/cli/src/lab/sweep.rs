//! `warmroute lab sweep`: repeats a simulation over a range of one or two parameters.

use std::ops::RangeInclusive;

use anyhow::{Context, anyhow};
use serde_json::json;
use warmroute_report::{Report, Sweep};
use warmroute_sim::View;
use warmroute_types::{BadQuantity, MAX_WORKERS};

use super::args::{ContestArgs, ROUTERS_MAX, SceneArgs, SweepArgs, WORKERS};
use super::output;
use super::runs::{Contest, Keep, named, progress_bar};
use super::scene::{self, Scene};
use super::traffic;
use crate::options::quantity::{count, milliseconds, seconds, whole};

/// The parameters that can vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameter {
    Rate,
    Workers,
    KvTokens,
    HostKvTokens,
    PoolKvTokens,
    PoolGbps,
    MaxNumSeqs,
    Staleness,
    Lag,
    Loss,
    Batch,
    Concurrency,
    Routers,
    ShareDelay,
    Affinity,
    Queue,
    Threshold,
}

const PARAMETERS: [(&str, Parameter, &str); 17] = [
    ("rate", Parameter::Rate, "rate factor"),
    ("workers", Parameter::Workers, "workers"),
    ("kv-tokens", Parameter::KvTokens, "KV tokens per worker"),
    ("host-kv-tokens", Parameter::HostKvTokens, "host KV tokens per worker"),
    ("pool-kv-tokens", Parameter::PoolKvTokens, "KV tokens of the pool"),
    ("pool-gbps", Parameter::PoolGbps, "GB/s from the pool"),
    ("max-num-seqs", Parameter::MaxNumSeqs, "requests that a worker computes at once"),
    ("staleness", Parameter::Staleness, "refresh interval, s"),
    ("lag", Parameter::Lag, "event lag, ms"),
    ("loss", Parameter::Loss, "share of events lost"),
    ("batch", Parameter::Batch, "ms between batches of events"),
    ("concurrency", Parameter::Concurrency, "requests in flight"),
    ("routers", Parameter::Routers, "routers"),
    ("share-delay", Parameter::ShareDelay, "delay between routers, ms"),
    ("affinity", Parameter::Affinity, "affinity weight"),
    ("queue", Parameter::Queue, "queue weight"),
    ("threshold", Parameter::Threshold, "cache threshold"),
];

/// A parameter with its values.
#[derive(Debug)]
struct Range {
    name: &'static str,
    parameter: Parameter,
    label: &'static str,
    values: Vec<f64>,
}

/// Runs every point of the sweep.
pub fn run(args: &SweepArgs) -> anyhow::Result<()> {
    let ranges = args.over.iter().map(|over| Range::parse(over)).collect::<anyhow::Result<Vec<_>>>()?;
    anyhow::ensure!(ranges.len() <= 2, "--over can be given twice at most");
    if let [first, second] = &ranges[..] {
        let name = first.name;
        anyhow::ensure!(
            name != second.name,
            "--over {name} is given twice: write all its values in one, as --over {name}=A,B"
        );
    }
    ranges.iter().try_for_each(|range| range.parameter.check(&args.scene, range.name))?;
    let points: Vec<_> = combinations(&ranges)
        .into_iter()
        .map(|values| Setting::of(args, &ranges, values))
        .collect::<anyhow::Result<_>>()?;
    // All points are checked first: an invalid one should not fail after an hour.
    points.iter().try_for_each(|point| {
        traffic::check(&point.scene.traffic)?;
        scene::world(&point.scene).map(drop)
    })?;
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
        // A policy with varying weights is one policy in the report.
        ran.point.summaries.iter_mut().for_each(|summary| summary.policy = plain(&summary.policy, &ranges));
        ran.point.values = values;
        report.points.push(ran.point);
        report.notes = scene.notes;
    }
    bar.finish_and_clear();
    let points = report
        .points
        .iter()
        .map(|point| json!({"values": point.values, "results": point.summaries, "bounds": point.bounds}));
    let json = json!({
        "command": report.command,
        "setup": output::setup_object(&report),
        "parameters": labels(&ranges),
        "points": points.collect::<Vec<_>>(),
    });
    output::write(&args.output, &report, &json)
}

/// One point of a sweep: the flags with its values.
struct Setting {
    values: Vec<f64>,
    scene: SceneArgs,
    contest: ContestArgs,
}

impl Setting {
    fn of(args: &SweepArgs, ranges: &[Range], values: Vec<f64>) -> anyhow::Result<Setting> {
        let (mut scene, mut contest) = (args.scene.clone(), args.contest.clone());
        (contest.policies, contest.policy) = (named(&args.contest), Vec::new());
        for (range, &value) in ranges.iter().zip(&values) {
            match range.parameter.knob() {
                Some(knob) => knob.set(value, &mut contest.policies)?,
                None => range.parameter.set(value, &mut scene),
            }
        }
        Ok(Setting { values, scene, contest })
    }
}

/// The set-up of all points. A varying part shows its first and last value.
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

/// A policy's name without the parameters that the sweep sets. Its own parameters stay, because they distinguish it.
fn plain(policy: &str, ranges: &[Range]) -> String {
    let knobs = ranges.iter().filter_map(|range| range.parameter.knob());
    knobs.filter(|knob| knob.is_of(policy)).fold(policy.to_owned(), |policy, knob| knob.taken_off(&policy))
}

/// A parameter of a policy.
#[derive(Clone, Copy)]
struct Knob {
    kind: &'static str,
    key: &'static str,
}

impl Knob {
    /// Sets the parameter for every policy of this kind.
    fn set(self, value: f64, policies: &mut [String]) -> anyhow::Result<()> {
        let Knob { kind, key } = self;
        anyhow::ensure!(
            policies.iter().any(|policy| self.is_of(policy)),
            "--over {key} varies {kind}, which is not among the policies: nothing would change"
        );
        for policy in policies.iter_mut().filter(|policy| self.is_of(policy)) {
            *policy = format!("{}:{key}={value}", self.taken_off(policy));
        }
        Ok(())
    }

    fn is_of(self, policy: &str) -> bool {
        policy.split(':').next().is_some_and(|name| name.replace('-', "_") == self.kind)
    }

    fn taken_off(self, policy: &str) -> String {
        let is_other = |part: &&str| part.split_once('=').is_none_or(|(key, _)| key != self.key);
        policy.split(':').filter(is_other).collect::<Vec<_>>().join(":")
    }
}

impl Range {
    fn parse(text: &str) -> anyhow::Result<Range> {
        let (name, values) =
            text.split_once('=').with_context(|| format!("--over {text}: expected NAME=VALUES"))?;
        let known = PARAMETERS.map(|(name, ..)| name).join(", ");
        let &(name, parameter, label) = PARAMETERS
            .iter()
            .find(|(known, ..)| *known == name)
            .with_context(|| format!("--over {name}: known are {known}"))?;
        let number = |value: &str| {
            parameter.read(value).map_err(|expected| anyhow!("--over {name}: `{value}`: {expected}"))
        };
        let values = values.split(',').map(number).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Range { name, parameter, label, values })
    }
}

impl Parameter {
    /// A value, in the unit of the parameter's label.
    fn read(self, value: &str) -> Result<f64, String> {
        let number = match self {
            Parameter::Workers => return within(1..=MAX_WORKERS as u64, value),
            Parameter::Routers => return within(1..=ROUTERS_MAX, value),
            Parameter::Concurrency | Parameter::MaxNumSeqs => return within(1..=u64::from(u32::MAX), value),
            Parameter::KvTokens | Parameter::HostKvTokens | Parameter::PoolKvTokens => {
                count(value).map(|count: u64| count as f64)
            }
            Parameter::Staleness => seconds(value),
            Parameter::Lag | Parameter::Batch | Parameter::ShareDelay => milliseconds(value),
            _ => {
                let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
                number.ok_or(BadQuantity("expected a number from 0 on"))
            }
        };
        number.map_err(|expected| expected.to_string())
    }

    /// Refuses flags that this parameter replaces, and a parameter that the flags replace.
    fn check(self, scene: &SceneArgs, name: &str) -> anyhow::Result<()> {
        anyhow::ensure!(
            self != Parameter::Workers || scene.worker_group.is_empty(),
            "--over {name} means nothing with --worker-group, which has numbers of its own: leave one out"
        );
        anyhow::ensure!(
            self != Parameter::Workers || scene.workers == WORKERS,
            "--workers means nothing with --over {name}: leave it out"
        );
        let is_given = match self {
            Parameter::KvTokens => scene.kv_tokens.is_some(),
            Parameter::MaxNumSeqs => scene.max_num_seqs.is_some(),
            _ => false,
        };
        anyhow::ensure!(!is_given, "--{name} means nothing with --over {name}: leave it out");
        let is_grouped = scene.worker_group.iter().any(|group| group.contains(&format!(":{name}=")));
        anyhow::ensure!(
            !is_grouped,
            "--over {name} means nothing with a --worker-group that has its own {name}: leave one out"
        );
        anyhow::ensure!(
            self != Parameter::Routers || scene.routers == 1,
            "--routers means nothing with --over {name}: leave it out"
        );
        let view = match self {
            Parameter::Staleness => View::Exact,
            Parameter::Batch => View::Reported,
            _ => return Ok(()),
        };
        anyhow::ensure!(
            [view, View::Presumed].contains(&scene.view),
            "--over {name} takes the {view} view: leave out --view {}",
            scene.view
        );
        Ok(())
    }

    /// The policy parameter, if this is not a parameter of the scene.
    fn knob(self) -> Option<Knob> {
        match self {
            Parameter::Affinity => Some(Knob { kind: "weighted_score", key: "affinity" }),
            Parameter::Queue => Some(Knob { kind: "weighted_score", key: "queue" }),
            Parameter::Threshold => Some(Knob { kind: "cache_aware", key: "threshold" }),
            _ => None,
        }
    }

    fn set(self, value: f64, scene: &mut SceneArgs) {
        match self {
            Parameter::Rate => scene.traffic.rate_scale *= value,
            Parameter::Workers => scene.workers = value as usize,
            Parameter::KvTokens => scene.kv_tokens = Some(value as u64),
            Parameter::HostKvTokens => scene.host_kv_tokens = value as u64,
            Parameter::PoolKvTokens => scene.pool_kv_tokens = value as u64,
            Parameter::PoolGbps => scene.pool_gbps = value,
            Parameter::MaxNumSeqs => scene.max_num_seqs = Some(value as u32),
            Parameter::Staleness => (scene.view, scene.refresh_s) = (View::Exact, value),
            Parameter::Lag => scene.event_lag_ms = value,
            Parameter::Loss => scene.event_loss = value,
            Parameter::Batch => (scene.view, scene.refresh_s) = (View::Reported, value / 1_000.0),
            Parameter::Concurrency => scene.concurrency = Some(value as u32),
            Parameter::Routers => scene.routers = value as usize,
            Parameter::ShareDelay => scene.share_delay_ms = Some(value),
            // Policy parameters: see `knob`.
            Parameter::Affinity | Parameter::Queue | Parameter::Threshold => {}
        }
    }
}

/// A whole number within a range, as the values of a sweep are kept.
fn within(range: RangeInclusive<u64>, value: &str) -> Result<f64, String> {
    whole::<u64>(range)(value).map(|count| count as f64).map_err(|expected| expected.to_string())
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
        assert_eq!(Range::parse("kv-tokens=200k,1M").unwrap().values, [200_000.0, 1_000_000.0]);
        assert_eq!(Range::parse("lag=50,1s").unwrap().values, [50.0, 1_000.0]);
        for (bad, why) in [
            ("rate", "NAME=VALUES"),
            ("size=1", "known are"),
            ("rate=1,x", "`x`: expected a number from 0 on"),
            ("lag=1x", "`1x`: expected a time"),
            ("workers=1.5", "`1.5`: expected a whole number from 1 to"),
            ("workers=0", "`0`: expected a whole number from 1 to"),
            ("routers=100000", "`100000`: expected a whole number from 1 to 256"),
            ("concurrency=2.5", "`2.5`: expected a whole number from 1 to"),
            ("kv-tokens=0.5", "`0.5`: expected a whole number"),
            ("max-num-seqs=0", "`0`: expected a whole number from 1 to"),
        ] {
            let error = Range::parse(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_policy_loses_of_its_name_only_what_is_swept() {
        let swept = |over: &[&str]| over.iter().map(|text| Range::parse(text).unwrap()).collect::<Vec<_>>();
        let both = "weighted_score:affinity=3:queue=1";
        for (policy, over, name) in [
            (both, &["affinity=1", "queue=1"][..], "weighted_score"),
            (both, &["affinity=1"], "weighted_score:queue=1"),
            (both, &["rate=1", "threshold=1"], both),
            ("cache_aware:preset=balanced:threshold=0.5", &["threshold=1"], "cache_aware:preset=balanced"),
            ("exec:./queue=3", &["queue=1"], "exec:./queue=3"),
        ] {
            assert_eq!(plain(policy, &swept(over)), name, "{over:?}");
        }
    }

    #[test]
    fn a_knob_is_set_once_and_only_where_it_is() {
        let knob = Parameter::Affinity.knob().unwrap();
        let mut policies = ["weighted-score:affinity=1:queue=2", "random"].map(str::to_owned);
        knob.set(3.0, &mut policies).unwrap();
        assert_eq!(policies, ["weighted-score:queue=2:affinity=3", "random"]);
        let error = knob.set(3.0, &mut policies[1..]).unwrap_err().to_string();
        assert!(error.contains("--over affinity varies weighted_score"), "{error}");
    }
}
