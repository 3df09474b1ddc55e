//! Operators' tasks: adding and removing workers, draining, checking configurations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::harness::client::{Call, chat, chat_stream, get, post};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

#[test]
fn concurrent_siblings_are_placed_as_if_in_sequence() {
    let gate = Gate::default();
    let engines: Vec<Scripted> = (0..8)
        .map(|_| {
            let gate = gate.clone();
            Scripted::new(move |mut asked| {
                gate.pass();
                asked.answer("{}");
            })
        })
        .collect();
    let urls: Vec<&str> = engines.iter().map(|engine| engine.url.as_str()).collect();
    let gateway = Gateway::over(&urls, &["--policy", "least_loaded"]);
    let barrier = std::sync::Barrier::new(64);
    let calls: Vec<Call> = std::thread::scope(|scope| {
        let send = || {
            // Connected in advance, so that the requests arrive together.
            let mut call = Call::raw(gateway.url(), b"");
            barrier.wait();
            call.write(&Call::request("POST", "/v1/chat/completions", &[], chat("m").as_bytes()));
            call
        };
        let threads: Vec<_> = (0..64).map(|_| scope.spawn(send)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    engines.iter().for_each(|engine| engine.wait_for_asked(8));
    gate.open();
    let mut placed: BTreeMap<String, u32> = BTreeMap::new();
    for call in calls {
        let response = call.finish();
        *placed.entry(response.header("x-warmroute-worker").unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(placed.values().copied().collect::<Vec<_>>(), [8; 8], "a burst is spread evenly");
    gateway.wait_for_idle();
}

#[test]
fn sigterm_finishes_requests_in_flight_refuses_new_ones_and_exits_0() {
    let gate = Gate::default();
    let held = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"n\":1}\n\n");
        held.pass();
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let mut call =
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], chat_stream("m", 2).as_bytes());
    call.read_until("{\"n\":1}");
    // Two at once, as timeout(1) sends them, are one request to stop.
    gateway.process.signal("-TERM");
    gateway.process.signal("-TERM");
    eventually("it is not ready any more", || (get(gateway.admin(), "/readyz").status == 503).then_some(()));
    eventually("new connections are refused", || {
        std::net::TcpStream::connect(crate::harness::client::authority(gateway.url())).is_err().then_some(())
    });
    gate.open();
    let response = call.finish();
    assert!(response.complete && response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
    assert!(gateway.process.wait().success());
}

/// An engine whose chats stall, whose messages never end, and whose documents never start, until the client leaves.
fn never_done() -> Scripted {
    Scripted::new(|mut asked| {
        if !asked.body.windows(13).any(|part| part == b"\"stream\":true") {
            return asked.wait_for_hang_up();
        }
        asked.begin_events();
        asked.chunk("data: {\"n\":1}\n\n");
        if asked.head.starts_with("POST /v1/chat") {
            return asked.wait_for_hang_up();
        }
        while std::io::Write::write_all(&mut asked.stream, b"a\r\ndata: {}\n\n\r\n").is_ok() {}
    })
}

/// A signal that comes so long after another one is not the same request to stop.
const ANOTHER_STOP: Duration = Duration::from_millis(500);

#[test]
fn requests_that_outlast_the_drain_timeout_end_with_an_error() {
    // Either the drain timeout passes, or a second signal arrives.
    for (drain_timeout_s, signals) in [("1", 1), ("600", 2)] {
        let engine = never_done();
        let gateway = Gateway::over(&[&engine.url], &["--drain-timeout-secs", drain_timeout_s]);
        let send = |path: &str, body: String| Call::send(gateway.url(), "POST", path, &[], body.as_bytes());
        let mut silent = send("/v1/chat/completions", chat_stream("m", 9));
        let mut endless = send("/v1/messages", chat_stream("m", 9));
        let waiting = send("/v1/chat/completions", chat("m"));
        for stream in [&mut silent, &mut endless] {
            stream.read_until("{\"n\":1}");
        }
        engine.wait_for_asked(3);
        for _ in 0..signals {
            gateway.process.signal("-TERM");
            eventually("new connections are refused", || {
                std::net::TcpStream::connect(crate::harness::client::authority(gateway.url()))
                    .is_err()
                    .then_some(())
            });
            std::thread::sleep(ANOTHER_STOP);
        }
        // The endless stream is read meanwhile; otherwise its client would be cut off as stalled.
        let endless = std::thread::spawn(|| endless.finish());
        let (silent, waiting) = (silent.finish(), waiting.finish());
        let endless = endless.join().unwrap();
        assert!(silent.complete && endless.complete, "clean ends");
        let told = |text: String| text.trim_end().rsplit("data: ").next().unwrap().parse::<Value>().unwrap();
        let told_openai = told(silent.text());
        assert_eq!(told_openai["error"]["code"], "shutting_down", "{told_openai}");
        let events = endless.text();
        let told_anthropic = told(events.clone());
        assert_eq!(told_anthropic["error"]["type"], "overloaded_error", "{told_anthropic}");
        assert!(events.contains("\n\nevent: error\ndata: {"));
        assert_eq!((waiting.status, waiting.json()["error"]["code"].as_str()), (503, Some("shutting_down")));
        assert!(!gateway.process.wait().success(), "not all was answered");
        engine.check();
    }
}

#[test]
fn workers_are_added_and_removed_by_the_admin_listener() {
    let (first, second) = (engine(&[]), engine(&["--model", "other"]));
    let gateway = Gateway::over(&[first.url()], &[]);
    let added = post(gateway.admin(), "/workers", &json!({"url": second.url()}).to_string());
    assert_eq!(added.status, 202);
    gateway.wait_for_ready(2);
    assert_eq!(
        post(gateway.url(), "/v1/chat/completions", &chat("other")).header("x-warmroute-worker"),
        Some(second.url())
    );
    let models = get(gateway.url(), "/v1/models").json();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["llama-3.1-8b", "other"], "one list for the whole fleet");

    let path = format!("/workers?url={}", second.url().replace("://", "%3A%2F%2F"));
    assert_eq!(Call::send(gateway.admin(), "DELETE", &path, &[], b"").finish().status, 200);
    gateway.wait_for_ready(1);
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("other")).status, 404);

    for body in ["{}", r#"{"url":"nonsense"}"#, r#"{"url":"http://a","ranks":"many"}"#] {
        assert_eq!(post(gateway.admin(), "/workers", body).status, 400, "{body}");
    }
    assert_eq!(
        Call::send(gateway.admin(), "DELETE", "/workers?url=http://nobody", &[], b"").finish().status,
        404
    );
    assert_eq!(Call::send(gateway.admin(), "PUT", "/workers", &[], b"").finish().status, 405);
}

