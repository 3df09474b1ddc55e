//! `/generate`, SGLang's own API, which RL trainers call.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::client::{Call, post};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

/// An engine that answers as SGLang does with `return_logprob`: the counts stand around all log probabilities. It
/// has cached what it got before.
fn sglang() -> (Scripted, Arc<Mutex<Vec<Value>>>) {
    let seen = Arc::new(Mutex::new(Vec::<Value>::new()));
    let kept = Arc::clone(&seen);
    let engine = Scripted::new(move |mut asked| {
        assert!(asked.head.starts_with("POST /generate "), "{}", asked.head);
        let body: Value = serde_json::from_slice(&asked.body).unwrap();
        let prompt = body["input_ids"].as_array().map_or(200, Vec::len);
        let cached = if kept.lock().unwrap().contains(&body) { prompt - 1 } else { 0 };
        let answer = |tokens: usize| {
            let probabilities = vec![json!([-0.25, 11, null]); 400];
            let text = "so ".repeat(tokens);
            // As SGLang orders them.
            format!(
                r#"{{"text":"{text}","output_ids":[11],"meta_info":{{"id":"1","finish_reason":null,"prompt_tokens":{prompt},"output_token_logprobs":{},"completion_tokens":{tokens},"cached_tokens":{cached},"e2e_latency":0.1}}}}"#,
                json!(probabilities)
            )
        };
        if body["stream"] == true {
            asked.begin_events();
            for tokens in 1..=3 {
                asked.chunk(&format!("data: {}\n\n", answer(tokens)));
            }
            asked.chunk("data: [DONE]\n\n");
            asked.end_chunks();
        } else {
            asked.answer(&answer(3));
        }
        kept.lock().unwrap().push(body);
    });
    (engine, seen)
}

#[test]
fn prompts_of_generate_go_where_they_are_cached_and_their_counts_are_read() {
    let (first, first_seen) = sglang();
    let (second, second_seen) = sglang();
    let gateway = Gateway::over(&[&first.url, &second.url], &[]);
    let ids: Vec<u32> = (0..2_000).collect();
    let requests = [
        json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 3}, "return_logprob": true}),
        json!({"text": "A question that shares its start. ".repeat(40), "stream": true}),
    ];
    for request in &requests {
        let ask = || {
            let answer = post(gateway.url(), "/generate", &request.to_string());
            assert_eq!(answer.status, 200, "{}", answer.text());
            gateway.wait_for_idle();
            let predicted = answer.header("x-warmroute-cached-tokens").unwrap().parse::<u32>().unwrap();
            (answer.header("x-warmroute-worker").unwrap().to_owned(), predicted)
        };
        let (worker, predicted) = ask();
        assert_eq!(predicted, 0);
        for _ in 0..3 {
            let (again, predicted) = ask();
            assert!(again == worker && predicted > 100, "{again} {worker} {predicted}");
        }
    }
    let seen = [&*first_seen.lock().unwrap(), &*second_seen.lock().unwrap()].map(Clone::clone).concat();
    assert!(seen.iter().all(|body| requests.contains(body)), "bodies are unchanged");
    assert_eq!(gateway.metric_sum("warmroute_prompt_tokens_total"), f64::from(4 * 2_000 + 4 * 200));
    assert_eq!(gateway.metric_sum("warmroute_cached_tokens_total"), f64::from(3 * 1_999 + 3 * 199));
    first.check();
    second.check();
}

/// `--policy consistent_hashing` of slime and miles.
#[test]
fn a_routing_key_keeps_a_session_on_its_worker() {
    let (first, _) = sglang();
    let (second, _) = sglang();
    let gateway = Gateway::over(&[&first.url, &second.url], &["--policy", "consistent_hashing"]);
    let worker = |key: &str, prompt: u32| {
        let body = json!({"input_ids": [prompt]}).to_string();
        let header = format!("X-SMG-Routing-Key: {key}");
        let answer = Call::send(gateway.url(), "POST", "/generate", &[&header], body.as_bytes()).finish();
        answer.header("x-warmroute-worker").unwrap().to_owned()
    };
    for session in ["a", "b", "c", "d"] {
        let home = worker(session, 0);
        assert!((1..4).all(|turn| worker(session, turn) == home), "{session}");
    }
}

#[test]
fn what_generate_says_about_the_cache_can_be_hidden() {
    let (engine, _) = sglang();
    let gateway = Gateway::over(&[&engine.url], &["--cached-tokens", "hidden"]);
    let body = json!({"input_ids": [1, 2, 3, 4]}).to_string();
    for _ in 0..2 {
        let answer = post(gateway.url(), "/generate", &body).json();
        assert_eq!(
            (&answer["meta_info"]["cached_tokens"], &answer["meta_info"]["prompt_tokens"]),
            (&json!(0), &json!(4))
        );
    }
}
