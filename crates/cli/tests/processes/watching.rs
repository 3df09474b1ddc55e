//! `warmroute status` and `warmroute top --once`.

use std::process::Output;

use serde_json::{Value, json};

use crate::harness::client::{chat, post};
use crate::harness::process::{Gateway, engine, run};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn status_says_by_its_exit_code_whether_the_gateway_is_ready() {
    let gateway = Gateway::start(&[], &["--admin-token", "secret"]);
    let status = |more: &[&str]| run(&[&["status", "--admin", gateway.admin()], more].concat());
    let Output { status: code, stderr, .. } = status(&[]);
    assert_eq!(code.code(), Some(1));
    assert!(text(&stderr).contains("requires its admin token"), "{}", text(&stderr));
    let token = ["--admin-token", "secret"];
    let Output { status: code, stdout, stderr } = status(&token);
    assert_eq!(
        (code.code(), text(&stdout)),
        (Some(1), "not_ready workers=0 ready=0 in_flight=0 waiting=0\n".into())
    );
    assert!(text(&stderr).contains("no worker is ready"), "{}", text(&stderr));

    let worker = engine(&[]);
    let gateway = Gateway::start(&[worker.url()], &[]);
    let ready = run(&["status", "--wait", "20", "--admin", gateway.admin()]);
    assert_eq!(ready.status.code(), Some(0));
    assert_eq!(text(&ready.stdout), "ready workers=1 ready=1 in_flight=0 waiting=0\n");
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
    gateway.wait_for_idle();
    let described = run(&["status", "--json", "--admin", gateway.admin()]);
    let described: Value = serde_json::from_slice(&described.stdout).unwrap();
    assert_eq!((&described["ready"], &described["ready_workers"]), (&json!(true), &json!(1)));
    let fleet = &described["fleet"][0];
    assert_eq!((&fleet["worker"], &fleet["requests"]), (&json!(worker.url()), &json!(1.0)));

    let silent = run(&["status", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(silent.status.code(), Some(1));
    assert!(text(&silent.stderr).contains("no gateway answers at http://127.0.0.1:1"));
}

/// What a wait cannot change: a wrong token, and the address of another listener.
#[test]
fn a_status_that_is_refused_does_not_wait() {
    let gateway = Gateway::start(&[], &["--admin-token", "secret"]);
    let began = std::time::Instant::now();
    for (args, said) in [
        (vec!["--admin", gateway.admin()], "requires its admin token"),
        (vec!["--admin", gateway.admin(), "--admin-token", "other"], "refuses the admin token"),
        (vec!["--admin", gateway.url()], "is the client listener of a gateway"),
    ] {
        let refused = run(&[&["status", "--wait", "10m"], &args[..]].concat());
        assert!(!refused.status.success());
        assert!(text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
    }
    assert!(began.elapsed().as_secs() < 500);
}

#[test]
fn top_prints_a_row_for_each_worker_and_needs_a_terminal_to_go_on() {
    let workers = [engine(&[]), engine(&[])];
    let gateway = Gateway::over(&[workers[0].url(), workers[1].url()], &["--policy", "round_robin"]);
    (0..4).for_each(|_| _ = post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")));
    gateway.wait_for_idle();
    let once = run(&["top", "--once", "--admin", gateway.admin()]);
    assert!(once.status.success(), "{}", text(&once.stderr));
    let once = text(&once.stdout);
    assert!(once.starts_with("ready: 2 of 2 workers take requests, 0 in flight, "), "{once}");
    for worker in &workers {
        let row = once.lines().find(|line| line.starts_with(worker.url())).unwrap();
        assert!(row.contains(" ready ") && row.ends_with(" 50"), "half of the requests: {row}");
    }
    let live = run(&["top", "--admin", gateway.admin()]);
    assert!(!live.status.success() && text(&live.stderr).contains("--once"), "{}", text(&live.stderr));
}