/// Every metric on the page is documented, and every documented metric is on the page.
#[test]
fn the_metrics_page_and_its_documentation_agree() {
    let engine = engine(&[]);
    let folder = TempFolder::new("metrics");
    let (record, access_log) = (folder.file("trace.jsonl"), folder.file("access.log"));
    // Enables the optional metrics.
    let secret = folder.file("secret");
    std::fs::write(&secret, "a secret of sixteen bytes and more").unwrap();
    let flags = ["--load-interval-ms", "10", "--record", &record, "--max-concurrent-requests", "9"];
    let shared = ["--share", "mesh", "--share-secret-file", &secret, "--mesh-listen", "127.0.0.1:0"];
    let logged = ["--access-log", &access_log, "--otlp-endpoint", "http://127.0.0.1:9"];
    let gateway = Gateway::over(&[engine.url()], &[&flags[..], &shared, &logged].concat());
    eventually("a load report has come", || {
        gateway.workers().pop().filter(|worker| worker["report"].is_object())
    });
    post(gateway.url(), "/v1/chat/completions", &chat_stream("llama-3.1-8b", 3));
    post(gateway.url(), "/v1/chat/completions", "{");
    let page = get(gateway.admin(), "/metrics").text();
    let on_page: BTreeSet<String> = page
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ')))
        .map(|mut words| {
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            if kind == "counter" { format!("{name}_total") } else { name.to_owned() }
        })
        .collect();
    let documentation = include_str!("../../../../docs/metrics.md");
    let explained: BTreeSet<String> = documentation
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            word.starts_with("warmroute_") && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        })
        .map(str::to_owned)
        .collect();
    assert_eq!(on_page, explained);
    // A panel of the dashboard that names another metric would stay empty. A histogram's parts are the histogram.
    let dashboard = include_str!("../../../../deploy/helm/warmroute/dashboards/warmroute.json");
    let words = dashboard.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    let named = words.filter(|word| word.starts_with("warmroute_"));
    let part_of = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| name.strip_suffix(part))
            .unwrap_or(name)
            .to_owned()
    };
    let unknown: BTreeSet<String> = named.map(part_of).filter(|name| !on_page.contains(name)).collect();
    assert_eq!(unknown, BTreeSet::new());
}

