//! Authentication, and what workers, logs and clients can see.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use crate::harness::client::{Call, Response, chat, chat_stream, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;
use serde_json::json;

/// An engine that keeps the heads of its requests.
fn keeper() -> (Scripted, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let engine = Scripted::new(move |mut asked| {
        kept.lock().unwrap().push(asked.head.to_ascii_lowercase());
        asked.answer("{}");
    });
    (engine, heads)
}

fn ask(url: &str, headers: &[&str]) -> Response {
    Call::send(url, "POST", "/v1/chat/completions", headers, chat("m").as_bytes()).finish()
}

#[test]
fn tokens_are_counted_for_each_key() {
    let folder = TempFolder::new("key-tokens");
    let keys = folder.file("keys");
    std::fs::write(&keys, "sk-alpha name=alpha\nsk-beta name=beta\n").unwrap();
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &["--api-keys-file", &keys]);
    let key = ["authorization: Bearer sk-alpha", "content-type: application/json"];
    let body = chat_stream("llama-3.1-8b", 3);
    for _ in 0..2 {
        let answer =
            Call::send(gateway.url(), "POST", "/v1/chat/completions", &key, body.as_bytes()).finish();
        assert_eq!(answer.status, 200);
    }
    let tokens = |kind: &str, tenant: &str| {
        gateway.metric(&format!("warmroute_tenant_{kind}_tokens_total{{tenant=\"{tenant}\"}}"))
    };
    eventually("both answers are counted", || (tokens("output", "alpha") == 6.0).then_some(()));
    assert!(tokens("prompt", "alpha") > 0.0);
    assert!(tokens("cached", "alpha") <= tokens("prompt", "alpha"));
    assert_eq!(tokens("prompt", "beta"), 0.0);
}

#[test]
fn clients_need_a_key_and_workers_never_see_it() {
    let folder = TempFolder::new("keys");
    let keys = folder.file("keys");
    std::fs::write(&keys, "sk-alpha name=alpha\nsk-beta name=beta\n").unwrap();
    let (engine, heads) = keeper();
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    for wrong in ["x-none: 1", "authorization: Bearer sk-alph", "authorization: sk-alpha", "x-api-key: sk"] {
        let refused = ask(gateway.url(), &[wrong]);
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{wrong}");
        let error = refused.json()["error"].clone();
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("invalid_api_key"), &json!("invalid_request_error"))
        );
    }
    let anthropic = post(gateway.url(), "/v1/messages", "{}");
    assert_eq!(
        (anthropic.status, &anthropic.json()["error"]["type"]),
        (401, &json!("authentication_error")),
        "in the shape that its SDK knows"
    );
    let long = chat("m").replace("Hello", &"long ".repeat(1_000_000));
    let long = Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], long.as_bytes()).finish();
    assert_eq!(long.status, 401, "not a reset connection");
    for path in ["/v1/models", "/v1/files", "/nowhere"] {
        assert_eq!(get(gateway.url(), path).status, 401, "{path}");
    }
    assert_eq!(get(gateway.url(), "/health").status, 200, "load balancers have no key");
    assert_eq!(engine.asked(), 0);

    assert_eq!(ask(gateway.url(), &["authorization: Bearer sk-alpha"]).status, 200);
    assert_eq!(ask(gateway.url(), &["x-api-key: sk-beta"]).status, 200);
    for head in heads.lock().unwrap().iter() {
        assert!(!head.contains("authorization") && !head.contains("api-key"), "{head}");
    }
    assert_eq!(gateway.metric("warmroute_tenant_requests_total{tenant=\"alpha\"}"), 1.0);
    assert_eq!(gateway.metric("warmroute_tenant_requests_total{tenant=\"beta\"}"), 1.0);

    std::fs::write(&keys, "sk-gamma name=alpha\n").unwrap();
    eventually("the new key lets in", || {
        (ask(gateway.url(), &["authorization: Bearer sk-gamma"]).status == 200).then_some(())
    });
    assert_eq!(ask(gateway.url(), &["authorization: Bearer sk-alpha"]).status, 401);
    assert!(
        gateway.metric("warmroute_tenant_requests_total{tenant=\"alpha\"}") >= 2.0,
        "one tenant, two keys"
    );
    std::fs::write(&keys, "sk-delta and something else\n").unwrap();
    let refused = "warmroute_config_reloads_total{outcome=\"refused\"}";
    eventually("the bad file is refused", || (gateway.metric(refused) == 1.0).then_some(()));
    assert_eq!(ask(gateway.url(), &["authorization: Bearer sk-gamma"]).status, 200, "the old keys stay");
}

