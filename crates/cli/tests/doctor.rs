//! `warmroute doctor`, on engines that are well and on engines that are not.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod world;

use world::process::{Process, engine, run};

fn scratch(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"))
}

/// What it says, and whether it was content.
fn doctor(flags: &[&str]) -> (String, bool) {
    let done = run(&[&["doctor"], flags].concat());
    (String::from_utf8_lossy(&done.stdout).into_owned(), done.status.success())
}

fn publishing(folder: &str, more: &[&str]) -> Process {
    let flags = ["--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0", "--write-model", folder];
    engine(&[&flags[..], more].concat())
}

#[test]
fn a_healthy_engine_gets_a_clean_bill() {
    let folder = scratch("doctor-well");
    let one = publishing(&folder, &[]);
    let (said, is_content) = doctor(&["--worker-urls", one.url(), "--model-path", &folder]);
    for word in [
        "serves llama-3.1-8b",
        "a cache of",
        "publishes KV events at",
        "replays them at",
        "compared in bytes",
        "found in its cache",
        "its clock and ours agree",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(is_content && !said.contains("BAD"), "{said}");
}

#[test]
fn what_is_missing_is_named_with_the_flag_that_mends_it() {
    let folder = scratch("doctor-blind");
    let (mute, blind) = (engine(&[]), publishing(&folder, &["--prompt-tokens-details", "off"]));
    let (said, is_content) = doctor(&["--worker-urls", mute.url(), blind.url(), "--model-path", &folder]);
    assert!(is_content, "nothing of it is broken: {said}");
    for word in ["publishes no KV events", "--kv-events-config", "--enable-prompt-tokens-details"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_dead_engine_is_a_trouble_and_the_others_are_examined_all_the_same() {
    let alive = engine(&[]);
    let (said, is_content) = doctor(&["--worker-urls", "http://127.0.0.1:1", alive.url()]);
    assert!(
        !is_content && said.contains("it does not answer") && said.contains("serves llama-3.1-8b"),
        "{said}"
    );
}

#[test]
fn without_workers_there_is_nothing_to_examine() {
    let (said, is_content) = doctor(&[]);
    assert!(!is_content && said.contains("names no workers"), "{said}");
}
