//! API of a request, which decides the fields that hold the prompt.

/// API of a request, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`, Anthropic's
    Messages,
    /// `/generate`, SGLang's own
    Generate,
    /// Any other API with a JSON body, such as embeddings or rerank.
    Other,
}

impl Api {
    /// The API of a path without its query.
    pub fn of_path(path: &str) -> Api {
        match path {
            "/v1/chat/completions" => Api::Chat,
            "/v1/completions" => Api::Completions,
            "/v1/responses" => Api::Responses,
            "/v1/messages" => Api::Messages,
            "/generate" => Api::Generate,
            _ => Api::Other,
        }
    }

    /// APIs whose prompts can be compared with what engines report.
    pub const COMPARED: [Api; 4] = [Api::Chat, Api::Completions, Api::Messages, Api::Responses];

    /// Path of the API; empty for others.
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
            Api::Generate => "/generate",
            Api::Other => "",
        }
    }
}
