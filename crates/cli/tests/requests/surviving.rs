//! Streams survive their engine: a worker dies in the middle, another one continues, and the client sees one stream.

use crate::harness::client::{Call, Response};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::process::{Gateway, Process};
use crate::harness::script::{ReceivedRequest, Scripted};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn send(gateway: &Gateway, path: &str, body: &Value) -> Call {
    Call::send(gateway.url(), "POST", path, &[], body.to_string().as_bytes())
}

/// A stream as its client understands it.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    text: String,
    ids: Vec<String>,
    roles: usize,
    finish_reasons: Vec<String>,
    usage: Option<(u64, u64, u64)>,
    errors: usize,
    done: usize,
}

fn seen(response: &Response) -> Seen {
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(response.complete, "{}", response.text());
    let text = response.text();
    let mut seen = Seen::default();
    for data in text.split("\n\n").filter_map(|event| event.trim().strip_prefix("data: ")) {
        if data == "[DONE]" {
            seen.done += 1;
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("{data}"));
        seen.errors += usize::from(event.get("error").is_some());
        let choice = &event["choices"][0];
        let said = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        seen.text.push_str(said.unwrap_or_default());
        seen.roles += usize::from(choice["delta"].get("role").is_some());
        seen.finish_reasons.extend(choice["finish_reason"].as_str().map(str::to_owned));
        let id = event["id"].as_str().map(str::to_owned);
        seen.ids.extend(id.filter(|id| !seen.ids.contains(id)));
        if let Some(usage) = event["usage"].as_object() {
            let count = |name: &str| usage[name].as_u64().unwrap();
            seen.usage = Some((count("prompt_tokens"), count("completion_tokens"), count("total_tokens")));
        }
    }
    seen
}

/// Kills the engine that answers in the middle of its answer, with `kill -9`.
fn answer_despite_a_kill(path: &str, body: &Value) -> [Seen; 2] {
    let start = || Process::start(&["engine", "--port", "0", "--model", "m", "--speed", "1"]);
    let engines = [(); 2].map(|()| start());
    let urls = engines.each_ref().map(|engine| engine.url().to_owned());
    let gateway = Gateway::over(&urls.each_ref().map(String::as_str), &["--continue-streams"]);
    let whole = seen(&send(&gateway, path, body).finish());
    gateway.wait_for_idle();
    let mut call = send(&gateway, path, body);
    let begun = call.read_until("data: ");
    eventually("ten tokens have come", || (call.count_of("data: ") >= 10).then_some(()));
    let dying = urls.iter().position(|url| begun.contains(url.as_str())).expect("the worker is in the head");
    engines[dying].signal("-KILL");
    let continued = seen(&call.finish());
    assert_eq!(gateway.metric("warmroute_stream_continuations_total{outcome=\"continued\"}"), 1.0);
    [whole, continued]
}

#[test]
fn a_chat_whose_engine_is_killed_gets_the_same_answer() {
    let body = json!({"model": "m", "stream": true, "max_tokens": 300, "stream_options": {"include_usage": true},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]});
    let [whole, mut continued] = answer_despite_a_kill(CHAT, &body);
    assert_eq!((whole.text.len(), continued.ids.len()), (1_200, 1));
    assert_ne!(whole.ids, continued.ids, "another request");
    continued.ids.clone_from(&whole.ids);
    assert_eq!(continued, whole);
    assert_eq!((whole.roles, whole.done, whole.errors), (1, 1, 0));
    assert_eq!(whole.usage.map(|usage| usage.1), Some(300));
}

#[test]
fn a_completion_whose_engine_is_killed_gets_the_same_answer() {
    let body = json!({"model": "m", "stream": true, "max_tokens": 300, "prompt": "Once upon a time there"});
    let [whole, mut continued] = answer_despite_a_kill(COMPLETIONS, &body);
    continued.ids.clone_from(&whole.ids);
    assert_eq!(continued, whole);
    assert_eq!((whole.text.len(), whole.usage, whole.done), (1_200, None, 1));
}

/// An answer without a limit, which ends by itself.
#[test]
fn an_answer_that_ends_by_itself_ends_there_too() {
    let body =
        json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "Tell me more."}]});
    let [whole, mut continued] = answer_despite_a_kill(CHAT, &body);
    continued.ids.clone_from(&whole.ids);
    assert_eq!(continued, whole);
    assert_eq!(whole.finish_reasons, ["stop"]);
}