#[test]
fn a_key_has_limits_of_its_own() {
    let folder = TempFolder::new("key-limits");
    let keys = folder.file("keys");
    std::fs::write(
        &keys,
        "sk-few name=few requests-per-minute=2\nsk-two name=few requests-per-minute=2\nsk-many\n",
    )
    .unwrap();
    let (engine, _) = keeper();
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    let status = |key: &str| ask(gateway.url(), &[&format!("authorization: Bearer {key}")]).status;
    assert_eq!(
        [status("sk-few"), status("sk-two"), status("sk-few"), status("sk-two")],
        [200, 200, 429, 429]
    );
    assert_eq!([0; 5].map(|_| status("sk-many")), [200; 5]);
}

#[test]
fn requests_and_probes_send_the_workers_key() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let engine = Scripted::guarded("Bearer worker-key", move |mut asked| {
        kept.lock().unwrap().push(asked.header("authorization").unwrap_or("none").to_owned());
        asked.answer("{}");
    });
    // The worker is ready only because the probe sends the key.
    let gateway = Gateway::over(&[&engine.url], &["--worker-api-key", "worker-key"]);
    assert_eq!(ask(gateway.url(), &["authorization: Bearer of-the-client"]).status, 200);
    assert_eq!(*heads.lock().unwrap(), ["Bearer worker-key"]);
}

#[test]
fn client_keys_are_forwarded_if_unused_here_or_configured() {
    for (flags, passed) in [
        (&[][..], true),
        (&["--client-credentials", "drop"], false),
        (&["--client-credentials", "pass"], true),
    ] {
        let (engine, heads) = keeper();
        let gateway = Gateway::over(&[&engine.url], flags);
        assert_eq!(ask(gateway.url(), &["authorization: Bearer of-the-client"]).status, 200);
        assert_eq!(heads.lock().unwrap()[0].contains("bearer of-the-client"), passed, "{flags:?}");
    }
}

#[test]
fn the_admin_listener_requires_its_token_except_for_health() {
    let folder = TempFolder::new("admin-token");
    let file = folder.file("token");
    std::fs::write(&file, "the-token\n").unwrap();
    let gateway = Gateway::start(&[], &["--admin-token-file", &file]);
    let status = |method: &str, path: &str, header: &str| {
        Call::send(gateway.admin(), method, path, &[header], b"{}").finish().status
    };
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/config"),
        ("GET", "/workers"),
        ("POST", "/workers"),
        ("PUT", "/config"),
    ] {
        assert_eq!(status(method, path, "x-none: 1"), 401, "{method} {path}");
        assert_eq!(status(method, path, "authorization: Bearer other"), 401, "{method} {path}");
        assert_ne!(status(method, path, "authorization: Bearer the-token"), 401, "{method} {path}");
    }
    assert_eq!(get(gateway.admin(), "/healthz").status, 200);
    assert_eq!(get(gateway.admin(), "/readyz").status, 503);
    let explain = |more: &[&str]| run(&[&["explain", "--admin", gateway.admin()], more].concat());
    assert!(!explain(&[]).status.success());
    assert!(explain(&["--admin-token", "the-token"]).status.success());

    std::fs::write(&file, "another-token").unwrap();
    eventually("the new token is the token", || {
        (status("GET", "/metrics", "authorization: Bearer another-token") == 200).then_some(())
    });
}

