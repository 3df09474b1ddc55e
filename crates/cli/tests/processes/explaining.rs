//! Explanations of decisions: past ones, previews, and shadow policies.

use std::path::PathBuf;
use std::process::Output;

use crate::harness::client::{Call, chat, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run, run_with_input};
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";

/// A conversation long enough for its cache to matter. The word occurs nowhere else.
fn conversation(word: &str) -> String {
    let content = format!("{word} ").repeat(2_000);
    json!({"model": MODEL, "max_tokens": 3, "stream": true, "messages": [{"role": "user", "content": content}]})
        .to_string()
}

fn fleet(n: usize, more: &[&str]) -> (Vec<Process>, Gateway) {
    let engines: Vec<Process> = (0..n).map(|_| engine(&[])).collect();
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let gateway = Gateway::over(&urls, more);
    (engines, gateway)
}

fn chosen(told: &Value) -> &Value {
    told["candidates"].as_array().unwrap().iter().find(|candidate| candidate["chosen"] == true).unwrap()
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("warmroute-explain-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_last_decisions_show_their_terms_and_no_prompt() {
    let (_engines, gateway) = fleet(6, &["--policy", "expected_ttft"]);
    assert_eq!(get(gateway.admin(), "/explain").json(), json!([]));
    let mut went = Vec::new();
    for id in ["first", "second"] {
        let headers = [&*format!("x-request-id: {id}"), "authorization: Bearer hidden"];
        let body = conversation("confidential");
        let call = Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, body.as_bytes());
        went.push(call.finish().header("x-warmroute-worker").unwrap().to_owned());
    }
    let page = get(gateway.admin(), "/explain");
    assert!(!page.text().contains("confidential") && !page.text().contains("hidden"));
    let told = page.json();
    assert_eq!((&told[0]["request_id"], &told[1]["request_id"]), (&json!("second"), &json!("first")));
    let (second, first) = (&told[0], &told[1]);
    assert_eq!((&second["policy"], &second["model"]), (&json!("expected_ttft"), &json!(MODEL)));
    assert_eq!(second["reason"], "soonest_warmest");
    assert_eq!(second["candidates"].as_array().unwrap().len(), 4, "the best of six");
    for (decision, worker) in [second, first].into_iter().zip(went.iter().rev()) {
        assert_eq!(chosen(decision)["worker"], *worker);
        assert!(decision["observed_ttft_ms"].as_f64().unwrap() > 0.0, "{decision}");
        for candidate in decision["candidates"].as_array().unwrap() {
            let ms = |term: &str| candidate[term].as_f64().unwrap();
            assert!((ms("queue_ms") + ms("prefill_ms") - ms("expected_ttft_ms")).abs() < 0.01, "{candidate}");
            assert!(ms("cost_ms") >= ms("expected_ttft_ms"), "{candidate}");
        }
    }
    assert_eq!(chosen(first)["overlap_tokens"], 0);
    assert!(chosen(second)["overlap_tokens"].as_u64().unwrap() > 1_000, "{second}");
    assert_eq!(get(gateway.admin(), "/explain?n=1").json().as_array().unwrap().len(), 1);
    assert_eq!(get(gateway.admin(), "/explain?n=many").status, 400);
    assert_eq!(Call::send(gateway.admin(), "DELETE", "/explain", &[], b"").finish().status, 405);
}

#[test]
fn a_preview_shows_where_a_request_would_go_and_leaves_no_trace() {
    let (_engines, gateway) = fleet(3, &["--policy", "expected_ttft"]);
    let body = conversation("warm");
    let sent = post(gateway.url(), "/v1/chat/completions", &body);
    let holder = sent.header("x-warmroute-worker").unwrap();
    gateway.wait_for_idle();
    let trace = || {
        let page = get(gateway.admin(), "/metrics").text();
        let traces = ["warmroute_requests_total", "warmroute_decisions_total", "warmroute_index_held"];
        let kept = page.lines().filter(|line| traces.iter().any(|name| line.starts_with(name)));
        (
            kept.map(str::to_owned).collect::<Vec<_>>(),
            get(gateway.admin(), "/explain").json().as_array().unwrap().len(),
        )
    };
    let before = trace();
    let told = post(gateway.admin(), "/explain?path=/v1/chat/completions", &body);
    assert_eq!(told.status, 200, "{}", told.text());
    let told = told.json();
    assert_eq!(told["candidates"].as_array().unwrap().len(), 3, "all of them");
    assert_eq!(chosen(&told)["worker"], holder);
    assert_eq!(before, trace());
    assert!(gateway.workers().iter().all(|worker| worker["in_flight"] == 0));
    let again = post(gateway.url(), "/v1/chat/completions", &body);
    assert_eq!(again.header("x-warmroute-worker"), Some(holder), "and there it goes");
}

#[test]
fn previews_are_refused_as_requests_are() {
    let (_engines, gateway) = fleet(1, &["--max-payload-size", "2000"]);
    let too_long = conversation("long");
    for (path, body, status, code) in [
        ("/v1/chat/completions", "{\"model\": }", 400, "invalid_json"),
        ("/v1/chat/completions", chat("nobody").as_str(), 404, "model_not_found"),
        ("/v1/completions", &too_long, 413, "request_too_large"),
        ("/fault", "{}", 404, "unknown_url"),
    ] {
        let refused = post(gateway.admin(), &format!("/explain?path={path}"), body);
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (status, &json!(code)),
            "{path} {body}"
        );
        if path != "/fault" {
            assert_eq!(refused.text(), post(gateway.url(), path, body).text());
        }
    }
}