fn token(text: &str) -> String {
    let event = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]});
    format!("data: {event}\n\n")
}

/// The answer's text that a request carries.
fn text_so_far(request: &ReceivedRequest) -> String {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    if body["continue_final_message"] != true {
        return String::new();
    }
    assert_eq!(body["add_generation_prompt"], false);
    let messages = body["messages"].as_array().unwrap();
    assert_eq!(messages.last().unwrap()["role"], "assistant");
    messages.last().unwrap()["content"].as_str().unwrap().to_owned()
}

/// An engine that says one word of a sentence and then breaks off, until the sentence is said.
fn faltering(ending: &'static str) -> Scripted {
    Scripted::new(move |mut asked| {
        let said = text_so_far(&asked);
        let words = ["one ", "two ", "three"];
        let next = words.iter().scan(String::new(), |before, word| {
            let is_next = *before == said;
            before.push_str(word);
            Some(is_next.then_some(*word))
        });
        let word = next.flatten().next().unwrap();
        let body: Value = serde_json::from_slice(&asked.body).unwrap();
        let position = words.iter().position(|other| *other == word).unwrap() as u64;
        assert_eq!(body["max_tokens"], 10 - position, "less is left");
        asked.begin_events();
        asked.chunk(&token(word));
        if word == "three" {
            asked.chunk("data: [DONE]\n\n");
            return asked.end_chunks();
        }
        match ending {
            "reset" => asked.reset(),
            "silent end" => asked.end_chunks(),
            rest => {
                asked.chunk(rest);
                asked.wait_for_hang_up_or_close();
            }
        }
    })
}

fn chat() -> Value {
    json!({"model": "m", "stream": true, "max_tokens": 10, "messages": [{"role": "user", "content": "Count."}]})
}

#[test]
fn streams_that_break_in_any_way_are_continued_and_a_second_death_too() {
    for ending in [
        "reset",
        "silent end",
        "garbage\n\n",
        "data: {\"cut\n\n",
        "data: {\"error\":{\"code\":500}}\n\n",
        "event: error\ndata: {\"message\":\"died\"}\n\n",
    ] {
        let engines = [(); 3].map(|()| faltering(ending));
        let urls = engines.each_ref().map(|engine| engine.url.as_str());
        let gateway = Gateway::over(&urls, &["--continue-streams"]);
        let seen = seen(&send(&gateway, CHAT, &chat()).finish());
        assert_eq!((seen.text.as_str(), seen.errors, seen.done), ("one two three", 0, 1), "{ending}");
        assert_eq!(gateway.metric("warmroute_stream_continuations_total{outcome=\"continued\"}"), 2.0);
        gateway.wait_for_idle();
        engines.iter().for_each(Scripted::check);
    }
}

#[test]
fn a_stream_is_continued_no_more_often_than_allowed_and_only_below_its_length() {
    for (flags, text) in [
        (&["--continue-streams", "--max-continuations", "1"][..], "one two "),
        (&["--continue-streams=off"], "one "),
        (&["--continue-streams=1"], "one "),
        (&["--continue-streams=100000"], "one two three"),
    ] {
        let engines = [(); 3].map(|()| faltering("reset"));
        let urls = engines.each_ref().map(|engine| engine.url.as_str());
        let gateway = Gateway::over(&urls, flags);
        let seen = seen(&send(&gateway, CHAT, &chat()).finish());
        assert_eq!(seen.text, text, "{flags:?}");
        assert_eq!((seen.errors, seen.done), if text.ends_with("three") { (0, 1) } else { (1, 0) });
    }
}

/// A usage event of an engine that counts the delivered text as prompt, and has cached all of it.
fn usage_event(prompt: u32, output: u32) -> String {
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": prompt}});
    format!("data: {}\n\n", json!({"id": "chatcmpl-1", "choices": [], "usage": usage}))
}

