//! Tests of the lab from flags to JSON.

use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use serde_json::Value;

use super::*;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    lab: LabArgs,
}

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("warmroute-lab-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn lab(words: &[&str]) -> anyhow::Result<()> {
    let command = Command::try_parse_from([&["lab"], words].concat())?;
    run(command.lab)
}

fn json(file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

const SMALL: [&str; 6] = ["--workload", "sharegpt", "--requests", "200", "--workers", "3"];

#[test]
fn results_have_the_shape_that_others_read() {
    let folder = Folder::new("shape");
    let (out, rows, page, text) =
        (folder.file("out.json"), folder.file("rows.csv"), folder.file("page.html"), folder.file("text.md"));
    let words = [
        "simulate",
        "--policies",
        "round_robin,cache_aware",
        "--seeds",
        "2",
        "--json",
        &out,
        "--html",
        &page,
    ];
    lab(&[&words[..], &SMALL, &["--requests-out", &rows, "--markdown", &text]].concat()).unwrap();
    let out = json(&out);
    let results = out["results"].as_array().unwrap();
    let runs: Vec<_> =
        results.iter().map(|run| (run["policy"].as_str().unwrap(), run["seed"].as_u64().unwrap())).collect();
    assert_eq!(runs, [("round_robin", 1), ("round_robin", 2), ("cache_aware", 1), ("cache_aware", 2)]);
    for run in results {
        for spread in ["ttft_ms", "tpot_ms", "e2e_ms"] {
            for figure in ["mean", "p50", "p95", "p99"] {
                assert!(run[spread][figure].as_f64().unwrap() > 0.0, "{spread} {figure}");
            }
        }
        for figure in [
            "workers",
            "requests",
            "token_hit_ratio",
            "request_hit_ratio",
            "stale_ratio",
            "stale_request_ratio",
            "stale_at_choice_ratio",
            "repeated_prefill_ratio",
            "replication_factor",
            "throughput_rps",
            "load_cv",
            "load_max_over_mean",
            "output_tokens_per_s",
            "goodput_rps",
            "prefill_tokens_computed",
        ] {
            assert!(run[figure].is_number(), "{figure}");
        }
    }
    assert!(out["bounds"]["pooled_belady_token_hit_ratio"].is_number());
    assert!(out["setup"]["workers"] == "3" && out["command"].is_string());
    let requests: u64 = results.iter().map(|run| run["requests"].as_u64().unwrap()).sum();
    assert_eq!(std::fs::read_to_string(rows).unwrap().lines().count() as u64, requests + 1);
    for report in [page, text] {
        let report = std::fs::read_to_string(report).unwrap();
        assert!(report.contains(concat!("warmroute ", env!("CARGO_PKG_VERSION"))), "{report}");
        for column in
            ["output tokens/s", "request hit", "stale requests", "copies of a block", "prefill repeated"]
        {
            assert!(report.contains(column), "{column}: {report}");
        }
    }
}

#[test]
fn the_same_flags_give_the_same_bytes_on_any_number_of_threads() {
    let folder = Folder::new("same");
    let text = |name: &str, threads: &str| {
        let out = folder.file(name);
        let words = [
            "simulate",
            "--policies",
            "cache_aware,random",
            "--seeds",
            "2",
            "--json",
            &out,
            "--threads",
            threads,
        ];
        lab(&[&words[..], &SMALL].concat()).unwrap();
        std::fs::read_to_string(out).unwrap()
    };
    assert_eq!(text("one.json", "1"), text("four.json", "4"));
}

#[test]
fn a_sweep_has_a_point_for_every_pair() {
    let folder = Folder::new("sweep");
    let out = folder.file("out.json");
    let words = [
        "sweep",
        "--policies",
        "weighted_score",
        "--over",
        "affinity=0,2",
        "--over",
        "queue=1,2,4",
        "--json",
        &out,
    ];
    lab(&[&words[..], &SMALL].concat()).unwrap();
    let points = json(&out)["points"].as_array().unwrap().clone();
    assert_eq!(points.len(), 6);
    assert_eq!(points[5]["values"], serde_json::json!([2.0, 4.0]));
    assert!(points.iter().all(|point| point["results"][0]["policy"] == "weighted_score"));
    let hit = |point: usize| points[point]["results"][0]["token_hit_ratio"].as_f64().unwrap();
    assert!(hit(3) > hit(0), "affinity finds more than none: {} {}", hit(3), hit(0));
}

#[test]
fn more_clients_answer_more_until_the_fleet_is_busy() {
    let folder = Folder::new("closed");
    let out = folder.file("out.json");
    let words = ["sweep", "--policies", "least_loaded", "--over", "concurrency=1,8", "--json", &out];
    lab(&[&words[..], &SMALL].concat()).unwrap();
    let points = json(&out)["points"].as_array().unwrap().clone();
    let figure = |point: usize, name: &str| points[point]["results"][0][name].as_f64().unwrap();
    assert!(figure(1, "throughput_rps") > 3.0 * figure(0, "throughput_rps"));
    assert!(figure(1, "saturated_s") > 0.0 && figure(1, "saturated_s") < figure(0, "saturated_s"));
    assert!(points[0]["bounds"].is_null(), "bounds need arrival times");
}

#[test]
fn policies_that_differ_in_what_is_not_swept_stay_apart() {
    let folder = Folder::new("apart");
    let out = folder.file("out.json");
    let policies = "weighted_score:affinity=0,weighted_score:affinity=4";
    let words = ["sweep", "--policies", policies, "--over", "rate=1", "--bounds", "off", "--json", &out];
    lab(&[&words[..], &SMALL].concat()).unwrap();
    let point = &json(&out)["points"][0];
    let names: Vec<_> = [0, 1].map(|run| point["results"][run]["policy"].as_str().unwrap()).to_vec();
    assert_eq!(names.join(","), policies);
}

#[test]
fn bounds_beside_several_seeds_are_the_mean_of_theirs() {
    let folder = Folder::new("bounds");
    let belady = |words: &[&str]| {
        let out = folder.file("out.json");
        lab(&[words, &SMALL, &["--kv-tokens", "20000", "--json", &out]].concat()).unwrap();
        json(&out)["bounds"]["pooled_belady_token_hit_ratio"].as_f64().unwrap()
    };
    let both = belady(&["simulate", "--policies", "random", "--seeds", "2"]);
    let (one, two) = (belady(&["bounds", "--seed", "1"]), belady(&["bounds", "--seed", "2"]));
    assert_ne!(one, two);
    assert!((both - (one + two) / 2.0).abs() < 1e-12, "{both}: {one} {two}");
}

#[test]
fn a_policy_may_be_any_program_and_a_broken_one_is_reported() {
    let folder = Folder::new("exec");
    let program = |name: &str, script: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.file(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        format!("exec:{path}")
    };
    let out = folder.file("out.json");
    let try_it =
        |policy: &str| lab(&[&["simulate", "--policy", policy, "--json", &out], &SMALL[..]].concat());
    try_it(&program("last", r#"while read line; do echo '{"index": 2}'; done"#)).unwrap();
    let run = &json(&out)["results"][0];
    assert!((run["load_max_over_mean"].as_f64().unwrap() - 3.0).abs() < 1e-9, "all to one of three");
    for (name, script, why) in [
        ("far", r#"while read line; do echo '{"index": 3}'; done"#, "index 3 of 3"),
        ("mute", "exit 0", "foreign policy failed"),
        ("wild", "while read line; do echo here; done", "it answered"),
    ] {
        let error = format!("{:#}", try_it(&program(name, script)).unwrap_err());
        assert!(error.contains(why), "{name}: {error}");
    }
    assert!(try_it("exec:/no/such/program").is_err());
}

#[test]
fn the_help_of_simulate_names_the_rules_of_other_routers() {
    let mut command = Command::command();
    let simulate = command.find_subcommand_mut("simulate").unwrap();
    let help = simulate.render_help().to_string();
    for peer in &warmroute_sim::BASELINES {
        assert!(help.contains(peer.name), "{}: {help}", peer.name);
    }
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    for (words, why) in [
        (&["simulate"][..], "--trace"),
        (&["simulate", "--workload", "nonsense"], "unknown workload"),
        (&["simulate", "--workload", "short", "--policies", "best"], "unknown policy"),
        (&["simulate", "--workload", "short", "--workers", "0"], "a whole number from 1 to"),
        (&["simulate", "--workload", "short", "--view", "psychic"], "unknown view"),
        (&["simulate", "--trace", "/no/such/file"], "/no/such/file"),
        (&["sweep", "--workload", "short", "--over", "size=1"], "known are"),
        (&["bounds", "--workload", "short", "--rate-scale", "0"], "a number from 0.0001 to 10000"),
        (&["simulate", "--workload", "short", "--policies", "random,random"], "compared with itself"),
        (&["bounds", "--workload", "short", "--concurrency", "4"], "leave out --concurrency"),
        (
            &["simulate", "--workload", "short", "--policies", "random:key=system"],
            "hash the prompt's beginning",
        ),
        (
            &[
                "simulate",
                "--workload",
                "short",
                "--requests",
                "5",
                "--policies",
                "random",
                "--concurrency",
                "9",
            ],
            "fewer sessions than clients",
        ),
        (
            &["sweep", "--workload", "short", "--policies", "random", "--over", "threshold=0.5"],
            "--over threshold varies cache_aware",
        ),
        (
            &[
                "sweep",
                "--workload",
                "short",
                "--policies",
                "weighted_score:queue=1,weighted_score:queue=2",
                "--over",
                "queue=3",
            ],
            "compared with itself",
        ),
    ] {
        let error = format!("{:#}", lab(words).unwrap_err());
        assert!(error.contains(why), "{words:?}: {error}");
    }
}

#[test]
fn flags_without_effect_are_refused() {
    let reported = &["--view", "reported"][..];
    for (words, flags, why) in [
        ("simulate", &["--copies", "2"][..], "--copies means nothing with --workload"),
        ("bounds", reported, "--view means nothing for bounds"),
        ("bounds", &["--event-loss", "0.1"], "--event-loss means nothing for bounds"),
        ("bounds", &["--passages", "before"], "--passages means nothing with --workload"),
        ("simulate", &["--think-s", "5"], "--think-s means nothing with --workload"),
        ("simulate", &["--sessions-per-s", "5"], "--sessions-per-s means nothing with --workload"),
        ("drive --url http://127.0.0.1:1", &["--copies", "2"], "--copies means nothing with --workload"),
        ("simulate", &["--event-replay", "0"], "--event-replay means nothing in the presumed view"),
        ("simulate", &["--evictions", "unpublished"], "--evictions means nothing in the presumed view"),
        (
            "simulate",
            &["--view", "exact", "--evictions", "unpublished"],
            "--evictions means nothing in the exact view",
        ),
        ("simulate", &["--share-delay-ms", "5"], "--share-delay-ms means nothing with one router"),
        (
            "simulate",
            &["--workers", "3", "--worker-group", "2"],
            "--workers means nothing with --worker-group",
        ),
        ("sweep --over workers=1,2", &["--worker-group", "2"], "--over workers means nothing with"),
        ("sweep --over kv-tokens=5000", &["--kv-tokens", "9000"], "--kv-tokens means nothing with --over"),
        ("sweep --over max-num-seqs=4", &["--max-num-seqs", "9"], "--max-num-seqs means nothing with --over"),
        ("sweep --over max-num-seqs=4", &["--worker-group", "2:max-num-seqs=8"], "has its own max-num-seqs"),
        (
            "drive --url http://127.0.0.1:1",
            &["--engine-metrics", "http://127.0.0.1:1,http://127.0.0.1:1/v1/"],
            "--engine-metrics names http://127.0.0.1:1/v1/ twice",
        ),
        ("sweep --over staleness=1", reported, "--over staleness takes the exact view: leave out --view"),
        ("sweep --over rate=1 --over rate=2", &[], "--over rate is given twice"),
    ] {
        let words: Vec<&str> = words.split(' ').chain(["--workload", "short", "--requests", "20"]).collect();
        let error = format!("{:#}", lab(&[&words, flags].concat()).unwrap_err());
        assert!(error.contains(why), "{words:?} {flags:?}: {error}");
    }
    // The defaults are no mistake.
    let defaults =
        ["--copies", "1", "--think-s", "10", "--event-replay", "10000", "--evictions", "published"];
    lab(&[&["simulate", "--policies", "random", "--bounds", "off"][..], &SMALL, &defaults].concat()).unwrap();
}

#[test]
fn numbers_beyond_all_reason_are_refused_at_once() {
    for (flags, why) in [
        (&["--requests", "0"][..], "expected a whole number from 1 to 100000000"),
        (&["--requests", "1000G"], "expected a whole number from 1 to 100000000"),
        (&["--rate-scale", "1e-9"], "expected a number from 0.0001 to 10000"),
        (&["--rate-scale", "nan"], "expected a number from 0.0001 to 10000"),
        (&["--routers", "100000"], "expected a whole number from 1 to 256"),
        (&["--routers", "0"], "expected a whole number from 1 to 256"),
        (&["--workers", "4000000000"], "expected a whole number from 1 to"),
        (&["--worker-group", "4000000000"], "`4000000000` is no number of engines: expected a whole number"),
        (&["--worker-group", "2:speed-percent=1.5"], "speed-percent: expected a whole number"),
        (&["--copies", "0"], "expected a whole number from 1 to"),
    ] {
        let error =
            format!("{:#}", lab(&[&["simulate", "--workload", "short"], flags].concat()).unwrap_err());
        assert!(error.contains(why), "{flags:?}: {error}");
    }
    let folder = Folder::new("copies");
    let trace = folder.file("azure.csv");
    std::fs::write(&trace, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,10\n").unwrap();
    let error = lab(&["bounds", "--trace", &trace, "--copies", "4000000000"]).unwrap_err().to_string();
    assert!(error.contains("4000000000 copies of 1 requests are more than 10000000"), "{error}");
    let error = lab(&["bounds", "--trace", &trace, "--think-s", "5"]).unwrap_err().to_string();
    assert!(error.contains("--think-s means nothing with"), "{error}");
    lab(&["simulate", "--trace", &trace, "--copies", "3", "--policies", "random"]).unwrap();
}

#[test]
fn a_run_without_an_answer_has_no_times() {
    let folder = Folder::new("rejected");
    let text = folder.file("text.md");
    let page = folder.file("page.html");
    let words = ["simulate", "--policies", "random", "--html", &page, "--markdown", &text];
    let too_long = ["--workload", "unique", "--requests", "5", "--kv-tokens", "1600"];
    lab(&[&words[..], &too_long].concat()).unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| random |")).collect();
    assert_eq!(rows.len(), 2, "{text}");
    for row in rows {
        let mut cells = row.trim_matches(['|', ' ']).split(" | ").skip(1);
        assert!(cells.all(|cell| cell == "–"), "{row}");
    }
    assert!(text.contains("5 of 5 requests were not answered") && !text.contains("0.0 ms"), "{text}");
    let error = lab(&[&["bounds"][..], &too_long].concat()).unwrap_err().to_string();
    assert!(error.contains("every request is too long for any engine"), "{error}");
}

#[test]
fn events_are_lost_where_there_are_events_and_nowhere_else() {
    let folder = Folder::new("loss");
    let found = |name: &str, flags: &[&str]| {
        let out = folder.file(name);
        let words = ["simulate", "--policies", "cache_aware", "--bounds", "off", "--json", &out];
        lab(&[&words[..], &SMALL, flags].concat()).unwrap();
        json(&out)["results"][0]["token_hit_ratio"].as_f64().unwrap()
    };
    let whole = found("whole", &["--view", "reported"]);
    let lossy = ["--view", "reported", "--event-loss", "0.3"];
    assert!(found("healed", &lossy) > 0.97 * whole);
    assert!(found("torn", &[&lossy[..], &["--event-replay", "0"]].concat()) < whole);
    for flag in ["--event-loss", "--event-lag-ms", "--refresh-s"] {
        let error = lab(&[&["simulate"][..], &SMALL, &[flag, "0.5"]].concat()).unwrap_err();
        assert!(error.to_string().contains("mean nothing in the presumed view"), "{flag}: {error}");
    }
    let swept = lab(&[&["sweep", "--over", "loss=0,0.1"][..], &SMALL].concat()).unwrap_err();
    assert!(swept.to_string().contains("mean nothing in the presumed view"), "{swept}");
}

#[test]
fn a_sweep_names_its_range_and_not_the_default() {
    let folder = Folder::new("range");
    let text = folder.file("text.md");
    let words =
        ["sweep", "--over", "workers=2,5", "--policies", "random", "--bounds", "off", "--markdown", &text];
    lab(&[&words[..], &SMALL[..4]].concat()).unwrap();
    assert!(std::fs::read_to_string(text).unwrap().contains("- workers: 2 … 5\n"));
}

#[test]
fn a_mistake_is_reported_once_with_its_correction() {
    let error = lab(&[&["simulate", "--policies", "best"][..], &SMALL].concat()).unwrap_err();
    assert_eq!(format!("{error:#}").matches("unknown policy").count(), 1);
    let error = lab(&["simulate"]).unwrap_err().to_string();
    assert!(error.contains("--trace <FILE>|--workload <NAME>"), "{error}");
    let error = lab(&["simulate", "--workload", "short", "--rate-scale", "-1"]).unwrap_err();
    assert!(error.to_string().contains("--rate-scale -1: expected a number from 0.0001 to 10000"), "{error}");
    let twice = [&["simulate", "--html", "-", "--json", "-", "--bounds", "off"][..], &SMALL].concat();
    assert!(lab(&twice).unwrap_err().to_string().contains("only one of"));
}

#[test]
fn requests_beyond_the_places_wait() {
    let folder = Folder::new("places");
    let ttft = |places: &[&str]| {
        let out = folder.file("out.json");
        let words = [
            "simulate",
            "--policies",
            "round_robin",
            "--concurrency",
            "32",
            "--bounds",
            "off",
            "--json",
            &out,
        ];
        lab(&[&words, places, &SMALL].concat()).unwrap();
        json(&out)["results"][0]["ttft_ms"]["mean"].as_f64().unwrap()
    };
    let (all, few) = (ttft(&[]), ttft(&["--max-num-seqs", "2"]));
    assert!(few > 10.0 * all, "{all} ms, with two places {few}");
    assert_eq!(ttft(&["--max-num-seqs", "256"]), all);
}
