//! Answers of every endpoint on the wire.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod client;

use client::{ask, fast, get, post, start};
use serde_json::{Value, json};
use warmroute_replica::{Config, UsageDetails};

fn chat(more: Value) -> Value {
    with(
        json!({"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}),
        more,
    )
}

fn with(mut object: Value, more: Value) -> Value {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

#[tokio::test]
async fn a_chat_completion_has_vllms_shape() {
    let replica = start(fast()).await;
    let answer = post(&replica, "/v1/chat/completions", &chat(json!({}))).await;
    let body = answer.json();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("server"), Some("warmroute-simulated-engine"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let id = answer.header("x-request-id").unwrap();
    assert_eq!(body["id"], format!("chatcmpl-{id}"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["system_fingerprint"], "warmroute-simulated-engine");
    assert_eq!(body["choices"].as_array().unwrap().len(), 1);
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    assert_eq!(body["choices"][0]["message"]["content"].as_str().unwrap().len(), 20);
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    // bos, header, "hell", "o", end of turn, header
    assert_eq!(body["usage"], json!({"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 11}));
}

#[tokio::test]
async fn a_chat_stream_says_role_tokens_finish_usage_done() {
    let replica = start(fast()).await;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = post(&replica, "/v1/chat/completions", &body).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = answer.events();
    assert_eq!(events.len(), 1 + 5 + 1);
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(
        events
            .iter()
            .all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"])
    );
    for event in &events[1..5] {
        assert_eq!(event["choices"][0]["delta"]["content"].as_str().unwrap().len(), 4);
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
        assert!(event.get("usage").is_none());
    }
    assert_eq!(events[5]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[6]["choices"], json!([]));
    assert_eq!(events[6]["usage"]["completion_tokens"], 5);
    assert!(answer.body.ends_with("\n\ndata: [DONE]\n\n"));
}

#[tokio::test]
async fn a_stream_without_include_usage_has_no_usage() {
    let replica = start(fast()).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let answer = post(&replica, path, &chat(json!({"stream": true, "prompt": "hello"}))).await;
        assert!(!answer.body.contains("usage"), "{}", answer.body);
        assert!(answer.body.ends_with("data: [DONE]\n\n"));
    }
}

#[tokio::test]
async fn the_streamed_text_is_the_whole_text() {
    let replica = start(fast()).await;
    let whole = post(&replica, "/v1/chat/completions", &chat(json!({}))).await.json();
    let stream = post(&replica, "/v1/chat/completions", &chat(json!({"stream": true}))).await;
    let pieces = stream.events();
    let text: String =
        pieces.iter().map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[tokio::test]
async fn an_answer_without_a_limit_ends_by_itself() {
    let replica = start(Config { answer_tokens_default: 7, ..fast() }).await;
    let mut body = chat(json!({}));
    body.as_object_mut().unwrap().remove("max_tokens");
    let answer = post(&replica, "/v1/chat/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 7);
    body["ignore_eos"] = json!(true);
    let answer = post(&replica, "/v1/chat/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn stop_strings_end_the_answer() {
    let replica = start(fast()).await;
    for stop in [json!(". "), json!(["never said", ". "])] {
        let body = chat(json!({"max_tokens": 100, "stop": stop}));
        let answer = post(&replica, "/v1/chat/completions", &body).await.json();
        let choice = &answer["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(". ")));
        assert!(!choice["message"]["content"].as_str().unwrap().contains(". "));
    }
}

#[tokio::test]
async fn several_choices_share_a_prompt_and_say_different_things() {
    let replica = start(fast()).await;
    let answer = post(&replica, "/v1/chat/completions", &chat(json!({"n": 3}))).await.json();
    let texts: Vec<_> = (0..3).map(|i| answer["choices"][i]["message"]["content"].clone()).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2], "{texts:?}");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 6, "completion_tokens": 15, "total_tokens": 21}));
    let stream =
        post(&replica, "/v1/chat/completions", &chat(json!({"n": 3, "stream": true}))).await.events();
    for index in 0..3 {
        let of_this =
            stream.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        assert_eq!(of_this.count(), 1 + 5);
    }
}

#[tokio::test]
async fn completions_take_text_texts_and_token_ids() {
    let replica = start(fast()).await;
    for (prompt, choices, prompt_tokens) in [
        (json!("twelve bytes"), 1, 4),
        (json!(["one", "two"]), 2, 4),
        (json!([5, 6, 7]), 1, 3),
        (json!([[5, 6], [7, 8, 9]]), 2, 5),
    ] {
        let answer =
            post(&replica, "/v1/completions", &json!({"prompt": prompt, "max_tokens": 3})).await.json();
        assert_eq!(answer["object"], "text_completion");
        assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
        assert_eq!(answer["choices"].as_array().unwrap().len(), choices);
        assert_eq!(answer["usage"]["prompt_tokens"], prompt_tokens);
        assert_eq!(answer["choices"][choices - 1]["text"].as_str().unwrap().len(), 12);
    }
}

#[tokio::test]
async fn a_completion_stream_ends_with_usage() {
    let replica = start(fast()).await;
    let body =
        json!({"prompt": "hi", "max_tokens": 3, "stream": true, "stream_options": {"include_usage": true}});
    let events = post(&replica, "/v1/completions", &body).await.events();
    assert_eq!(events.len(), 3 + 1);
    assert_eq!(events[2]["choices"][0]["finish_reason"], "length");
    assert_eq!((&events[3]["choices"], &events[3]["usage"]["completion_tokens"]), (&json!([]), &json!(3)));
}

#[tokio::test]
async fn a_response_has_openais_shape() {
    let replica = start(fast()).await;
    let body = json!({"model": "llama-3.1-8b", "input": "hello", "max_output_tokens": 5});
    let answer = post(&replica, "/v1/responses", &body).await.json();
    assert_eq!(answer["object"], "response");
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(answer["output"][0]["content"][0]["text"].as_str().unwrap().len(), 20);
    let expected = json!({"input_tokens": 6, "output_tokens": 5, "total_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}});
    assert_eq!(answer["usage"], expected);
    let natural = post(&replica, "/v1/responses", &json!({"input": "hello"})).await.json();
    assert_eq!((&natural["status"], &natural["incomplete_details"]), (&json!("completed"), &Value::Null));
}

#[tokio::test]
async fn a_response_stream_has_openais_order() {
    let replica = start(Config { answer_tokens_default: 3, ..fast() }).await;
    let answer = post(&replica, "/v1/responses", &json!({"input": "hello", "stream": true})).await;
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(answer.event_names(), expected);
    for (number, (event, name)) in answer.events().iter().zip(expected).enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let last = answer.events().pop().unwrap();
    assert_eq!(last["response"]["usage"]["output_tokens"], 3);
}

#[tokio::test]
async fn a_message_has_anthropics_shape() {
    let replica = start(fast()).await;
    let body =
        json!({"model": "llama-3.1-8b", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]});
    let answer = post(&replica, "/v1/messages", &body).await.json();
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    assert_eq!(answer["content"][0]["type"], "text");
    assert_eq!(answer["usage"], json!({"input_tokens": 6, "output_tokens": 5}));
    let counted = post(&replica, "/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted, json!({"input_tokens": 6}));
}

#[tokio::test]
async fn a_message_ends_by_itself_before_a_large_limit() {
    let replica = start(Config { answer_tokens_default: 7, ..fast() }).await;
    let ask = |max_tokens: u32, ignore_eos: bool| {
        let messages = json!([{"role": "user", "content": "hello"}]);
        json!({"max_tokens": max_tokens, "ignore_eos": ignore_eos, "messages": messages})
    };
    for (max_tokens, ignore_eos, reason, tokens) in
        [(32_000, false, "end_turn", 7), (7, false, "max_tokens", 7), (9, true, "max_tokens", 9)]
    {
        let answer = post(&replica, "/v1/messages", &ask(max_tokens, ignore_eos)).await.json();
        assert_eq!(
            (&answer["stop_reason"], &answer["usage"]["output_tokens"]),
            (&json!(reason), &json!(tokens))
        );
    }
}

#[tokio::test]
async fn a_message_stream_has_anthropics_order() {
    let replica = start(fast()).await;
    let body = json!({"max_tokens": 2, "stream": true, "messages": [{"role": "user", "content": "hello"}]});
    let answer = post(&replica, "/v1/messages", &body).await;
    let expected = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(answer.event_names(), expected);
    let events = answer.events();
    assert!(events.iter().zip(expected).all(|(event, name)| event["type"] == name));
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 6);
    assert_eq!(events[6]["delta"]["stop_reason"], "max_tokens");
    assert_eq!(events[6]["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn a_stop_sequence_is_named_in_a_message() {
    let replica = start(fast()).await;
    let body =
        json!({"max_tokens": 100, "stop_sequences": [". "], "messages": [{"role": "user", "content": "x"}]});
    let answer = post(&replica, "/v1/messages", &body).await.json();
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(". ")));
}

#[tokio::test]
async fn the_server_describes_itself() {
    let replica = start(Config { adapters: vec!["poet".to_owned()], ..fast() }).await;
    let models = get(&replica, "/v1/models").await.json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["parent"]),
        (&json!("llama-3.1-8b"), &Value::Null)
    );
    assert_eq!(
        (&models["data"][1]["id"], &models["data"][1]["parent"]),
        (&json!("poet"), &json!("llama-3.1-8b"))
    );
    assert_eq!(models["data"][0]["max_model_len"], 131_072);
    let version = get(&replica, "/version").await.json();
    assert!(version["version"].as_str().unwrap().starts_with("simulated "), "{version}");
    assert_eq!(get(&replica, "/load").await.json(), json!({"server_load": 0}));
    for path in ["/health", "/ping"] {
        let well = get(&replica, path).await;
        assert_eq!((well.status, well.body.as_str()), (200, ""));
    }
}

#[tokio::test]
async fn tokens_round_trip_through_tokenize_and_detokenize() {
    let replica = start(fast()).await;
    let tokens = post(&replica, "/tokenize", &json!({"prompt": "naïve text"})).await.json();
    assert_eq!(tokens["count"].as_u64().unwrap() as usize, tokens["tokens"].as_array().unwrap().len());
    assert_eq!((&tokens["tokens"][0], &tokens["max_model_len"]), (&json!(0), &json!(131_072)));
    let text = post(&replica, "/detokenize", &json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(text, json!({"prompt": "naïve text"}));
    let plain =
        post(&replica, "/tokenize", &json!({"prompt": "hi", "add_special_tokens": false})).await.json();
    assert_eq!(plain["count"], 1);
    let messages = json!({"messages": [{"role": "user", "content": "hello"}]});
    assert_eq!(post(&replica, "/tokenize", &messages).await.json()["count"], 6);
}

#[tokio::test]
async fn a_request_id_is_taken_and_echoed() {
    let replica = start(fast()).await;
    let body = chat(json!({})).to_string();
    let answer = ask(&replica, "POST", "/v1/chat/completions", "X-Request-Id: my-req-42\r\n", &body).await;
    assert_eq!(answer.header("x-request-id"), Some("my-req-42"));
    assert_eq!(answer.json()["id"], "chatcmpl-my-req-42");
}

#[tokio::test]
async fn errors_have_the_shape_of_their_api() {
    let replica = start(Config { body_bytes_max: 4_096, ..fast() }).await;
    let long = "x".repeat(5_000);
    for (path, body, status, kind) in [
        ("/v1/chat/completions", "{\"messages\": [", 400, "BadRequestError"),
        (
            "/v1/chat/completions",
            r#"{"model":"gpt-9","messages":[{"role":"user","content":"x"}]}"#,
            404,
            "NotFoundError",
        ),
        ("/v1/completions", r#"{"prompt":"x","max_tokens":0}"#, 400, "BadRequestError"),
        ("/v1/completions", r#"{"prompt":"x","n":0}"#, 400, "BadRequestError"),
        ("/v1/completions", r#"{"prompt":"x","max_tokens":131072}"#, 400, "BadRequestError"),
        ("/v1/responses", "[]", 400, "BadRequestError"),
        ("/v1/completions", long.as_str(), 413, "RequestEntityTooLargeError"),
        ("/nowhere", "", 404, "NotFoundError"),
        ("/health", "", 405, "MethodNotAllowedError"),
    ] {
        let answer = ask(&replica, "POST", path, "", body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (status, &json!(status)), "{path} {body}");
        assert_eq!(error["type"], kind, "{path} {body}");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    for (body, status, kind) in [
        ("nonsense", 400, "invalid_request_error"),
        (r#"{"messages":[{"role":"user","content":"x"}]}"#, 400, "invalid_request_error"),
        (
            r#"{"model":"gpt-9","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#,
            404,
            "not_found_error",
        ),
    ] {
        let answer = ask(&replica, "POST", "/v1/messages", "", body).await;
        let json = answer.json();
        assert_eq!(
            (answer.status, &json["type"], &json["error"]["type"]),
            (status, &json!("error"), &json!(kind))
        );
    }
}

#[tokio::test]
async fn a_prompt_longer_than_the_cache_is_refused() {
    let mut config = fast();
    config.engine.kv_tokens = 160;
    let replica = start(config).await;
    let prompt = "four".repeat(160);
    let answer = post(&replica, "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.json()["error"]["message"].as_str().unwrap().contains("maximum context length is 160 tokens")
    );
    let fits =
        post(&replica, "/v1/completions", &json!({"prompt": "four".repeat(158), "max_tokens": 1})).await;
    assert_eq!(fits.status, 200, "{}", fits.body);
}

#[tokio::test]
async fn details_are_left_out_when_they_are_off() {
    let replica = start(Config { usage_details: UsageDetails::Omit, ..fast() }).await;
    let body = json!({"prompt": "four".repeat(40), "max_tokens": 1});
    for _ in 0..2 {
        let usage = post(&replica, "/v1/completions", &body).await.json()["usage"].clone();
        assert_eq!(usage, json!({"prompt_tokens": 41, "completion_tokens": 1, "total_tokens": 42}));
    }
    assert_eq!(replica.stats().prefix_hits_tokens, 32);
}
