//! The request that continues an answer: the client's request with the text so far.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use warmroute_prompt::{Api, flag_of, number_of};

use super::delivered_text::DeliveredText;
use super::ordered_object::OrderedObject;

/// What the next worker gets, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Continued {
    /// The body to send.
    Body(Bytes),
    /// Nothing is left to generate; only the end of the stream was lost.
    Complete {
        /// What the lost events would have said, if the last one was lost too.
        finish_reason: Option<&'static str>,
        /// The usage that the client wants and has not got, if it is known.
        usage: Option<(u32, u32)>,
    },
    /// The request cannot be continued.
    Impossible(&'static str),
}

/// Fields that bind the answer to something that a worker which begins in the middle does not know.
const BINDING: [&str; 28] = [
    "audio",
    "data_parallel_rank",
    "ebnf",
    "echo",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_decoding",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "kv_transfer_params",
    "logprobs",
    "modalities",
    "prompt_embeds",
    "prompt_logprobs",
    "regex",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "store",
    "structural_tag",
    "structured_outputs",
    "suffix",
    "top_logprobs",
    // The next worker would cut the text so far as well, and see less of the prompt.
    "truncate_prompt_tokens",
    "use_beam_search",
    "json_schema",
];

/// A request as its first worker got it.
pub(crate) struct SentRequest<'a> {
    pub(crate) api: Api,
    pub(crate) body: &'a [u8],
    /// Whether the gateway asked for the usage, and the client did not.
    pub(crate) usage_injected: bool,
}

/// The request that continues this answer.
pub(crate) fn continued(sent: &SentRequest<'_>, delivered: &DeliveredText) -> Continued {
    let Some(mut request) = OrderedObject::read(sent.body) else {
        return Continued::Impossible("the request is no JSON object");
    };
    if let Some(why) = obstacle(&request) {
        return Continued::Impossible(why);
    }
    let options: Option<Value> = request.parse("stream_options");
    let wants_usage = options.as_ref().and_then(|options| options.get("include_usage"));
    let wants_usage = !sent.usage_injected && wants_usage.is_some_and(|wants| *wants == true);
    let is_used_up = reduce_limits(&mut request, delivered.tokens);
    if delivered.is_finished || is_used_up {
        let finish_reason = (!delivered.is_finished).then_some("length");
        // Where the engine has not counted, the stream ends without usage: OpenAI's clients know that from streams that
        // are interrupted.
        let usage = delivered.usage.filter(|_| wants_usage && !delivered.has_usage_event);
        return Continued::Complete { finish_reason, usage };
    }
    let added = match sent.api {
        Api::Chat => add_to_messages(&mut request, &delivered.text),
        _ => add_to_prompt(&mut request, &delivered.text),
    };
    match added {
        Ok(()) => Continued::Body(Bytes::from(request.to_json())),
        Err(why) => Continued::Impossible(why),
    }
}

/// Why a request cannot be continued, whatever was delivered.
fn obstacle(request: &OrderedObject) -> Option<&'static str> {
    let plain = |name: &str| request.parse::<Value>(name).unwrap_or_default();
    let is_unset = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    let is_set = |name: &str| !is_unset(&plain(name));
    // Zero log probabilities are log probabilities of the chosen token.
    let has_zero = |name: &str| plain(name).is_number();
    if BINDING.iter().any(|name| is_set(name)) || has_zero("logprobs") || has_zero("prompt_logprobs") {
        return Some("the request has a field that binds its answer");
    }
    let is_one = |name: &str| request.get(name).and_then(number_of) == Some(1);
    if ["n", "best_of"].iter().any(|name| is_set(name) && !is_one(name)) {
        return Some("the request asks for several answers");
    }
    let format = plain("response_format");
    if !format.is_null() && format.get("type").is_none_or(|kind| *kind != "text") {
        return Some("the answer is bound to a format");
    }
    let choice = plain("tool_choice");
    if !choice.is_null() && choice != "auto" && choice != "none" {
        return Some("the answer is bound to a tool");
    }
    None
}

/// Reduces the limits by what was delivered. Returns whether nothing is left. Engines also accept `10.0` and `"10"`.
fn reduce_limits(request: &mut OrderedObject, delivered: u32) -> bool {
    let mut is_used_up = false;
    for name in ["max_tokens", "max_completion_tokens", "min_tokens"] {
        if let Some(limit) = request.get(name).and_then(number_of) {
            let left = limit.saturating_sub(delivered);
            is_used_up |= left == 0 && name != "min_tokens";
            request.set(name, &left);
        }
    }
    is_used_up
}

