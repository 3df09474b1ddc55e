//! Request fields that steer engines: one table of names, each passed, dropped or refused.
//!
//! Engines read more from a body than the APIs define. Some of these fields choose a worker, a rank or an adapter, jump
//! the engine's queue, read or write another engine's cache, or run code. A client with an ordinary key must not. The
//! configuration (`engine-fields`) changes the defaults, and a key's `engine-fields` changes them for its tenant.
//!
//! The policy applies to what clients send. What the gateway itself writes into a body is added afterwards.

use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;
use warmroute_prompt::Body;

/// What happens to a field that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldAction {
    /// The worker gets it.
    Pass,
    /// It is removed: the answer is the same without it.
    Drop,
    /// The request gets 400: without the field, the answer would not be what the client asked for.
    Refuse,
}

impl FieldAction {
    /// The word in configurations and in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            FieldAction::Pass => "pass",
            FieldAction::Drop => "drop",
            FieldAction::Refuse => "refuse",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct EngineField {
    /// The name. A `*` at its end stands for any rest.
    pub name: &'static str,
    /// What happens to it by default.
    pub default: FieldAction,
    /// What it does in an engine.
    pub effect: &'static str,
}

const fn row(name: &'static str, default: FieldAction, effect: &'static str) -> EngineField {
    EngineField { name, default, effect }
}

use FieldAction::{Drop, Pass, Refuse};

/// All fields that are known to steer an engine.
pub const ENGINE_FIELDS: [EngineField; 44] = [
    row(
        "kv_transfer_params",
        Drop,
        "names an engine and blocks to read a prompt's cache from, or writes it there (vLLM)",
    ),
    row("kv_router_hint", Drop, "names an engine and blocks to read a prompt's cache from (SGLang)"),
    row("ec_transfer_params", Drop, "the same for the cache of images (vLLM)"),
    row(
        "bootstrap_*",
        Drop,
        "host, port and room from which a decoding engine fetches a prompt's cache (SGLang)",
    ),
    row(
        "disaggregated_params",
        Drop,
        "phase and origin of a request split between two engines (TensorRT-LLM)",
    ),
    row(
        "disagg_*",
        Drop,
        "phase, rank and server of a request split between two engines (SGLang, TensorRT-LLM)",
    ),
    row("decode_tp_size", Drop, "layout of the decoding engine of a split request (SGLang)"),
    row("conversation_params", Drop, "the engine that has a conversation (TensorRT-LLM)"),
    row("data_parallel_rank*", Drop, "chooses a rank (vLLM, SGLang)"),
    row("routed_dp_rank", Drop, "chooses a rank (SGLang)"),
    row("dp_rank", Drop, "chooses a rank"),
    row("routing_key", Drop, "chooses an engine (SGLang)"),
    row("http_worker_ipc", Drop, "names the process of the engine that gets the answer (SGLang)"),
    row("encoder_urls", Drop, "names the servers that encode images (SGLang)"),
    row("need_wait_for_*", Drop, "makes a request wait for images from such servers (SGLang)"),
    row("num_items_assigned", Drop, "divides images among such servers (SGLang)"),
    row(
        "mm_hashes",
        Drop,
        "replaces an image's hash in the name of its cache, which other requests find (SGLang)",
    ),
    row("mm_content_hashes", Drop, "the same for the cache of processed images (SGLang)"),
    row("nvext", Drop, "chooses engines, and adds annotations (Dynamo)"),
    row(
        "cache_hit_threshold",
        Drop,
        "makes an engine refuse what it has not cached, which tells what it has (vLLM)",
    ),
    row("priority", Drop, "jumps the engine's queue (vLLM, SGLang)"),
    row("rid", Drop, "names the request in the engine; another request may have that name (SGLang)"),
    row("request_id", Drop, "the same (vLLM)"),
    row("received_time", Drop, "when the request came, by which engines order and measure (SGLang)"),
    row("external_trace_header", Drop, "joins a trace of another request (SGLang)"),
    row("custom_labels", Drop, "adds labels to the engine's metrics (SGLang)"),
    row("log_metrics", Drop, "keeps the request out of the engine's metrics (SGLang)"),
    row("no_logs", Drop, "keeps the request out of the engine's logs (SGLang)"),
    row("session_params", Refuse, "continues a session of any client in the engine (SGLang)"),
    row("lora_path", Refuse, "chooses an adapter beside the model's name (SGLang)"),
    row("lora_id", Refuse, "the same"),
    row("lora_request", Refuse, "the same, with a path (TensorRT-LLM)"),
    row("custom_logit_processor", Refuse, "runs code of the client (SGLang)"),
    row("custom_params", Refuse, "arguments of that code (SGLang)"),
    row("logits_processors", Refuse, "runs any function that the engine can import (vLLM)"),
    row("vllm_xargs", Refuse, "arguments for any part of the engine, kv_transfer_params among them (vLLM)"),
    row("extra_args", Refuse, "the same (vLLM)"),
    row(
        "positional_embed_overrides",
        Refuse,
        "replaces what the model reads at a place of the prompt (SGLang)",
    ),
    row("return_hidden_states", Refuse, "returns the model's inner state (SGLang)"),
    row("return_routed_experts", Refuse, "returns the model's inner state (SGLang, vLLM)"),
    row("return_indexer_topk", Refuse, "returns the model's inner state (SGLang)"),
    row("weight_version", Drop, "chooses a version of the weights"),
    row(
        "cache_salt",
        Pass,
        "separates the request's cache from others; see cache-salt for a salt of the key",
    ),
    row("extra_key", Pass, "the same (SGLang)"),
];

/// The row of a field's name.
pub(crate) fn position(name: &[u8]) -> Option<usize> {
    // Most fields of most requests are none of these, and their first letters show that.
    let first = name.first()?;
    ENGINE_FIELDS.iter().position(|field| match field.name.as_bytes() {
        [letter, ..] if letter != first => false,
        [start @ .., b'*'] => name.starts_with(start),
        whole => name == whole,
    })
}

/// What happens to each field, in the order of [`ENGINE_FIELDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPolicy([FieldAction; ENGINE_FIELDS.len()]);

impl Default for FieldPolicy {
    fn default() -> FieldPolicy {
        FieldPolicy(ENGINE_FIELDS.map(|field| field.default))
    }
}

/// Changes of a policy: rows and their actions, later ones over earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldRules(Vec<(usize, FieldAction)>);

impl FieldRules {
    /// A policy changed by these rules.
    pub fn over(&self, mut policy: FieldPolicy) -> FieldPolicy {
        self.0.iter().for_each(|&(field, action)| policy.0[field] = action);
        policy
    }
}

impl FromStr for FieldRules {
    type Err = &'static str;

