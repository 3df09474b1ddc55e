//! The access log and the process's log: what operators read about each request.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::client::{Call, chat, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;

/// The JSON lines of a log, once there are at least `n`.
fn lines(file: &str, n: usize) -> Vec<Value> {
    eventually(&format!("{n} lines in {file}"), || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let whole = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        whole.ok().filter(|lines| lines.len() >= n)
    })
}

fn streamed(model: &str) -> String {
    let mut body: Value = serde_json::from_str(&chat(model)).unwrap();
    body["stream"] = true.into();
    body["max_tokens"] = 4.into();
    body["messages"][0]["content"] = "hush-prompt ".repeat(400).into();
    body.to_string()
}

#[test]
fn the_access_log_has_a_line_for_each_request_with_prediction_and_result() {
    let folder = TempFolder::new("access-log");
    let (log, keys) = (folder.file("access.log"), folder.file("keys"));
    std::fs::write(&keys, "hush-key name=team-a\n").unwrap();
    let replica = engine(&[]);
    let flags = ["--access-log", &log, "--access-log-format", "json", "--api-keys-file", &keys];
    let gateway = Gateway::over(&[replica.url()], &flags);
    let key = ["authorization: Bearer hush-key", "x-request-id: mine-1"];
    let body = streamed("llama-3.1-8b");
    let sent = [0, 1].map(|_| {
        let served =
            Call::send(gateway.url(), "POST", "/v1/chat/completions?hush=1", &key, body.as_bytes()).finish();
        assert_eq!(served.status, 200, "{}", served.text());
        gateway.wait_for_idle();
        served.body.len()
    });
    let logged = lines(&log, 2);
    let [cold, warm] = [&logged[0], &logged[1]];
    for (line, bytes) in [(cold, sent[0]), (warm, sent[1])] {
        assert_eq!(line["request_id"], "mine-1");
        assert_eq!((&line["method"], &line["path"]), (&json!("POST"), &json!("/v1/chat/completions")));
        assert_eq!(
            (&line["status"], &line["outcome"], &line["error"]),
            (&json!(200), &json!("ok"), &Value::Null)
        );
        assert_eq!((&line["key"], &line["model"]), (&json!("team-a"), &json!("llama-3.1-8b")));
        assert_eq!((&line["worker"], &line["attempts"]), (&json!(replica.url()), &json!(1)));
        assert_eq!((&line["policy"], &line["output_tokens"]), (&json!("expected_ttft"), &json!(4)));
        assert_eq!(line["bytes"], bytes, "all that the client got");
        let ms = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
        assert!(ms("expected_ttft_ms") > 0.0 && ms("ttft_ms") > 0.0, "{line}");
        assert!(ms("duration_ms") >= ms("wait_ms") + ms("ttft_ms"), "{line}");
    }
    let tokens = |line: &Value, name: &str| line[name].as_u64().unwrap();
    // An engine that has never reported cached tokens may not do so at all: nothing is not zero.
    assert_eq!((tokens(cold, "expected_cached_tokens"), &cold["cached_tokens"]), (0, &Value::Null));
    assert!(tokens(warm, "expected_cached_tokens") > 0 && tokens(warm, "cached_tokens") > 0, "{warm}");
    assert!(tokens(warm, "prompt_tokens") > tokens(warm, "cached_tokens"));

    let mut forged: Value = serde_json::from_str(&chat("m")).unwrap();
    forged["model"] = "no\n{\"such\":1}".into();
    let forged = forged.to_string();
    assert_eq!(
        Call::send(gateway.url(), "POST", "/v1/completions", &key, forged.as_bytes()).finish().status,
        404
    );
    assert_eq!(get(gateway.url(), "/health").status, 200);
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &body).status, 401);
    assert_eq!(Call::send(gateway.url(), "GET", "/v1/models", &key, b"").finish().status, 200);
    let logged = lines(&log, 5);
    let shown =
        |line: &Value| ["status", "outcome", "error", "key", "attempts"].map(|name| line[name].clone());
    let (refused, answered) = (json!("refused"), json!("answered"));
    assert_eq!(
        shown(&logged[2]),
        [json!(404), refused.clone(), json!("model_not_found"), json!("team-a"), json!(0)]
    );
    assert_eq!(logged[2]["model"], "no\n{\"such\":1}");
    assert_eq!(shown(&logged[3]), [json!(401), refused, json!("invalid_api_key"), Value::Null, json!(0)]);
    assert_eq!(shown(&logged[4]), [json!(200), answered, Value::Null, json!("team-a"), json!(0)]);
    assert_eq!(gateway.metric("warmroute_access_log_lines_total{result=\"written\"}"), 5.0);
    assert_eq!(gateway.metric("warmroute_access_log_lines_total{result=\"dropped\"}"), 0.0);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("hush"), "neither prompts nor keys nor queries: {text}");
}