#[test]
fn remote_changes_require_a_token() {
    let gateway = Gateway::start(&[], &["--admin-host", "0.0.0.0"]);
    let admin = gateway.admin().replace("0.0.0.0", "127.0.0.1");
    assert_eq!(get(&admin, "/metrics").status, 200);
    assert_eq!(post(&admin, "/workers", r#"{"url":"http://127.0.0.1:1"}"#).status, 403);
    let gateway = Gateway::start(&[], &[]);
    let by_a_page = ["origin: http://somewhere"];
    let body = br#"{"url":"http://127.0.0.1:1"}"#;
    assert_eq!(Call::send(gateway.admin(), "POST", "/workers", &by_a_page, body).finish().status, 403);
}

/// Uses every secret, valid and invalid, at the most verbose log level.
#[test]
fn secrets_and_prompts_are_in_no_log_page_or_answer() {
    const SECRETS: [&str; 7] =
        ["hush-key-1", "hush-key-2", "hush-admin", "hush-events", "hush-worker", "hush-wrong", "hush-prompt"];
    let folder = TempFolder::new("secrets");
    let (keys, config, log) = (folder.file("keys"), folder.file("config.toml"), folder.file("log"));
    std::fs::write(&keys, "hush-key-1 name=one\n").unwrap();
    let text = "[security]\nadmin-token = \"hush-admin\"\nworker-api-key = \"hush-worker\"\n[events]\nevents-token = \"hush-events\"\n";
    std::fs::write(&config, text).unwrap();
    let (engine, _) = keeper();
    let flags = [
        "--log-level",
        "trace",
        "--access-log",
        "stderr",
        "--worker-urls",
        &engine.url,
        "--api-keys-file",
        &keys,
        "--config",
        &config,
    ];
    let process = Process::serve(&flags, Stdio::from(std::fs::File::create(&log).unwrap()));
    let admin = ["authorization: Bearer hush-admin"];
    let page = |path: &str| Call::send(process.admin(), "GET", path, &admin, b"").finish();
    eventually("it is ready", || (page("/readyz").status == 200).then_some(()));
    let prompt = chat("m").replace("Hello", "hush-prompt");
    let mut said = String::new();
    let mut hear = |response: Response| said += &format!("{:?}\n{}\n", response.headers, response.text());
    for header in
        ["authorization: Bearer hush-key-1", "authorization: Bearer hush-wrong", "x-api-key: hush-wrong"]
    {
        for body in [prompt.as_str(), "{\"hush-prompt\":", "[\"hush-prompt\"]"] {
            hear(
                Call::send(process.url(), "POST", "/v1/chat/completions", &[header], body.as_bytes())
                    .finish(),
            );
        }
    }
    let wrong = ["authorization: Bearer hush-wrong"];
    hear(Call::send(process.admin(), "POST", "/events?worker=x", &wrong, b"").finish());
    hear(Call::send(process.admin(), "GET", "/config", &wrong, b"").finish());
    for bad in [
        "[security]\nadmin-token = \"hush-admin",
        "[security]\nadmin-token = \"hush-admin\"\nworker-api-key = \"hush-wrong\\n\"",
        "[security]\nadmin-token = [\"hush-admin\"]",
    ] {
        let put = Call::send(process.admin(), "PUT", "/config", &admin, bad.as_bytes()).finish();
        assert_eq!(put.status, 400, "{}", put.text());
        hear(put);
    }
    std::fs::write(&keys, "hush-key-2 hush-key-1\n").unwrap();
    let refused =
        || page("/metrics").text().contains("warmroute_config_reloads_total{outcome=\"refused\"} 4");
    eventually("the bad keys are refused", || refused().then_some(()));
    ["/config", "/metrics", "/workers", "/explain"].into_iter().for_each(|path| hear(page(path)));
    process.signal("-TERM");
    process.wait();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("api-keys-file") && log.contains("line 1"), "it is told what is wrong: {log}");
    assert!(log.contains("error=invalid_api_key key=- "), "the access log is in it: {log}");
    for secret in SECRETS {
        assert!(
            !log.contains(secret),
            "{secret} is in the log: {:?}",
            log.lines().find(|line| line.contains(secret))
        );
        assert!(
            !said.contains(secret),
            "{secret} was said: {:?}",
            said.lines().find(|line| line.contains(secret))
        );
    }
}