#[test]
fn the_command_prints_a_table_for_a_file_for_standard_input_and_for_the_past() {
    let (_engines, gateway) = fleet(3, &["--policy", "expected_ttft"]);
    let explain = |more: &[&str]| run(&[&["explain", "--admin", gateway.admin()], more].concat());
    let body = conversation("table");
    let holder = post(gateway.url(), "/v1/chat/completions", &body);
    let holder = holder.header("x-warmroute-worker").unwrap();
    let path = file("request.json", &body);

    let Output { status, stdout, stderr } = explain(&[path.to_str().unwrap()]);
    assert!(status.success(), "{}", text(&stderr));
    let table = text(&stdout);
    assert!(table.contains(&format!("expected_ttft: soonest_warmest, goes to {holder}")), "{table}");
    let marked: Vec<&str> = table.lines().filter(|line| line.starts_with("> ")).collect();
    assert!(marked.len() == 1 && marked[0].contains(holder), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");

    let args = ["explain", "-", "--admin", gateway.admin(), "--path", "/v1/chat/completions", "--json"];
    let piped = run_with_input(&args, body.as_bytes());
    let told: Value =
        serde_json::from_slice(&piped.stdout).unwrap_or_else(|_| panic!("{}", text(&piped.stderr)));
    assert_eq!(chosen(&told)["worker"], holder);

    let past = text(&explain(&[]).stdout);
    assert!(past.lines().nth(1).is_some_and(|line| line.contains(holder)), "{past}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_command_fails_with_a_plain_message() {
    let (_engines, gateway) = fleet(1, &[]);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let broken = file("broken.json", "{\"model\":");
    let broken = broken.to_str().unwrap();
    for (args, words) in [
        (vec!["explain", broken, "--admin", gateway.admin()], "The request body is not valid JSON: expected"),
        (vec!["explain", "/no/such/file", "--admin", gateway.admin()], "cannot read /no/such/file"),
        (vec!["explain", "--admin", &format!("http://{nobody}")], "no gateway answers at http://"),
        (vec!["explain", "--admin", "gateway:1"], "expected http://HOST:PORT"),
        (vec!["explain", "--admin", gateway.url()], "is the client listener of a gateway"),
    ] {
        let output = run(&args);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{args:?}: {said}");
        assert_eq!(output.stdout, b"");
    }
    std::fs::remove_file(broken).unwrap();
}

#[test]
fn predicted_ttft_is_compared_with_first_tokens() {
    let (_engines, gateway) = fleet(1, &[]);
    let count = |name: &str| gateway.metric_sum(&format!("warmroute_{name}"));
    assert_eq!(count("ttft_prediction_ratio_count"), 0.0);
    post(gateway.url(), "/v1/chat/completions", &chat(MODEL));
    assert_eq!(count("ttft_prediction_ratio_count"), 0.0, "a document has no first token that can be seen");
    for _ in 0..3 {
        post(gateway.url(), "/v1/chat/completions", &conversation("ratio"));
    }
    assert_eq!(count("ttft_prediction_ratio_count"), 3.0);
    let (predicted, observed) = (count("predicted_ttft_seconds_total"), count("observed_ttft_seconds_total"));
    assert!(predicted > 0.0 && observed > 0.0, "{predicted} {observed}");
    let told = get(gateway.admin(), "/explain?n=3").json();
    let sum_ms: f64 =
        told.as_array().unwrap().iter().filter_map(|past| past["observed_ttft_ms"].as_f64()).sum();
    assert!((sum_ms / 1e3 - observed).abs() < 1e-6, "{sum_ms} {observed}");

    let worker = gateway.workers().remove(0);
    assert_eq!(worker["expected_queue_ms"], 0.0, "nothing waits: {worker}");
    for key in ["ms_per_1k_tokens", "ms_before_first", "relative"] {
        assert!(worker["latency"][key].as_f64().is_some_and(|value| value >= 0.0), "{key}: {worker}");
    }
}

#[test]
fn shadow_policies_are_evaluated_on_live_traffic_and_counted() {
    let more = ["--policy", "round_robin", "--shadow", "cache_aware,least_loaded"];
    let (_engines, gateway) = fleet(2, &more);
    assert_eq!(
        get(gateway.admin(), "/config").json()["routing"]["shadow"],
        json!(["cache_aware", "least_loaded"])
    );
    let count =
        |name: &str, policy: &str| gateway.metric(&format!("warmroute_shadow_{name}{{policy=\"{policy}\"}}"));
    let body = conversation("shadow");
    let went: Vec<String> = (0..4)
        .map(|_| {
            post(gateway.url(), "/v1/chat/completions", &body)
                .header("x-warmroute-worker")
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_ne!(went[0], went[1], "the acting policy has its way");
    eventually("all were counted", || (count("decisions_total", "round_robin") == 4.0).then_some(()));
    for policy in ["round_robin", "cache_aware", "least_loaded"] {
        assert_eq!(count("decisions_total", policy), 4.0, "{policy}");
        assert!(count("prompt_tokens_total", policy) > 4_000.0, "{policy}");
        assert!(count("predicted_ttft_seconds_total", policy) > 0.0, "{policy}");
    }
    assert_eq!(count("agreed_total", "round_robin"), 4.0);
    let cached = |policy| count("predicted_cached_tokens_total", policy);
    assert!(cached("cache_aware") > cached("round_robin"), "the second went to a cold worker");
    assert!(gateway.metric_sum("warmroute_decisions_total") == 4.0);

    let refused = run(&["serve", "--shadow", "best"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("unknown policy `best`"), "{said}");
}
