//! Which of the known APIs a request speaks; that decides which fields hold its prompt.

/// A request's API, by its path.
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
    /// Anything else with a JSON body: embeddings, rerank and what is yet to come.
    Other,
}

impl Api {
    /// From the path alone, without its query.
    pub fn of_path(path: &str) -> Api {
        match path {
            "/v1/chat/completions" => Api::Chat,
            "/v1/completions" => Api::Completions,
            "/v1/responses" => Api::Responses,
            "/v1/messages" => Api::Messages,
            _ => Api::Other,
        }
    }
}
