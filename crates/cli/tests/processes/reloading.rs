//! Configuration changes while requests are in flight: applied as a whole or not at all, without a failed request.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::client::{Call, Response, chat, chat_stream, get, post};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::load::Load;
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

const APPLIED: &str = "warmroute_config_reloads_total{outcome=\"applied\"}";
const REFUSED: &str = "warmroute_config_reloads_total{outcome=\"refused\"}";

fn put(gateway: &Gateway, text: &str) -> Response {
    Call::send(gateway.admin(), "PUT", "/config", &["content-type: application/toml"], text.as_bytes())
        .finish()
}

fn config(gateway: &Gateway) -> Value {
    get(gateway.admin(), "/config").json()
}

fn served_by(gateway: &Gateway) -> (u16, Option<String>) {
    let response = post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
    (response.status, response.header("x-warmroute-policy").map(str::to_owned))
}

#[test]
fn a_file_is_reloaded_by_signal_and_on_change_and_a_bad_one_is_refused() {
    let folder = TempFolder::new("reload-file");
    let file = folder.file("config.toml");
    let (first, second) = (engine(&[]), engine(&[]));
    let write = |policy: &str, url: &str| {
        let text = format!("[routing]\npolicy = \"{policy}\"\n[[workers]]\nurl = \"{url}\"\n");
        std::fs::write(&file, text).unwrap();
    };
    write("random", first.url());
    let gateway = Gateway::start(&[], &["--config", &file]);
    gateway.wait_for_ready(1);
    assert_eq!(served_by(&gateway), (200, Some("random".to_owned())));

    write("round_robin", second.url());
    gateway.process.signal("-HUP");
    eventually("the other policy is in force", || {
        (config(&gateway)["routing"]["policy"] == "round_robin").then_some(())
    });
    eventually("the other worker serves", || {
        let workers = gateway.workers();
        (workers.len() == 1 && workers[0]["url"] == second.url() && workers[0]["state"] == "ready")
            .then_some(())
    });
    assert_eq!(served_by(&gateway), (200, Some("round_robin".to_owned())));

    write("least_loaded", second.url());
    eventually("a change is seen without a signal", || {
        (served_by(&gateway) == (200, Some("least_loaded".to_owned()))).then_some(())
    });

    for bad in ["[routing]\npolicy = \"best\"\n", "[health]\nload-interval-ms = 7\n", "[routing\n", ""] {
        let before = gateway.metric(REFUSED);
        std::fs::write(&file, bad).unwrap();
        gateway.process.signal("-HUP");
        eventually(&format!("{bad:?} is refused"), || (gateway.metric(REFUSED) > before).then_some(()));
        assert_eq!(served_by(&gateway), (200, Some("least_loaded".to_owned())), "the old settings stay");
    }
    assert!(gateway.metric(APPLIED) >= 2.0);
}

#[test]
fn a_sent_configuration_applies_as_a_whole_or_not_at_all() {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &["--policy", "random", "--worker-api-key", "k"]);
    let ranks = "[timeouts]\nfirst-byte-timeout-secs = 7\n[routing]\ndecision-headers = true\npolicy = \"round_robin\"\n";
    let answer = put(&gateway, ranks);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["changed"], json!(["routing.policy", "timeouts.first-byte-timeout-secs"]));
    assert_eq!(answer.json()["config"], config(&gateway));
    assert_eq!(served_by(&gateway), (200, Some("round_robin".to_owned())), "it wins over flags");

    let before = config(&gateway);
    for (bad, why) in [
        ("[routing]\npolicy = \"best\"", "unknown policy `best`"),
        ("[timeouts]\nidle-timeout-secs = 9\n[server]\nport = 1\nthreads = 7", "server.port, server.threads"),
        ("[health]\nload-interval-ms = 7", "health.load-interval-ms"),
        ("[cache]\nblock-hash = \"sha256\"", "cache.block-hash"),
        ("[security]\napi-keys-file = \"/nowhere\"", "cannot read /nowhere"),
        ("[rooting]\n", "did you mean `routing`?"),
        ("", "the configuration is empty"),
    ] {
        let answer = put(&gateway, bad);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && message.contains(why), "{bad}: {message}");
        assert_eq!(config(&gateway), before, "nothing of it is in force");
    }
    assert_eq!(gateway.metric(REFUSED), 7.0);

    // The output of `GET /config` can be sent back.
    let mut shown = before.clone();
    shown["admission"]["rate-limit-requests-per-minute"] = json!(2);
    let json = ["content-type: application/json"];
    let body = shown.to_string();
    let answer = Call::send(gateway.admin(), "PUT", "/config", &json, body.as_bytes()).finish();
    assert_eq!(
        answer.json()["changed"],
        json!(["admission.rate-limit-requests-per-minute"]),
        "{}",
        answer.text()
    );
    assert_eq!([0; 3].map(|_| served_by(&gateway).0), [200, 200, 429]);
}