/// The body with limits for another number of delivered tokens. At least one token is left.
pub(crate) fn with_limits_for(body: &[u8], counted: u32, delivered: u32) -> Option<Bytes> {
    let mut request = OrderedObject::read(body)?;
    for (name, least) in [("max_tokens", 1), ("max_completion_tokens", 1), ("min_tokens", 0)] {
        if let Some(limit) = request.parse::<u32>(name) {
            let left = limit.saturating_add(counted).saturating_sub(delivered);
            request.set(name, &left.max(least));
        }
    }
    Some(Bytes::from(request.to_json()))
}

/// Adds the text as the last message, which the worker continues.
fn add_to_messages(request: &mut OrderedObject, text: &str) -> Result<(), &'static str> {
    let continues = request.get("continue_final_message").is_some_and(flag_of);
    let mut messages: Vec<Box<RawValue>> = request.parse("messages").ok_or("no messages")?;
    if continues {
        let last = messages.last_mut().ok_or("no message to continue")?;
        let mut message = OrderedObject::read(last.get().as_bytes()).ok_or("the message is no object")?;
        let content: String = message.parse("content").ok_or("the message to continue is no text")?;
        message.set("content", &(content + text));
        *last = raw(&message)?;
    } else if !text.is_empty() {
        messages.push(raw(&json!({"role": "assistant", "content": text}))?);
    }
    if continues || !text.is_empty() {
        request.set("messages", &messages);
        request.set("continue_final_message", &true);
        request.set("add_generation_prompt", &false);
    }
    Ok(())
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, &'static str> {
    to_raw_value(value).map_err(|_| "the message cannot be written")
}