#[test]
fn failures_retries_and_clients_that_leave_are_logged_as_such() {
    let folder = TempFolder::new("access-log-failures");
    let log = folder.file("access.log");
    let broken = Scripted::new(|asked| asked.reset());
    let slow = Scripted::new(|mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
        asked.wait_for_hang_up();
    });
    let flags = [
        "--access-log",
        &log,
        "--access-log-format",
        "json",
        "--policy",
        "round_robin",
        "--allow-worker-choice",
    ];
    let gateway = Gateway::over(&[&broken.url, &slow.url], &flags);
    let at = |worker: &str, id: &str| {
        let headers = [format!("x-warmroute-worker: {worker}"), format!("x-request-id: {id}")];
        let headers = [headers[0].as_str(), headers[1].as_str()];
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, streamed("m").as_bytes())
    };
    assert_eq!(at(&broken.url, "failed").finish().status, 502);
    let failed = &lines(&log, 1)[0];
    assert_eq!((&failed["status"], &failed["outcome"]), (&json!(502), &json!("failed")));
    assert_eq!((&failed["error"], &failed["worker"]), (&json!("worker_failed"), &json!(broken.url)));

    let mut left = at(&slow.url, "left");
    left.read_until("content");
    drop(left);
    let cancelled = &lines(&log, 2)[1];
    assert_eq!((&cancelled["request_id"], &cancelled["outcome"]), (&json!("left"), &json!("cancelled")));
    assert!(cancelled["bytes"].as_u64().unwrap() > 0 && cancelled["ttft_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_log_says_what_runs_who_was_refused_and_how_it_ended() {
    let folder = TempFolder::new("process-log");
    let (log, config) = (folder.file("log"), folder.file("config.toml"));
    std::fs::write(&config, "[routing]\npolicy = \"least_loaded\"\n").unwrap();
    let busy = Scripted::new(|mut asked| {
        asked.write("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}");
    });
    let flags = ["--log-format", "json", "--config", &config, "--worker-urls", &busy.url];
    let process = Process::serve(&flags, Stdio::from(std::fs::File::create(&log).unwrap()));
    eventually("it is ready", || (get(process.admin(), "/readyz").status == 200).then_some(()));
    let ask = |model: &str, id: &str| {
        let id = format!("x-request-id: {id}");
        Call::send(process.url(), "POST", "/v1/chat/completions", &[&id], chat(model).as_bytes())
            .finish()
            .status
    };
    assert_eq!((ask("m", "error-1"), ask("none", "refused-1")), (500, 404));
    let (url, admin) = (process.url().to_owned(), process.admin().to_owned());
    process.signal("-TERM");
    assert!(process.wait().success());
    let logged = lines(&log, 4);
    let line = |message: &str| {
        let found = logged.iter().find(|line| line["fields"]["message"] == message);
        found.unwrap_or_else(|| panic!("{message}: {logged:#?}"))["fields"].clone()
    };
    let started = line("warmroute started");
    assert_eq!(started["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&started["policy"], &started["config"]), (&json!("least_loaded"), &json!(config)));
    assert_eq!((&started["clients"], &started["admin"]), (&json!(url), &json!(admin)));
    assert_eq!((&started["workers"], &started["matching"]), (&json!(1), &json!("auto")));
    let refused = line("request refused");
    assert_eq!((&refused["request"], &refused["code"]), (&json!("refused-1"), &json!("model_not_found")));
    let answered = line("worker answered with an error");
    assert_eq!((&answered["request"], &answered["status"]), (&json!("error-1"), &json!(500)));
    assert_eq!(answered["worker"], busy.url);
    assert_eq!(line("warmroute stopped: every request had ended")["cause"], "signal");
}

#[test]
fn an_output_that_blocks_delays_neither_requests_nor_the_end() {
    let worker = Scripted::new(|mut asked| asked.answer("{}"));
    // A pipe that is never read is full after 64 KiB, about 150 lines.
    let flags = ["--log-level", "off", "--access-log", "stderr", "--worker-urls", &worker.url];
    let process = Process::serve(&flags, Stdio::piped());
    eventually("it is ready", || (get(process.admin(), "/readyz").status == 200).then_some(()));
    for _ in 0..400 {
        assert_eq!(post(process.url(), "/v1/chat/completions", &chat("m")).status, 200);
    }
    let written = "warmroute_access_log_lines_total{result=\"written\"} ";
    let page = get(process.admin(), "/metrics").text();
    let written = page.lines().find_map(|line| line.strip_prefix(written)).unwrap();
    assert!(written.parse::<u32>().unwrap() < 400, "the pipe was not full: {written}");
    process.signal("-TERM");
    assert!(process.wait().success());
}

/// A gateway with this log, many of whose requests are refused. It must serve, see its workers, and end.
fn serves_whatever_its_log_does(log: Stdio, requests: usize) {
    let worker = Scripted::new(|mut asked| asked.answer("{}"));
    let process = Process::serve(&["--worker-urls", &worker.url], log);
    eventually("it is ready", || (get(process.admin(), "/readyz").status == 200).then_some(()));
    let long = format!("/{}", "n".repeat(4_000));
    for _ in 0..requests {
        assert_eq!(get(process.url(), &long).status, 404);
    }
    assert_eq!(post(process.url(), "/v1/chat/completions", &chat("m")).status, 200);
    process.signal("-HUP");
    assert_eq!(get(process.admin(), "/readyz").status, 200);
    process.signal("-TERM");
    assert!(process.wait().success());
}

#[test]
fn a_log_that_cannot_be_written_changes_nothing() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    serves_whatever_its_log_does(full.into(), 30);
}

#[test]
fn a_log_that_is_not_read_changes_nothing() {
    // A pipe takes 64 KiB, which is less than 20 lines a second with this path.
    serves_whatever_its_log_does(Stdio::piped(), 100);
}

#[test]
fn errors_name_what_was_written() {
    use crate::harness::process::{run, run_with_env};
    let folder = TempFolder::new("named");
    let pipe = folder.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let keys = folder.file("keys");
    std::fs::write(&keys, "sk-1 tokens-per-minute=lots\n").unwrap();
    let none: [(&str, &str); 0] = [];
    for (flag, env, expected) in [
        (&["--api-keys-file", "/nope"][..], &none[..], "--api-keys-file: cannot read /nope"),
        (&[], &[("WARMROUTE_API_KEYS_FILE", "/nope")], "WARMROUTE_API_KEYS_FILE: cannot read /nope"),
        (&[], &[("WARMROUTE_CONFIG", "/nope")], "WARMROUTE_CONFIG: cannot read /nope"),
        (&["--config", "/nope"], &none, "--config: cannot read /nope"),
        (&["--admin-token-file", "/nope/x"], &none, "--admin-token-file: cannot read /nope/x"),
        (&["--access-log", &pipe], &none, "--access-log: cannot write the access log"),
        (&["--continue-streams", "maybe"], &none, "--continue-streams"),
        (&["--worker-kv-tokens", "many"], &none, "--worker-kv-tokens <TOKENS>': expected a whole number"),
        (&[], &[("WARMROUTE_QUEUE_SIZE", "1.5")], "WARMROUTE_QUEUE_SIZE"),
        (&["--api-keys-file", &keys], &none, "line 1: tokens-per-minute must be a whole number"),
    ] {
        let args = [&["serve", "http://127.0.0.1:1", "--port", "0", "--admin-port", "0"], flag].concat();
        let ran = if env.is_empty() { run(&args) } else { run_with_env(&args, env) };
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && error.contains(expected), "{flag:?} {env:?}: {error}");
    }
}

#[test]
fn output_that_is_not_read_is_no_error() {
    use std::process::Command;
    let program = env!("CARGO_BIN_EXE_warmroute");
    let ran = Command::new("sh").args(["-c", &format!("{program} check http://127.0.0.1:1 | true")]).output();
    let ran = ran.unwrap();
    assert!(ran.status.success() && !String::from_utf8_lossy(&ran.stderr).contains("panicked"), "{ran:?}");
}

#[test]
fn the_list_of_models_passes_on_what_engines_say() {
    // The script puts the name into a JSON string.
    let long = Scripted::with_models(Some(r#"m","created":9,"max_model_len":8192,"x":""#), |_| ());
    let short = Scripted::with_models(Some(r#"m","created":7,"max_model_len":4096,"x":""#), |_| ());
    let gateway = Gateway::over(&[&long.url, &short.url], &[]);
    let card = json!({
        "id": "m", "object": "model", "created": 7, "max_model_len": 4096, "owned_by": "warmroute", "root": "m",
    });
    assert_eq!(get(gateway.url(), "/v1/models").json(), json!({"object": "list", "data": [card]}));
    assert_eq!(get(gateway.url(), "/v1/models/m").json(), card);
}