#[test]
fn an_answer_that_is_complete_ends_well_although_its_usage_is_lost() {
    let last = token("three").replace("\"finish_reason\":null", "\"finish_reason\":\"stop\"");
    let usage = "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1,\"total_tokens\":8},\"object\"";
    let counted = last.replace("\"object\"", usage);
    for (last, usage) in [(last, None), (counted, Some((7, 1, 8)))] {
        let engines = [(); 2].map(|()| {
            let last = last.clone();
            Scripted::new(move |mut asked| {
                asked.begin_events();
                asked.chunk(&last);
                asked.reset();
            })
        });
        let urls = engines.each_ref().map(|engine| engine.url.as_str());
        let gateway = Gateway::over(&urls, &["--continue-streams"]);
        let mut body = chat();
        body["stream_options"] = json!({"include_usage": true});
        let seen = seen(&send(&gateway, CHAT, &body).finish());
        assert_eq!((seen.text.as_str(), seen.errors, seen.done), ("three", 0, 1));
        assert_eq!((seen.usage, seen.finish_reasons.len()), (usage, 1));
        assert_eq!(engines.iter().map(Scripted::asked).sum::<usize>(), 1);
    }
}

#[test]
fn usage_says_what_the_first_worker_had_cached() {
    let engines = [(); 2].map(|()| {
        Scripted::new(|mut asked| {
            let is_first = text_so_far(&asked).is_empty();
            asked.begin_events();
            asked.chunk(&token(if is_first { "one " } else { "two" }));
            if is_first {
                return asked.reset();
            }
            asked.chunk(&usage_event(101, 1));
            asked.chunk("data: [DONE]\n\n");
            asked.end_chunks();
        })
    });
    let urls = engines.each_ref().map(|engine| engine.url.as_str());
    let gateway = Gateway::over(&urls, &["--continue-streams"]);
    let mut body = chat();
    body["stream_options"] = json!({"include_usage": true});
    let answer = send(&gateway, CHAT, &body).finish();
    assert_eq!(seen(&answer).usage, Some((100, 2, 102)));
    assert!(!answer.text().contains("\"cached_tokens\":10"), "the first worker was cold: {}", answer.text());
}

#[test]
fn without_another_worker_the_stream_ends_with_an_error() {
    let alone = faltering("reset");
    let gateway = Gateway::over(&[&alone.url], &["--continue-streams"]);
    let seen = seen(&send(&gateway, CHAT, &chat()).finish());
    assert_eq!((seen.text.as_str(), seen.errors, seen.done), ("one ", 1, 0));
    assert_eq!(gateway.metric("warmroute_stream_continuations_total{outcome=\"failed\"}"), 1.0);
    assert_eq!(alone.asked(), 1);
    gateway.wait_for_idle();
}

/// What a worker that begins in the middle could not do right is not tried.
#[test]
fn bound_answers_are_not_continued() {
    let call = json!({"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}});
    let call = format!("data: {}\n\n", json!({"id": "a", "choices": [call]}));
    for (field, value, first) in [
        ("n", json!(2), token("x")),
        ("logprobs", json!(true), token("x")),
        ("response_format", json!({"type": "json_object"}), token("{")),
        ("guided_regex", json!("a+"), token("a")),
        ("tool_choice", json!("required"), token("a")),
        ("tools", json!([{"type": "function"}]), call),
        ("store", json!(true), token("x")),
    ] {
        let engines = [(); 2].map(|()| {
            let first = first.clone();
            Scripted::new(move |mut asked| {
                asked.begin_events();
                asked.chunk(&first);
                asked.reset();
            })
        });
        let urls = engines.each_ref().map(|engine| engine.url.as_str());
        let gateway = Gateway::over(&urls, &["--continue-streams"]);
        let mut body = chat();
        body[field] = value;
        let response = send(&gateway, CHAT, &body).finish();
        assert!(response.text().contains("\"error\""), "{field}: {}", response.text());
        assert_eq!(engines.iter().map(Scripted::asked).sum::<usize>(), 1, "{field}");
    }
}

#[test]
fn a_client_that_leaves_during_the_switch_cancels_the_next_worker() {
    let gate = Gate::default();
    let engines = [(); 2].map(|()| {
        let gate = gate.clone();
        Scripted::new(move |mut asked| {
            if !text_so_far(&asked).is_empty() {
                gate.open();
                return asked.wait_for_hang_up();
            }
            asked.begin_events();
            asked.chunk(&token("one "));
            asked.reset();
        })
    });
    let urls = engines.each_ref().map(|engine| engine.url.as_str());
    let gateway = Gateway::over(&urls, &["--continue-streams"]);
    let mut call = send(&gateway, CHAT, &chat());
    call.read_until("one ");
    gate.pass();
    call.hang_up();
    gateway.wait_for_idle();
    eventually("the request is over", || {
        (gateway.metric_sum("warmroute_requests_total") >= 2.0).then_some(())
    });
    engines.iter().for_each(Scripted::check);
}
