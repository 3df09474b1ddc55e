//! What one tenant can learn about another from caches.

use serde_json::{Value, json};

use super::fields::keeper;
use super::{ask_as, key_file};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

const KEYS: &str = "sk-a name=a cache-group=g cached-tokens=hidden\nsk-b name=b cache-group=g\nsk-c name=c\n";

fn chat(salt: Option<&str>) -> String {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hello"}]});
    salt.into_iter().for_each(|salt| body["cache_salt"] = json!(salt));
    body.to_string()
}

#[test]
fn each_tenant_or_group_has_a_cache_salt_of_its_own() {
    for (mode, shares) in [("key", false), ("group", true)] {
        let (_folder, keys) = key_file("salts", KEYS);
        let (engine, bodies) = keeper();
        let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys, "--cache-salt", mode]);
        let salt = |key: &str, sent: Option<&str>| {
            assert_eq!(ask_as(gateway.url(), key, &chat(sent)).status, 200);
            let body: Value = bodies.lock().unwrap().pop().unwrap();
            body["cache_salt"].as_str().unwrap().to_owned()
        };
        let (a, b, c) = (salt("sk-a", None), salt("sk-b", None), salt("sk-c", None));
        assert_eq!(a, salt("sk-a", None), "a tenant shares with itself");
        assert!((a == b) == shares && a != c && b != c, "{mode}: {a} {b} {c}");
        let claimed = salt("sk-c", Some(&a));
        assert!(claimed != a && claimed != c, "another tenant's salt cannot be claimed");
        assert_ne!(claimed, salt("sk-c", Some("own")), "the client's salt still separates");
    }
}

#[test]
fn hidden_numbers_of_cached_tokens_are_in_no_part_of_a_response() {
    let engine = Scripted::new(|mut asked| {
        let usage = r#""usage":{"prompt_tokens":640,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":608}}"#;
        if String::from_utf8_lossy(&asked.body).contains(r#""stream":true"#) {
            asked.begin_events();
            asked.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n");
            let (start, end) = usage.split_at(70);
            asked.chunk(&format!("data: {{\"choices\":[],{start}"));
            asked.chunk(&format!("{end}}}\n\ndata: [DONE]\n\n"));
            asked.end_chunks();
        } else {
            asked.answer(&format!("{{\"choices\":[],{usage},\"rest\":\"{}\"}}", "x".repeat(10_000)));
        }
    });
    let (_folder, keys) = key_file("hidden", KEYS);
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    let stream = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
    for body in [chat(None), stream.to_owned()] {
        let hidden = ask_as(gateway.url(), "sk-a", &body);
        assert!(hidden.status == 200 && hidden.complete);
        assert!(
            !hidden.text().contains("608") && hidden.text().contains("\"cached_tokens\":0"),
            "{}",
            hidden.text()
        );
        assert!(hidden.text().contains("640"), "the rest is unchanged");
        for header in ["cached-tokens", "expected-ttft-ms", "reason"] {
            assert_eq!(hidden.header(&format!("x-warmroute-{header}")), None);
        }
        assert!(ask_as(gateway.url(), "sk-c", &body).text().contains("608"), "others see it");
    }
}
