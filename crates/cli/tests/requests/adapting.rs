//! LoRA adapters on simulated engines that take a while to load one.

use std::collections::BTreeMap;

use crate::harness::client::{get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::temp_folder::TempFolder;

const ADAPTERS: [&str; 2] = ["sql", "law"];

/// Engines that hold one of two adapters at a time.
fn engines() -> [Process; 2] {
    let flags = ["--adapters", "sql,law", "--adapter-slots", "1", "--adapter-load-ms", "700"];
    [(); 2].map(|()| engine(&flags))
}

/// Asks for a short streamed answer. Returns the worker.
fn ask(gateway: &Gateway, model: &str) -> String {
    let body = format!(
        r#"{{"model":"{model}","max_tokens":2,"stream":true,"messages":[{{"role":"user","content":"Hello"}}]}}"#
    );
    let answer = post(gateway.url(), "/v1/chat/completions", &body);
    assert!(answer.status == 200 && answer.complete, "{}", answer.text());
    answer.header("x-warmroute-worker").unwrap().to_owned()
}

#[test]
fn requests_for_an_adapter_go_where_it_is_loaded() {
    let engines = engines();
    let urls = engines.each_ref().map(Process::url);
    let gateway = Gateway::over(&urls, &[]);
    let homes: BTreeMap<&str, String> = ADAPTERS.map(|name| (name, ask(&gateway, name))).into();
    assert_ne!(homes["sql"], homes["law"], "one on each engine");
    for turn in 0..5 {
        for name in ADAPTERS {
            assert_eq!(ask(&gateway, name), homes[name], "turn {turn}, {name}");
        }
    }
    // Another router learns from the engines what they hold.
    let other = Gateway::over(&urls, &[]);
    eventually("it reads the engines' adapters", || {
        let warm = ADAPTERS.iter().filter(|name| {
            let body = format!(r#"{{"model":"{name}","messages":[{{"role":"user","content":"Hello"}}]}}"#);
            let page = post(other.admin(), "/explain", &body).json();
            let candidates = page["candidates"].as_array().cloned().unwrap_or_default();
            candidates.iter().any(|one| one["worker"] == homes[**name].as_str() && one["adapter_ms"] == 0.0)
                && candidates.iter().any(|one| one["adapter_ms"].as_f64().is_some_and(|ms| ms > 0.0))
        });
        (warm.count() == ADAPTERS.len()).then_some(())
    });
}

#[test]
fn a_model_has_the_policy_of_its_table() {
    let engines = engines();
    let folder = TempFolder::new("model-rules");
    let file = folder.file("warmroute.toml");
    let text = "[models.\"sql\"]\npolicy = \"round_robin\"\nmax-concurrent-per-worker = 4\n";
    std::fs::write(&file, text).unwrap();
    let urls = engines.each_ref().map(Process::url);
    let gateway = Gateway::over(&urls, &["--config", &file]);
    let used: std::collections::BTreeSet<String> = (0..4).map(|_| ask(&gateway, "sql")).collect();
    assert_eq!(used.len(), 2, "they take turns");
    assert_eq!(gateway.metric("warmroute_decisions_total{policy=\"round_robin\",reason=\"turn\"}"), 4.0);
    let shown = get(gateway.admin(), "/config").text();
    assert!(shown.contains("round_robin"), "{shown}");
}