/// `PUT /config` replaces the file, but leaving something out neither removes all workers nor is refused.
#[test]
fn a_partial_sent_configuration_keeps_fixed_options_and_workers() {
    let folder = TempFolder::new("reload-put");
    let file = folder.file("config.toml");
    let engine = engine(&[]);
    let worker = format!("[[workers]]\nurl = \"{}\"\n", engine.url());
    let fixed = "[server]\ndrain-timeout-secs = 7\n[health]\nload-interval-ms = 900\n[cache]\nmax-tree-size = 100000\n";
    std::fs::write(&file, format!("{fixed}{worker}")).unwrap();
    let gateway = Gateway::start(&[], &["--config", &file]);

    let policy = "[routing]\npolicy = \"random\"\n";
    let answer = put(&gateway, policy);
    assert!(answer.status == 400 && answer.text().contains("workers = []"), "{}", answer.text());
    let answer = put(&gateway, &format!("{policy}{worker}"));
    assert_eq!(answer.json()["changed"], json!(["routing.policy"]), "{}", answer.text());
    assert!(answer.json()["replaces"].as_str().unwrap().contains("whole configuration file"));
    assert_eq!(served_by(&gateway), (200, Some("random".to_owned())));
    let answer = put(&gateway, &format!("workers = []\n{policy}"));
    assert_eq!(answer.json()["changed"], json!(["workers"]), "{}", answer.text());
    eventually("they are gone", || gateway.workers().is_empty().then_some(()));
}

/// `GET /config` shows no secrets, so a configuration sent back lacks them: that must not switch off any check.
#[test]
fn a_configuration_sent_without_secrets_keeps_them() {
    let folder = TempFolder::new("reload-secrets");
    let (file, keys) = (folder.file("config.toml"), folder.file("keys"));
    std::fs::write(&keys, "sk-one\n").unwrap();
    std::fs::write(&file, format!("[security]\nadmin-token = \"token\"\napi-keys-file = {keys:?}\n"))
        .unwrap();
    let gateway = Gateway::start(&[], &["--config", &file]);
    let admin = |method: &str, body: &[u8]| {
        Call::send(gateway.admin(), method, "/config", &["authorization: Bearer token"], body).finish()
    };
    let mut shown = admin("GET", b"").json();
    shown["security"].as_object_mut().unwrap().remove("api-keys-file");
    let put = Call::send(
        gateway.admin(),
        "PUT",
        "/config",
        &["authorization: Bearer token", "content-type: application/json"],
        shown.to_string().as_bytes(),
    );
    assert_eq!(put.finish().status, 200);
    assert_eq!(
        admin("PUT", b"[routing]\npolicy = \"random\"\n").json()["changed"],
        json!(["routing.policy"])
    );
    assert_eq!(get(gateway.admin(), "/config").status, 401, "the admin side still asks for its token");
    assert_eq!(get(gateway.url(), "/v1/models").status, 401, "and the gateway for keys");
}

/// 200 requests are in flight, half of them streams, while every changeable option changes repeatedly.
#[test]
fn a_reload_drops_no_request_in_flight() {
    let gate = Gate::default();
    let engines = [0; 3].map(|_| {
        let gate = gate.clone();
        Scripted::new(move |mut asked| {
            let streams = String::from_utf8_lossy(&asked.body).contains("\"stream\":true");
            if streams {
                asked.begin_events();
                asked.chunk("data: {\"n\":1}\n\n");
            }
            gate.pass();
            if streams {
                asked.chunk("data: [DONE]\n\n");
                asked.end_chunks();
            } else {
                asked.answer("{}");
            }
        })
    });
    let gateway = Gateway::start(&[], &[]);
    let urls = engines.each_ref().map(|engine| engine.url.as_str());
    let fleet =
        |urls: &[&str]| urls.iter().map(|url| format!("[[workers]]\nurl = \"{url}\"\n")).collect::<String>();
    assert_eq!(put(&gateway, &fleet(&urls)).status, 200);
    gateway.wait_for_ready(3);
    let calls: Vec<Call> = (0..200)
        .map(|n| {
            let body = if n % 2 == 0 { chat("m") } else { chat_stream("m", 2) };
            Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], body.as_bytes())
        })
        .collect();
    eventually("all are under way", || {
        (engines.iter().map(Scripted::asked).sum::<usize>() == 200).then_some(())
    });
    let policies =
        ["random", "round_robin", "cache_aware", "least_loaded", "prefix_affinity", "expected_ttft"];
    for (turn, policy) in policies.into_iter().cycle().take(24).enumerate() {
        // Workers leave and return; limits and timeouts are set and lifted.
        let here = [&urls[..], &urls[..1], &urls[1..]][turn % 3];
        let text = format!(
            "[routing]\npolicy = \"{policy}\"\nshadow = [{}]\n[admission]\nmax-concurrent-requests = {}\n\
             max-concurrent-per-worker = {}\n[timeouts]\nfirst-byte-timeout-secs = {}\n{}",
            if policy == "random" { "\"round_robin\"" } else { "\"random\"" },
            [0, 5][turn % 2],
            [0, 2][turn % 2],
            1 + turn % 2,
            fleet(here)
        );
        let answer = put(&gateway, &text);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    gate.open();
    for call in calls {
        let response = call.finish();
        assert!(response.status == 200 && response.complete, "{response:?}");
        assert!(
            response.text() == "{}" || response.text().ends_with("data: [DONE]\n\n"),
            "{}",
            response.text()
        );
    }
    assert_eq!(put(&gateway, &fleet(&urls)).status, 200);
    gateway.wait_for_ready(3);
    gateway.wait_for_idle();
}