    /// Reads `NAME:ACTION`, several with commas. The name `all` stands for all fields.
    fn from_str(text: &str) -> Result<FieldRules, &'static str> {
        const EXPECTED: &str = "expected FIELD:pass, FIELD:drop or FIELD:refuse, with a field of the list in docs/security.md, or all";
        let mut rules = Vec::new();
        for rule in text.split(',').filter(|rule| !rule.is_empty()) {
            let (name, action) = rule.split_once(':').ok_or(EXPECTED)?;
            let action = [Pass, Drop, Refuse].into_iter().find(|known| known.as_str() == action);
            let action = action.ok_or(EXPECTED)?;
            match name {
                "all" => rules.extend((0..ENGINE_FIELDS.len()).map(|field| (field, action))),
                name => rules.push((position(name.as_bytes()).ok_or(EXPECTED)?, action)),
            }
        }
        Ok(FieldRules(rules))
    }
}

impl FieldPolicy {
    /// Applies the policy to a body that was read with [`position`] as its marks. Returns the body without dropped
    /// fields; `None` where it stays as it is. The error is the field that is refused.
    pub(crate) fn apply(&self, bytes: &Bytes, body: &Body<'_>) -> Result<Option<Bytes>, &'static str> {
        let mut dropped: Vec<Range<usize>> = Vec::new();
        for field in body.marked() {
            match self.0[field.mark] {
                Pass => {}
                Drop => dropped.push(field.range.clone()),
                Refuse => return Err(ENGINE_FIELDS[field.mark].name),
            }
        }
        Ok((!dropped.is_empty()).then(|| Bytes::from(Body::without_fields(bytes, &dropped))))
    }

    /// The row of a form's field that the policy does not pass. Forms are streamed, so nothing is dropped from them.
    pub(crate) fn refused_in_form(&self, name: &[u8]) -> Option<&'static str> {
        let field = position(name).filter(|field| self.0[*field] != Pass)?;
        Some(ENGINE_FIELDS[field].name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(rules: &str, json: &'static str) -> Result<Option<Bytes>, &'static str> {
        let policy = rules.parse::<FieldRules>().unwrap().over(FieldPolicy::default());
        let bytes = Bytes::from_static(json.as_bytes());
        let body = Body::read_with(&bytes, &[], position).unwrap();
        policy.apply(&bytes, &body)
    }

    #[test]
    fn fields_are_passed_dropped_or_refused() {
        let json = r#"{"model":"m","priority":-9,"bootstrap_host":"evil","messages":[{"rid":"text"}]}"#;
        let kept = r#"{"model":"m","messages":[{"rid":"text"}]}"#;
        assert_eq!(applied("", json).unwrap().unwrap(), kept);
        assert_eq!(applied("all:pass", json).unwrap(), None);
        let with_priority = r#"{"model":"m","priority":-9,"messages":[{"rid":"text"}]}"#;
        assert_eq!(applied("priority:pass", json).unwrap().unwrap(), with_priority);
        assert_eq!(applied("all:pass,priority:refuse", json), Err("priority"));
        assert_eq!(applied("", r#"{"lora\u005fpath":1}"#), Err("lora_path"));
        assert_eq!(applied("", r#"{"cache_salt":"a","other":1}"#).unwrap(), None);
        for json in
            [r#"{"sampling_params":{"custom_params":{}}}"#, r#"{"sampling_params":[{},{"custom_params":1}]}"#]
        {
            assert_eq!(applied("", json), Err("custom_params"), "{json}");
        }
        for wrong in ["priority", "priority:no", "color:pass", "pass:priority"] {
            assert!(wrong.parse::<FieldRules>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_documentation_has_the_table() {
        let page = include_str!("../../../../docs/security.md");
        for EngineField { name, default, effect } in ENGINE_FIELDS {
            let row = format!("| `{name}` | {} | {effect} |", default.as_str());
            assert!(page.contains(&row), "docs/security.md lacks the row\n{row}");
        }
    }
}