#[test]
fn a_removed_workers_metrics_disappear() {
    let engines = [engine(&[]), engine(&[])];
    let gateway = Gateway::over(&[engines[0].url()], &[]);
    let series = |url: &str| get(gateway.admin(), "/metrics").text().matches(url).count();
    for turn in 0..4 {
        let (here, gone) = (engines[turn % 2].url(), engines[(turn + 1) % 2].url());
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
        assert!(series(here) > 0);
        assert_eq!(series(gone), 0);
        // The new worker reuses the index of the removed one.
        gateway.wait_for_idle();
        assert_eq!(
            Call::send(gateway.admin(), "DELETE", &format!("/workers?url={here}"), &[], b"").finish().status,
            200
        );
        post(gateway.admin(), "/workers", &json!({"url": gone}).to_string());
        gateway.wait_for_ready(1);
    }
}

#[test]
fn a_worker_file_is_followed() {
    let (first, second) = (engine(&[]), engine(&[]));
    let path = std::env::temp_dir().join(format!("warmroute-workers-{}.toml", std::process::id()));
    let write = |urls: &[&str]| {
        let tables: String = urls.iter().map(|url| format!("[[workers]]\nurl = \"{url}\"\n")).collect();
        std::fs::write(&path, tables).unwrap();
    };
    write(&[first.url()]);
    let gateway = Gateway::start(&[], &["--worker-file", path.to_str().unwrap()]);
    gateway.wait_for_ready(1);
    write(&[first.url(), second.url()]);
    gateway.wait_for_ready(2);
    write(&[second.url()]);
    gateway.wait_for_ready(1);
    assert_eq!(gateway.workers()[0]["url"], second.url());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_dns_name_is_resolved_to_workers() {
    let engine = engine(&[]);
    let port = engine.url().rsplit(':').next().unwrap().to_owned();
    let gateway = Gateway::start(&[], &["--worker-dns", &format!("http://localhost:{port}")]);
    // If localhost has an IPv6 record as well, that is a second worker, which never becomes ready.
    eventually("the IPv4 record is a ready worker", || {
        let is_it = |worker: &Value| worker["url"] == engine.url() && worker["state"] == "ready";
        gateway.workers().iter().any(is_it).then_some(())
    });
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
}

#[test]
fn metrics_and_workers_count_requests_and_failures() {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &["--load-interval-ms", "10"]);
    for _ in 0..2 {
        post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
    }
    post(gateway.url(), "/v1/chat/completions", &chat_stream("llama-3.1-8b", 3));
    post(gateway.url(), "/v1/chat/completions", "{");
    let ok = format!("warmroute_requests_total{{worker=\"{}\",outcome=\"ok\"}}", engine.url());
    assert_eq!(gateway.metric(&ok), 3.0);
    assert_eq!(gateway.metric("warmroute_refusals_total{reason=\"invalid_json\"}"), 1.0);
    assert_eq!(
        gateway.metric("warmroute_time_to_first_token_seconds_count"),
        1.0,
        "only a stream shows its first token"
    );
    assert_eq!(gateway.metric("warmroute_request_seconds_count"), 3.0);
    let ready = format!("warmroute_worker_state{{worker=\"{}\",state=\"ready\"}}", engine.url());
    assert_eq!(gateway.metric(&ready), 1.0);
    let worker = eventually("a load report has come", || {
        gateway.workers().pop().filter(|worker| worker["report"].is_object())
    });
    for (key, value) in [
        ("rank", json!(null)),
        ("model", json!("llama-3.1-8b")),
        ("state", json!("ready")),
        ("view", json!("presumed")),
        ("in_flight", json!(0)),
    ] {
        assert_eq!(worker[key], value, "{key}");
    }
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let path = std::env::temp_dir().join(format!("warmroute-layers-{}.toml", std::process::id()));
    std::fs::write(
        &path,
        "[routing]\npolicy = \"random\"\nprefix-token-count = 1\n[health]\nhealth-failure-threshold = 9\n",
    )
    .unwrap();
    let args = [
        "serve",
        "--config",
        path.to_str().unwrap(),
        "--port",
        "0",
        "--admin-port",
        "0",
        "--policy",
        "power-of-two",
    ];
    let env = [("WARMROUTE_POLICY", "round_robin"), ("WARMROUTE_PREFIX_TOKEN_COUNT", "2")];
    let process = Process::start_with_env(&args, &env);
    let config = get(process.admin(), "/config").json();
    assert_eq!(config["routing"]["policy"], "power-of-two");
    assert_eq!(config["routing"]["prefix-token-count"], 2);
    assert_eq!(config["health"]["health-failure-threshold"], 9);
    assert_eq!(config["health"]["health-check-endpoint"], "/health");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn check_accepts_valid_and_refuses_invalid_configurations() {
    let path = std::env::temp_dir().join(format!("warmroute-check-{}.toml", std::process::id()));
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        run(&["check", path.to_str().unwrap()])
    };
    let good = check("[routing]\npolicy = \"random\"\n[[workers]]\nurl = \"http://a:1\"\n");
    assert!(good.status.success());
    assert!(String::from_utf8_lossy(&good.stdout).contains("policy = \"random\""));
    assert!(String::from_utf8_lossy(&good.stdout).contains("admin token not set"));
    let token = check("[security]\nadmin-token = \"hush\"\n");
    let shown = String::from_utf8_lossy(&token.stdout).into_owned();
    assert!(shown.contains("admin token set") && !shown.contains("hush"), "{shown}");
    let bad = check("[routing]\npolcy = \"random\"\n");
    assert!(!bad.status.success());
    let error = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(error.contains("line 2") && error.contains("did you mean `routing.policy`?"), "{error}");
    for (text, why) in [
        (
            "[server]\nstate = \"/no/such/folder/state\"",
            "state: cannot create /no/such/folder/state: no folder",
        ),
        (
            "[server]\nhandover = \"/no/such/folder/x\"",
            "handover: cannot create /no/such/folder/x: no folder",
        ),
        ("[server]\nstate = \"/dev/null\"", "state: /dev/null exists and has another type"),
        ("[[workers]]\nurl = \"http://user:hush@h:1\"", "http://***@h:1"),
    ] {
        let checked = check(text);
        let started = run(&["serve", "--config", path.to_str().unwrap()]);
        for refused in [checked, started] {
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && error.contains(why) && !error.contains("hush"), "{error}");
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_demo_prints_one_json_object() {
    let output = run(&["demo", "--json", "--conversations", "12", "--speed", "10"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs[0]["policy"], "round_robin");
    for run in runs {
        assert_eq!((&run["requests"], &run["errors"]), (&json!(48), &json!(0)));
        for figure in ["mean", "p50", "p95", "p99"] {
            assert!(run["ttft_ms"][figure].as_f64().unwrap() > 0.0);
        }
        assert!((0.0..1.0).contains(&run["token_hit_ratio"].as_f64().unwrap()));
        assert!(
            run["requests_per_s"].as_f64().unwrap() > 0.0
                && run["load_max_over_mean"].as_f64().unwrap() >= 1.0
        );
    }
    let hit = |run: usize| runs[run]["token_hit_ratio"].as_f64().unwrap();
    assert!(hit(1) > hit(0), "routing to the data finds more of it: {} against {}", hit(1), hit(0));
}

#[test]
fn an_engine_that_is_told_to_die_ends_with_an_error() {
    let engine = engine(&[]);
    let url = engine.url().to_owned();
    // The engine may exit before it has answered.
    let _ = std::panic::catch_unwind(|| post(&url, "/fault", r#"{"kind":"die"}"#));
    assert!(!engine.wait().success());
}

#[test]
fn a_request_right_after_the_start_is_served() {
    let engine = engine(&[]);
    for _ in 0..5 {
        let gateway = Gateway::start(&[engine.url()], &[]);
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
    }
}

/// Startup does not wait for workers that were probed and are down.
#[test]
fn a_gateway_without_reachable_workers_opens_and_answers_503() {
    let gateway = Gateway::start(&["http://127.0.0.1:1"], &[]);
    assert_eq!(get(gateway.admin(), "/readyz").status, 503);
    let answer = post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
    assert!(answer.status == 503 && answer.text().contains("no_worker_ready"), "{}", answer.text());
}
