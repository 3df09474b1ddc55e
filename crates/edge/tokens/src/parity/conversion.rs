//! Which APIs beside chats and completions are rendered as the engine renders them.
//!
//! The engine's version says by which rules it converts Messages and Responses requests to chats. Where it can be asked,
//! samples test the rules: `POST /v1/messages/count_tokens` counts a converted request, and `POST /v1/responses/render`,
//! which few engines open, shows its tokens. An API that fails stays presumed, for a reason that `GET /workers` shows.

use std::future::Future;

use serde_json::{Value, json};
use warmroute_prompt::{
    Api, Body, ChatConversion, ChatFormat, InlineSystem, MessagesRules, Reading, Rendered, Renderer,
};

use super::{Answer, Sample};
use crate::{Encoder, Model};

/// What an engine tells about its conversions.
pub trait ConversionEndpoint {
    /// The version of `GET /version`; `None` if the engine does not say it.
    fn version(&self) -> impl Future<Output = Option<String>> + Send;
    /// Posts a body to `/v1/messages/count_tokens`.
    fn count_tokens(&self, body: String) -> impl Future<Output = Answer> + Send;
    /// Posts a body to `/v1/responses/render`.
    fn render_response(&self, body: String) -> impl Future<Output = Answer> + Send;
}

/// How an engine converts requests of other APIs to chats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionVerdict {
    /// The rules.
    pub conversion: ChatConversion,
    /// APIs whose requests are not rendered.
    pub presumed: Vec<PresumedApi>,
}

/// An API whose requests are matched by presumed caches only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresumedApi {
    /// The API.
    pub api: Api,
    /// What differs, as `GET /workers` shows it.
    pub why: String,
}

/// Asks an engine how it converts requests. `reading` is that of the verdict on its tokens.
pub async fn check_conversion(
    engine: &impl ConversionEndpoint,
    served_name: &str,
    model: &Model,
    reading: Reading,
    unix_s: u64,
) -> ConversionVerdict {
    if let Some(why) = without_template(model) {
        return presumed_all(&[Api::Chat, Api::Messages, Api::Responses], &why);
    }
    let Some(version) = engine.version().await else {
        return presumed_all(
            &[Api::Messages, Api::Responses],
            "the engine does not answer GET /version, and the rules by which requests become chats are known for vLLM only",
        );
    };
    let mut verdict =
        ConversionVerdict { conversion: ChatConversion::of_vllm(&version), presumed: Vec::new() };
    verdict.note_version(&version);
    let counter = TokenCounter { model, reading, unix_s };
    if let Some(rules) = verdict.conversion.messages {
        let counts = ask_counts(engine, served_name).await;
        match counter.agreed_rules(rules, &counts) {
            Ok(rules) => verdict.conversion.messages = Some(rules),
            Err(why) => verdict.presume(Api::Messages, why),
        }
    }
    if verdict.conversion.responses.is_some() {
        let tokens = ask_tokens(engine, served_name).await;
        if let Err(why) = counter.check_tokens(verdict.conversion, &tokens) {
            verdict.presume(Api::Responses, why);
        }
    }
    verdict
}

/// Why no chat of a model can be rendered; `None` if chats can.
fn without_template(model: &Model) -> Option<String> {
    if model.text().chats() == ChatFormat::Harmony {
        return Some(
            "vLLM writes the chats of gpt-oss with the harmony library, not with the model's template; its POST \
             /tokenize shows the template's text, so the prompts cannot be checked"
                .to_owned(),
        );
    }
    match model.renderer() {
        Ok(renderer) if renderer.has_template() => None,
        _ => Some(
            "the model's folder has no chat template, so the engine writes chats with code of its own, or with \
             --chat-template: then put that template into the folder as chat_template.jinja"
                .to_owned(),
        ),
    }
}

fn presumed_all(apis: &[Api], why: &str) -> ConversionVerdict {
    let presumed = apis.iter().map(|&api| PresumedApi { api, why: why.to_owned() }).collect();
    ConversionVerdict { conversion: ChatConversion::default(), presumed }
}

impl ConversionVerdict {
    /// Names the APIs that this version converts by unknown rules.
    fn note_version(&mut self, version: &str) {
        let ChatConversion { messages, responses } = self.conversion;
        for (is_known, api, since) in
            [(messages.is_some(), Api::Messages, "0.24"), (responses.is_some(), Api::Responses, "0.27")]
        {
            if !is_known {
                let why = format!(
                    "the engine's version is {version}; the rules of vLLM {since} and later are known"
                );
                self.presumed.push(PresumedApi { api, why });
            }
        }
    }

    fn presume(&mut self, api: Api, why: String) {
        match api {
            Api::Messages => self.conversion.messages = None,
            _ => self.conversion.responses = None,
        }
        self.presumed.push(PresumedApi { api, why });
    }
}

async fn ask_counts(engine: &impl ConversionEndpoint, served_name: &str) -> Vec<(Sample, usize)> {
    let mut counts = Vec::new();
    for sample in messages_samples() {
        if let Answer::Json(body) = engine.count_tokens(sample.question(served_name)).await
            && let Ok(answer) = serde_json::from_slice::<Value>(&body)
            && let Some(count) = answer["input_tokens"].as_u64()
        {
            counts.push((sample, count as usize));
        }
    }
    counts
}

