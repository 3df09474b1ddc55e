//! Which paths of workers clients may request.

use warmroute_prompt::Api;
use warmroute_wire::percent_decoded;

use crate::stored_reference::is_stored_path;

/// Paths that are still percent-encoded after this many decodings get 404.
pub(crate) const DECODINGS_MAX: usize = 4;

/// Engine endpoints outside `/v1` that clients may use. Endpoints that control an engine (sleep, reset, load an
/// adapter) are deliberately absent.
const ENGINE_PATHS: [&str; 6] = ["/tokenize", "/detokenize", "/score", "/rerank", "/pooling", "/classify"];

/// Endpoints under `/v1` that control an engine. Clients may not use them.
const ENGINE_CONTROL_PATHS: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

/// Whether clients may request this path from a worker. A path with dot segments could mean another path to the worker.
pub(crate) fn is_client_path(path: &str) -> bool {
    let Some(plain) = fully_decoded(path) else { return false };
    let has_dots = plain.split(['/', '\\']).any(|segment| segment == "." || segment == "..");
    // A proxy in front of the worker may merge slashes.
    // Some servers cut a segment at a semicolon, so that `..;` is `..` and `/v1/completions;a` is a known path.
    let is_odd = plain.contains("//") || plain.contains(';') || plain.contains(char::is_control);
    let is_offered =
        path.starts_with("/v1/") || ENGINE_PATHS.contains(&path) || Api::of_path(path) != Api::Other;
    let plain = plain.trim_end_matches('/');
    // An encoded spelling of a known path would reach a worker unparsed, bypassing routing and limits.
    let is_disguised =
        (is_handled_here(plain) && !is_handled_here(path)) || (is_stored_path(plain) && plain != path);
    is_offered && !has_dots && !is_odd && !is_disguised && !ENGINE_CONTROL_PATHS.contains(&plain)
}

/// Whether the gateway parses or answers requests for this path instead of only passing them on.
fn is_handled_here(path: &str) -> bool {
    Api::of_path(path) != Api::Other || path == "/v1/models" || path.starts_with("/v1/models/")
}

/// Decodes a path until no escapes are left, as the most eager proxy would. `None` after [`DECODINGS_MAX`] rounds:
/// each round costs the whole length, so their number must not grow with the path.
fn fully_decoded(path: &str) -> Option<String> {
    let mut plain = path.to_owned();
    for _ in 0..=DECODINGS_MAX {
        match percent_decoded(&plain) {
            decoded if decoded == plain => return Some(plain),
            decoded => plain = decoded,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::is_client_path;

    #[test]
    fn clients_reach_apis_but_not_engine_control() {
        for path in [
            "/v1/embeddings",
            "/v1/new/thing",
            "/tokenize",
            "/generate",
            "/v1/files/a..b",
            "/v1/files/x%2Fy",
            "/v1/100%25%",
            "/v1/%25252541",
            "/v1/chat/completions",
            "/v1/models/a%2Fb",
            "/v1/messages/count%5Ftokens",
            "/v1/responses/resp_1/input_items",
            "/v1/conversations",
        ] {
            assert!(is_client_path(path), "{path}");
        }
        for path in [
            "/",
            "/metrics",
            "/fault",
            "/reset_prefix_cache",
            "/generate/",
            "/gener%61te",
            "/generate_from_file",
            "/v1",
            "/v1/../metrics",
            "/v1/%2e%2e/fault",
            "/v1/..%2ffault",
            "/v1/.%2E/x",
            "/v1/%252e%252e/fault",
            "/v1/%25252e./fault",
            "/v1/load%255Flora_adapter",
            "/v1/%2525252541",
            "/v1/..%5cfault",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter/",
            "/v1/load%5Flora_adapter",
            "/v1//load_lora_adapter",
            "/v1/%2Fload_lora_adapter",
            "/v1/files%0d%0ax",
            "/v1/chat/complet%69ons",
            "/v1/chat%2Fcompletions",
            "/v1/chat/completions/",
            "/v1/%2563ompletions",
            "/v1/%72esponses",
            "/v1/message%73/",
            "/v1/model%73",
            "/v1/%72esponses/resp_1",
            "/v1/responses/%72esp_1",
            "/v1/responses/resp_1%2Fcancel",
            "/v1/responses/resp_1/",
            "/v1/conversation%73/conv_1",
            "/v1/model%73/a",
            "/v1/..;/sleep",
            "/v1/..%3b/sleep",
            "/v1/completions;a=b",
            "/v1/x%253bsleep",
            "",
            "*",
        ] {
            assert!(!is_client_path(path), "{path}");
        }
    }
}