/// The same with a steady flow of requests.
#[test]
fn requests_succeed_while_settings_change() {
    let engines = [0; 3].map(|_| engine(&[]));
    let urls = engines.each_ref().map(|engine| engine.url());
    let gateway = Gateway::over(&urls, &[]);
    let over = AtomicBool::new(false);
    let served: usize = std::thread::scope(|scope| {
        let ask = || {
            let mut served = 0;
            while !over.load(Ordering::SeqCst) {
                let response = post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
                assert_eq!(response.status, 200, "{}", response.text());
                served += 1;
            }
            served
        };
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        for turn in 0..40 {
            let policy = ["random", "cache_aware", "expected_ttft"][turn % 3];
            let urls = ["", "discovery.worker-urls"][turn % 2];
            let fewer = format!("[discovery]\nworker-urls = [\"{}\"]\n", engines[0].url());
            let text = format!(
                "{}[routing]\npolicy = \"{policy}\"\n[admission]\nmax-concurrent-requests = {}\n",
                if urls.is_empty() { "" } else { fewer.as_str() },
                [0, 3, 64][turn % 3]
            );
            let answer = put(&gateway, &text);
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        over.store(true, Ordering::SeqCst);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    println!("{served} requests were served while settings changed 40 times");
    assert!(served >= 8);
}

#[test]
fn a_raised_limit_admits_waiting_requests() {
    let gate = Gate::default();
    let held = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        held.pass();
        asked.answer("{}");
    });
    let gateway = Gateway::over(&[&engine.url], &["--max-concurrent-requests", "1"]);
    let call = || Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], chat("m").as_bytes());
    let calls: Vec<Call> = (0..10).map(|_| call()).collect();
    eventually("nine wait", || (gateway.metric_sum("warmroute_queue_waiting") == 9.0).then_some(()));
    assert_eq!(put(&gateway, "[admission]\nmax-concurrent-requests = 0\n").status, 200);
    engine.wait_for_asked(10);
    gate.open();
    assert!(calls.into_iter().all(|call| call.finish().status == 200));
}

/// New workers must be probed first; until then the old ones are needed.
#[test]
fn all_workers_are_replaced_under_load_and_no_request_fails() {
    let folder = TempFolder::new("reload-all");
    let file = folder.file("config.toml");
    let engines = [engine(&[]), engine(&[]), engine(&[]), engine(&[])];
    let pairs = [[engines[0].url(), engines[1].url()], [engines[2].url(), engines[3].url()]];
    let write = |pair: usize| {
        let entries = pairs[pair].map(|url| format!("[[workers]]\nurl = \"{url}\"\n"));
        std::fs::write(&file, entries.concat()).unwrap();
    };
    write(0);
    let gateway = Gateway::start(&[], &["--config", &file]);
    gateway.wait_for_ready(2);
    let load = Load::start(gateway.url(), 8);
    for pair in [1, 0, 1, 0] {
        load.wait_for_more(50);
        write(pair);
        gateway.process.signal("-HUP");
        eventually("the others have taken over", || {
            let workers = gateway.workers();
            let has = |url: &str| workers.iter().any(|worker| worker["url"] == url);
            (workers.len() == 2 && pairs[pair].into_iter().all(has)).then_some(())
        });
    }
    let (asked, failed) = load.stop();
    println!("{asked} requests, all workers replaced 4 times, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {asked} failed: {failed:#?}", failed.len());
}

#[test]
fn a_changed_key_file_is_logged_without_its_keys() {
    let folder = TempFolder::new("reload-keys");
    let (keys, log) = (folder.file("keys"), folder.file("log"));
    std::fs::write(&keys, "sk-one\n").unwrap();
    let _gateway = Process::serve(&["--api-keys-file", &keys], std::fs::File::create(&log).unwrap().into());
    std::fs::write(&keys, "sk-two\n").unwrap();
    let log = eventually("it is logged what changed", || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("what is in security.api-keys-file").then_some(log)
    });
    assert!(!log.contains("sk-one") && !log.contains("sk-two"), "{log}");
}
