//! Formats of traces, detected from the file's beginning.

use serde_json::Value;

/// Known formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// Output of `warmroute serve --record`: hashes of spans.
    Warmroute,
    /// Mooncake's JSON lines: hashes of 512-token blocks.
    Mooncake,
    /// Bailian's JSON lines: hashes of 16-token blocks, and chat ids.
    Bailian,
    /// Azure's CSV: lengths only.
    Azure,
    /// ShareGPT's JSON: conversations as text.
    ShareGpt,
    /// LMBenchmark's JSON: accumulated texts.
    LmBenchmark,
    /// AIBrix's JSON lines: texts with times.
    AiBrix,
    /// MTRAG's JSON lines or JSON: conversations with passages.
    Mtrag,
    /// LooGLE's JSON lines: long documents with questions or a summary.
    Loogle,
}

impl TraceFormat {
    /// Known formats, for error messages.
    pub const KNOWN: &'static str = "records of warmroute serve, Mooncake and Bailian JSONL, Azure CSV, ShareGPT and LMBenchmark JSON, AIBrix JSONL, \
                                     MTRAG JSONL and JSON, LooGLE JSONL, each also as .zst";

    /// Whether it has texts: prompts are built from them, and most have no times.
    pub fn is_text(self) -> bool {
        match self {
            TraceFormat::Warmroute | TraceFormat::Mooncake | TraceFormat::Bailian | TraceFormat::Azure => {
                false
            }
            TraceFormat::ShareGpt
            | TraceFormat::LmBenchmark
            | TraceFormat::AiBrix
            | TraceFormat::Mtrag
            | TraceFormat::Loogle => true,
        }
    }

    /// Detects the format of a file.
    pub fn of(bytes: &[u8]) -> Option<TraceFormat> {
        let text = bytes.trim_ascii_start();
        let first =
            text.split(|&byte| byte == b'\n').find_map(|line| serde_json::from_slice::<Value>(line).ok());
        match (text.first()?, first) {
            (b'T', _) if text.starts_with(b"TIMESTAMP,") => Some(TraceFormat::Azure),
            (b'[', _) => serde_json::from_slice::<Value>(text).ok()?.get(0).and_then(of_item),
            (b'{', Some(line)) => of_object(&line),
            _ => None,
        }
    }
}

fn of_item(item: &Value) -> Option<TraceFormat> {
    match item {
        _ if item.get("conversations").is_some() => Some(TraceFormat::ShareGpt),
        _ if item.get("input").is_some() => Some(TraceFormat::LmBenchmark),
        _ => None,
    }
}

fn of_object(line: &Value) -> Option<TraceFormat> {
    match line {
        _ if line.get("warmroute_trace").is_some() => Some(TraceFormat::Warmroute),
        _ if line.get("hash_ids").is_some() && line.get("chat_id").is_some() => Some(TraceFormat::Bailian),
        _ if line.get("hash_ids").is_some() => Some(TraceFormat::Mooncake),
        _ if line.get("requests").is_some() => Some(TraceFormat::AiBrix),
        _ if line.get("qa_pairs").is_some() && line.get("input").is_some() => Some(TraceFormat::Loogle),
        _ if line.get("task_id").is_some() || line.get("tasks").is_some() => Some(TraceFormat::Mtrag),
        _ => None,
    }
}