fn add_to_prompt(request: &mut OrderedObject, text: &str) -> Result<(), &'static str> {
    if let Some(prompt) = request.parse::<String>("prompt") {
        request.set("prompt", &(prompt + text));
        return Ok(());
    }
    let prompts = request.parse::<Vec<Value>>("prompt").ok_or("the prompt is no text")?;
    match &prompts[..] {
        [Value::String(prompt)] => request.set("prompt", &[format!("{prompt}{text}")]),
        _ if text.is_empty() => {}
        _ => return Err("the prompt is no text"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(text: &str, tokens: u32) -> DeliveredText {
        DeliveredText { text: text.to_owned(), tokens, ..DeliveredText::default() }
    }

    fn of(api: Api, request: &Value, delivered: &DeliveredText) -> Continued {
        let body = request.to_string();
        continued(&SentRequest { api, body: body.as_bytes(), usage_injected: false }, delivered)
    }

    fn body(api: Api, request: &Value, text: &str, tokens: u32) -> Value {
        match of(api, request, &delivered(text, tokens)) {
            Continued::Body(body) => serde_json::from_slice(&body).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_chat_gets_the_text_as_its_last_message_and_less_to_generate() {
        let request = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10,
            "max_completion_tokens": 12, "min_tokens": 2, "temperature": 0.5, "tools": [{"type": "function"}]});
        let body = body(Api::Chat, &request, "Hello", 3);
        assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "Hello"}));
        assert_eq!((&body["max_tokens"], &body["max_completion_tokens"]), (&7.into(), &9.into()));
        assert_eq!((&body["min_tokens"], &body["temperature"]), (&0.into(), &0.5.into()));
        assert_eq!(body["continue_final_message"], true);
        assert_eq!(body["add_generation_prompt"], false);
    }

    #[test]
    fn a_message_that_the_client_began_is_continued() {
        let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]);
        let request =
            json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false});
        let body = body(Api::Chat, &request, "hello", 2);
        assert_eq!(body["messages"][1]["content"], "Well, hello");
        assert_eq!(body["messages"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_completion_gets_the_text_at_the_end_of_its_prompt() {
        let whole = body(Api::Completions, &json!({"prompt": "Once", "max_tokens": 5}), " upon", 1);
        assert_eq!((&whole["prompt"], &whole["max_tokens"]), (&"Once upon".into(), &4.into()));
        assert_eq!(
            body(Api::Completions, &json!({"prompt": ["Once"]}), " upon", 1)["prompt"][0],
            "Once upon"
        );
        assert!(whole.get("continue_final_message").is_none());
    }

    #[test]
    fn fields_keep_their_order_and_limits_are_reduced_in_every_notation() {
        let tool = r#"{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}"#;
        let request = format!(
            r#"{{"tools":[{tool}],"model":"m","max_tokens":10.0,"messages":[{{"role":"user","content":"hi"}}],"min_tokens":"2","a":1.50}}"#
        );
        let sent = SentRequest { api: Api::Chat, body: request.as_bytes(), usage_injected: false };
        let Continued::Body(body) = continued(&sent, &delivered("Hello", 3)) else { panic!("no body") };
        let expected = format!(
            r#"{{"tools":[{tool}],"model":"m","max_tokens":7,"messages":[{{"role":"user","content":"hi"}},{{"content":"Hello","role":"assistant"}}],"min_tokens":0,"a":1.50,"continue_final_message":true,"add_generation_prompt":false}}"#
        );
        assert_eq!(String::from_utf8(body.to_vec()).unwrap(), expected);
        let used_up = of(Api::Chat, &json!({"messages": [], "max_tokens": "3"}), &delivered("abc", 3));
        assert_eq!(used_up, Continued::Complete { finish_reason: Some("length"), usage: None });
    }

    #[test]
    fn a_request_whose_worker_died_before_any_text_is_sent_as_it_was() {
        let request = json!({"messages": [{"role": "user", "content": "hi"}]});
        assert_eq!(body(Api::Chat, &request, "", 0), request);
        assert_eq!(body(Api::Completions, &json!({"prompt": [1, 2]}), "", 0)["prompt"], json!([1, 2]));
    }

    #[test]
    fn limits_follow_a_new_count() {
        let limits = |body: &Value, counted, delivered| -> Value {
            let body = with_limits_for(body.to_string().as_bytes(), counted, delivered).unwrap();
            serde_json::from_slice(&body).unwrap()
        };
        let body = json!({"max_tokens": 7, "min_tokens": 1, "prompt": "x"});
        assert_eq!(limits(&body, 3, 5), json!({"max_tokens": 5, "min_tokens": 0, "prompt": "x"}));
        assert_eq!(limits(&body, 3, 2)["max_tokens"], 8);
        assert_eq!(limits(&body, 3, 30)["max_tokens"], 1);
        assert_eq!(with_limits_for(b"[]", 1, 2), None);
    }

    #[test]
    fn bound_answers_are_not_continued() {
        for field in [
            json!({"n": 2}),
            json!({"best_of": 2}),
            json!({"logprobs": true}),
            json!({"logprobs": 0}),
            json!({"top_logprobs": 3}),
            json!({"echo": true}),
            json!({"echo": 1}),
            json!({"echo": "yes"}),
            json!({"n": "2"}),
            json!({"use_beam_search": 1}),
            json!({"truncate_prompt_tokens": 100}),
            json!({"truncate_prompt_tokens": -1}),
            json!({"store": true}),
            json!({"response_format": {"type": "json_object"}}),
            json!({"guided_json": {"type": "object"}}),
            json!({"structured_outputs": {"regex": "a"}}),
            json!({"tool_choice": "required"}),
            json!({"tool_choice": {"type": "function"}}),
        ] {
            let mut request = json!({"messages": [{"role": "user", "content": "hi"}]});
            request.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
            let continued = of(Api::Chat, &request, &delivered("x", 1));
            assert!(matches!(continued, Continued::Impossible(_)), "{field}");
        }
        let free = json!({"messages": [{"role": "user", "content": "hi"}], "n": 1, "logprobs": false,
            "response_format": {"type": "text"}, "tool_choice": "auto", "echo": false});
        body(Api::Chat, &free, "x", 1);
    }

    #[test]
    fn an_answer_of_which_only_the_end_was_lost_is_complete() {
        let request = json!({"messages": [], "max_tokens": 3});
        let all = of(Api::Chat, &request, &delivered("abc", 3));
        assert_eq!(all, Continued::Complete { finish_reason: Some("length"), usage: None });
        let finished = DeliveredText { is_finished: true, ..delivered("ab", 2) };
        let finished = of(Api::Chat, &request, &finished);
        assert_eq!(finished, Continued::Complete { finish_reason: None, usage: None });
        let request = json!({"messages": [], "max_tokens": 3, "stream_options": {"include_usage": true}});
        let lost = of(Api::Chat, &request, &delivered("abc", 3));
        assert_eq!(lost, Continued::Complete { finish_reason: Some("length"), usage: None }, "not counted");
        let mut counted = DeliveredText { is_finished: true, usage: Some((9, 2)), ..delivered("ab", 2) };
        let known = of(Api::Chat, &request, &counted);
        assert_eq!(known, Continued::Complete { finish_reason: None, usage: Some((9, 2)) });
        counted.has_usage_event = true;
        let known = of(Api::Chat, &request, &counted);
        assert_eq!(known, Continued::Complete { finish_reason: None, usage: None }, "the client has it");
        let body = request.to_string();
        let injected = SentRequest { api: Api::Chat, body: body.as_bytes(), usage_injected: true };
        let all = continued(&injected, &delivered("abc", 3));
        assert_eq!(
            all,
            Continued::Complete { finish_reason: Some("length"), usage: None },
            "the client wants no usage"
        );
    }
}
