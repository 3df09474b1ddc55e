//! What one tenant can learn about another from caches.

use serde_json::{Value, json};

use super::fields::keeper;
use super::{ask_as, key_file};
use crate::harness::client::Call;
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
        // Engines read the salt at each of these paths, or ignore it there.
        for path in ["/v1/completions", "/v1/responses", "/v1/messages"] {
            let headers = ["authorization: Bearer sk-a", "content-type: application/json"];
            let asked = json!({"model": "m", "max_tokens": 1, "prompt": "x", "input": "x",
                "messages": [{"role": "user", "content": "x"}]});
            let call = Call::send(gateway.url(), "POST", path, &headers, asked.to_string().as_bytes());
            assert_eq!(call.finish().status, 200, "{path}");
            let body: Value = bodies.lock().unwrap().pop().unwrap();
            assert_eq!(body["cache_salt"], json!(a), "{path}");
        }
    }
}

#[test]
fn a_salt_is_secret_the_same_on_routers_that_share_and_the_only_one_at_every_endpoint() {
    let (folder, keys) = key_file("keyed-salts", KEYS);
    let [one, other] = ["one", "other"].map(|name| {
        let file = folder.file(name);
        std::fs::write(&file, format!("a secret that only these routers know: {name}\n")).unwrap();
        file
    });
    let (engine, bodies) = keeper();
    let start = |secret: &str| {
        let mesh = ["--share", "mesh", "--mesh-listen", "127.0.0.1:0", "--share-secret-file", secret];
        let flags = [&["--api-keys-file", &keys, "--cache-salt", "key"][..], &mesh].concat();
        Gateway::over(&[&engine.url], &flags)
    };
    let last = || -> Value { bodies.lock().unwrap().pop().unwrap() };
    let routers = [start(&one), start(&one), start(&other)];
    let salts = routers.each_ref().map(|router| {
        assert_eq!(ask_as(router.url(), "sk-c", &chat(None)).status, 200);
        last()["cache_salt"].as_str().unwrap().to_owned()
    });
    assert_eq!(salts[0], salts[1], "routers with one secret use one salt");
    assert_ne!(salts[0], salts[2], "a name alone does not tell the salt");
    for path in ["/v1/messages", "/v1/embeddings", "/tokenize", "/v1/anything"] {
        let headers = ["authorization: Bearer sk-a", "content-type: application/json"];
        for claimed in [json!(salts[0]), json!(["a list"])] {
            let body =
                json!({"model": "m", "input": "x", "messages": [], "max_tokens": 1, "cache_salt": claimed});
            let call = Call::send(routers[0].url(), "POST", path, &headers, body.to_string().as_bytes());
            assert_eq!(call.finish().status, 200, "{path}");
            let salt = last()["cache_salt"].clone();
            assert!(salt.is_string() && salt != claimed, "{path}: {salt}");
        }
    }
}

#[test]
fn hidden_numbers_of_cached_tokens_are_in_no_part_of_a_response() {
    let engine = Scripted::new(|mut asked| {
        let usage = r#""usage":{"prompt_tokens":640,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":608,"cached_tokens_per_turn":[608]}},"num_cached_tokens":608,"timings":{"cache_n":608,"prompt_n":32}"#;
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
        assert!(hidden.text().contains("\"prompt_n\":640"), "{}", hidden.text());
        for header in ["cached-tokens", "expected-ttft-ms", "reason"] {
            assert_eq!(hidden.header(&format!("x-warmroute-{header}")), None);
        }
        assert!(ask_as(gateway.url(), "sk-c", &body).text().contains("608"), "others see it");
    }
    // Requests without a JSON body, as those that read a stored response, are no way around it.
    let get = ["authorization: Bearer sk-a", "accept-encoding: gzip"];
    let read = Call::send(gateway.url(), "GET", "/v1/stored", &get, b"").finish();
    assert!(!read.text().contains("608") && read.text().contains("640"), "{}", read.text());
}
