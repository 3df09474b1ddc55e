//! Prompts of real agents: requests that Claude Code and Codex sent, shortened and with other words.
//!
//! `conformance/agents/run --fixtures FOLDER` records them.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use serde_json::Value;
use warmroute_prefixes::{PrefixWatch, WatchedPrompt};
use warmroute_prompt::{Api, Attribution, Body, write_prompt};
use warmroute_types::Micros;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const CLAUDE_CODE: &str = include_str!("agents/claude-code-2.1.197.jsonl");
const CODEX: &str = include_str!("agents/codex-0.166.0.jsonl");

/// A recorded request.
struct Recorded {
    api: Api,
    session: String,
    body: Value,
}

fn recorded(lines: &str) -> Vec<Recorded> {
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        Recorded { api: Api::of_path(&text("path")), session: text("session"), body: line["body"].clone() }
    };
    lines.lines().map(read).collect()
}

fn canonical(body: &Value) -> Vec<u8> {
    let text = body.to_string();
    let mut bytes = Vec::new();
    write_prompt(&Body::read(text.as_bytes()).unwrap(), &mut bytes);
    bytes
}

#[test]
fn every_request_of_a_conversation_begins_with_the_one_before() {
    for lines in [CLAUDE_CODE, CODEX] {
        let requests = recorded(lines);
        let mut compared = 0;
        for pair in requests.windows(2).filter(|pair| pair[0].session == pair[1].session) {
            assert!(canonical(&pair[1].body).starts_with(&canonical(&pair[0].body)), "{}", pair[1].body);
            compared += 1;
        }
        assert!(compared >= 3, "{compared}");
    }
}

#[test]
fn the_cache_mark_moves_in_the_recorded_requests() {
    let requests = recorded(CLAUDE_CODE);
    let last_of = |request: &Recorded| request.body["messages"].as_array().unwrap().len() - 1;
    let mark = |request: &Recorded, turn: usize| {
        request.body["messages"][turn]["content"][0]["cache_control"].clone()
    };
    let (second, third) = (&requests[1], &requests[2]);
    assert!(mark(second, last_of(second)).is_object(), "on the last turn");
    assert!(mark(third, last_of(second)).is_null(), "and gone from there in the next request");
}

#[test]
fn conversations_of_codex_share_the_developers_text() {
    let requests = recorded(CODEX);
    let (first, other) =
        (&requests[0], requests.iter().find(|other| other.session != requests[0].session).unwrap());
    assert_ne!(first.body["input"][0]["id"], other.body["input"][0]["id"], "items have ids of their own");
    let mut developers = first.body.clone();
    developers["input"].as_array_mut().unwrap().truncate(2);
    let shared = canonical(&developers);
    assert!(canonical(&first.body).starts_with(&shared) && canonical(&other.body).starts_with(&shared));
}

#[test]
fn nothing_that_agents_send_breaks_a_prefix() {
    let mut watch = PrefixWatch::new(1);
    for request in recorded(CLAUDE_CODE).iter().chain(&recorded(CODEX)) {
        let text = request.body.to_string();
        let body = Body::read(text.as_bytes()).unwrap();
        let session = Some(xxh3_64(request.session.as_bytes()));
        watch.see(
            WatchedPrompt {
                model: "m",
                api: request.api,
                body: &body,
                session,
                salt: 0,
                attribution: Attribution::Dropped,
            },
            xxh3_64_with_seed,
            Micros::ZERO,
        );
    }
    let report = watch.report(Micros::ZERO);
    assert_eq!((report.models[0].compared, report.models[0].broken), (8, 0), "{report:?}");
}