async fn ask_tokens(engine: &impl ConversionEndpoint, served_name: &str) -> Vec<(Sample, Vec<u32>)> {
    let mut tokens = Vec::new();
    for sample in responses_samples() {
        if let Answer::Json(body) = engine.render_response(sample.question(served_name)).await
            && let Ok(answer) = serde_json::from_slice::<Value>(&body)
            && let Ok(ids) = serde_json::from_value::<Vec<u32>>(answer["token_ids"].clone())
        {
            tokens.push((sample, ids));
        }
    }
    tokens
}

/// Tokenizes samples as we convert and render them.
struct TokenCounter<'a> {
    model: &'a Model,
    reading: Reading,
    unix_s: u64,
}

impl TokenCounter<'_> {
    /// The rules that give the engine's counts: those of its version, or with another place for inline system messages,
    /// which depends on how the engine was started.
    fn agreed_rules(
        &self,
        rules: MessagesRules,
        counts: &[(Sample, usize)],
    ) -> Result<MessagesRules, String> {
        let by_version = self.check_counts(rules, counts);
        let Err(why) = by_version else { return Ok(rules) };
        let others = [InlineSystem::Merged, InlineSystem::InPlace];
        let mut others = others.into_iter().map(|inline_system| MessagesRules { inline_system, ..rules });
        others.find(|rules| self.check_counts(*rules, counts).is_ok()).ok_or(why)
    }

    fn check_counts(&self, rules: MessagesRules, counts: &[(Sample, usize)]) -> Result<(), String> {
        let (renderer, encoder) = self.tools()?;
        let conversion = ChatConversion { messages: Some(rules), responses: None };
        let renderer = renderer.with_conversion(conversion);
        for (sample, theirs) in counts {
            let ours = self.ids(&renderer, &encoder, sample)?.len();
            if ours != *theirs {
                return Err(format!(
                    "the engine converts requests in another way: it counts {theirs} tokens in {}, the router {ours}",
                    sample.name
                ));
            }
        }
        Ok(())
    }

    fn check_tokens(&self, conversion: ChatConversion, tokens: &[(Sample, Vec<u32>)]) -> Result<(), String> {
        let (renderer, encoder) = self.tools()?;
        let renderer = renderer.with_conversion(conversion);
        for (sample, theirs) in tokens {
            if self.ids(&renderer, &encoder, sample)? != *theirs {
                return Err(format!("the engine converts {} in another way", sample.name));
            }
        }
        Ok(())
    }

    fn tools(&self) -> Result<(Renderer, Encoder), String> {
        let renderer = self.model.renderer().map_err(|problem| problem.to_string())?;
        let encoder = self.model.encoder(self.reading).map_err(|problem| problem.to_string())?;
        Ok((renderer, encoder))
    }

    fn ids(&self, renderer: &Renderer, encoder: &Encoder, sample: &Sample) -> Result<Vec<u32>, String> {
        let refused = |problem: &dyn std::fmt::Display| {
            format!("the engine takes {}, but it cannot be rendered here: {problem}", sample.name)
        };
        let (body, mut text) = (sample.body.to_string(), String::new());
        let body = Body::read(body.as_bytes()).map_err(|problem| refused(&problem))?;
        match renderer
            .render(&body, sample.api, self.unix_s, &mut text)
            .map_err(|problem| refused(&problem))?
        {
            Rendered::Text { around, .. } => {
                encoder.encode(&text, around).map_err(|problem| refused(&problem))
            }
            Rendered::Ids(ids) => Ok(ids),
        }
    }
}

const TOOL: &str = "The \"weather\" <&>";

fn schema() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
}

fn messages_samples() -> Vec<Sample> {
    let sample = |name, body| Sample { name, api: Api::Messages, body };
    let system = json!([{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": " Be brief.\n"}]);
    let call = json!({"role": "assistant", "content": [{"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "abcdefghi", "name": "weather", "input": {"city": "Zürich"}}]});
    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "abcdefghi", "content": [
        {"type": "text", "text": "21"}, {"type": "text", "text": "degrees"}]}]});
    let tools = json!([{"name": "weather", "description": TOOL, "input_schema": schema()}]);
    let user = json!({"role": "user", "content": [{"type": "text", "text": "Weather?"}]});
    vec![
        sample("a Messages request", json!({"system": system, "messages": [user]})),
        sample("a Messages request with tools", json!({"tools": tools, "messages": [user, call, result]})),
        sample(
            "a Messages request with a system message between others",
            json!({"system": "First.", "messages": [user, {"role": "assistant", "content": "Sunny."},
                {"role": "system", "content": "Second."}, user]}),
        ),
    ]
}

fn responses_samples() -> Vec<Sample> {
    let sample = |name, body| Sample { name, api: Api::Responses, body };
    let user =
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]});
    let call = json!({"type": "function_call", "call_id": "abcdefghi", "name": "weather", "arguments": "{\"city\": \"Zürich\"}"});
    let output = json!({"type": "function_call_output", "call_id": "abcdefghi", "output": "21"});
    let tools = json!([{"type": "function", "name": "weather", "description": TOOL, "parameters": schema(), "strict": false}]);
    vec![
        sample("a Responses request", json!({"instructions": " Be brief.\n", "input": [user]})),
        sample("a Responses request with tools", json!({"tools": tools, "input": [user, call, output]})),
    ]
}
