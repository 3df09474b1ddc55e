//! A chat message under construction, and its JSON.

/// A message of the chat, in slices of the request.
#[derive(Debug, Default)]
pub(super) struct ChatMessage<'a> {
    pub role: Role<'a>,
    pub content: Option<ChatContent<'a>>,
    /// Texts of the reasoning, to be joined; `None` if the message has none.
    pub reasoning: Option<Vec<&'a [u8]>>,
    pub tool_calls: Vec<ToolCall<'a>>,
    /// Call that a tool message answers: a JSON value.
    pub tool_call_id: Option<&'a [u8]>,
}

/// Role of a message.
#[derive(Debug, Default)]
pub(super) enum Role<'a> {
    System,
    #[default]
    User,
    Assistant,
    Tool,
    /// A role of the request, with its escapes.
    Other(&'a [u8]),
}

/// Content of a message.
#[derive(Debug)]
pub(super) enum ChatContent<'a> {
    /// Texts with their escapes, to be joined.
    Texts {
        texts: Vec<&'a [u8]>,
        between: &'static str,
    },
    Parts(Vec<ChatPart<'a>>),
    /// Any JSON value.
    Json(&'a [u8]),
}

/// Part of a message's content.
#[derive(Debug)]
pub(super) enum ChatPart<'a> {
    /// Texts with their escapes, to be joined.
    Text(Vec<&'a [u8]>),
    /// An image: its source as JSON, which identifies it.
    Image(&'a [u8]),
    /// Name of a tool that is loaded by this message.
    ToolReference(&'a [u8]),
}

/// Call of a function.
#[derive(Debug)]
pub(super) struct ToolCall<'a> {
    /// JSON value.
    pub id: &'a [u8],
    /// Parts of the name, with their escapes.
    pub name: Vec<&'a [u8]>,
    pub arguments: Arguments<'a>,
}

/// Arguments of a call.
#[derive(Debug)]
pub(super) enum Arguments<'a> {
    /// A JSON value: an object, or a string that contains one.
    Json(&'a [u8]),
    /// The only argument, named `input`: a text with its escapes.
    Input(&'a [u8]),
}

impl<'a> ChatContent<'a> {
    /// Content of one text.
    pub fn text(text: &'a [u8]) -> ChatContent<'a> {
        ChatContent::joined(vec![text])
    }

    /// Content of texts that follow each other.
    pub fn joined(texts: Vec<&'a [u8]>) -> ChatContent<'a> {
        ChatContent::Texts { texts, between: "" }
    }
}

impl<'a> ChatMessage<'a> {
    /// A message with a role and one text.
    pub fn of_text(role: Role<'a>, text: &'a [u8]) -> ChatMessage<'a> {
        ChatMessage { role, content: Some(ChatContent::text(text)), ..ChatMessage::default() }
    }

    pub fn is_assistant(&self) -> bool {
        match self.role {
            Role::Assistant => true,
            Role::Other(raw) => raw == b"assistant",
            _ => false,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"role\":");
        match self.role {
            Role::System => write_texts(&[b"system"], "", out),
            Role::User => write_texts(&[b"user"], "", out),
            Role::Assistant => write_texts(&[b"assistant"], "", out),
            Role::Tool => write_texts(&[b"tool"], "", out),
            Role::Other(raw) => write_texts(&[raw], "", out),
        }
        if let Some(content) = &self.content {
            out.extend_from_slice(b",\"content\":");
            content.write(out);
        }
        if let Some(reasoning) = &self.reasoning {
            out.extend_from_slice(b",\"reasoning\":");
            write_texts(reasoning, "", out);
        }
        if !self.tool_calls.is_empty() {
            out.extend_from_slice(b",\"tool_calls\":");
            write_list(&self.tool_calls, ToolCall::write, out);
        }
        if let Some(id) = self.tool_call_id {
            out.extend_from_slice(b",\"tool_call_id\":");
            out.extend_from_slice(id);
        }
        out.push(b'}');
    }
}

impl ChatContent<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            ChatContent::Texts { texts, between } => write_texts(texts, between, out),
            ChatContent::Parts(parts) => write_list(parts, ChatPart::write, out),
            ChatContent::Json(value) => out.extend_from_slice(value),
        }
    }
}

impl ChatPart<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            ChatPart::Text(text) => {
                out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
                write_texts(text, "", out);
            }
            ChatPart::Image(source) => {
                out.extend_from_slice(b"{\"type\":\"image_url\",\"image_url\":");
                out.extend_from_slice(source);
            }
            ChatPart::ToolReference(name) => {
                out.extend_from_slice(b"{\"type\":\"tool_reference\",\"name\":");
                write_texts(&[name], "", out);
            }
        }
        out.push(b'}');
    }
}

impl ToolCall<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        out.extend_from_slice(self.id);
        out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        write_texts(&self.name, "", out);
        out.extend_from_slice(b",\"arguments\":");
        match self.arguments {
            Arguments::Json(value) => out.extend_from_slice(value),
            Arguments::Input(text) => {
                out.extend_from_slice(b"{\"input\":");
                write_texts(&[text], "", out);
                out.push(b'}');
            }
        }
        out.extend_from_slice(b"}}");
    }
}

/// JSON of all messages.
pub(super) fn to_json(messages: &[ChatMessage<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    write_list(messages, ChatMessage::write, &mut out);
    out
}

/// Writes a list of what `write` writes.
pub(super) fn write_list<T>(items: &[T], write: impl Fn(&T, &mut Vec<u8>), out: &mut Vec<u8>) {
    out.push(b'[');
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        write(item, out);
    }
    out.push(b']');
}

/// Writes texts with their escapes as one string. `between` is JSON too.
pub(super) fn write_texts(texts: &[&[u8]], between: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for (n, text) in texts.iter().enumerate() {
        if n > 0 {
            out.extend_from_slice(between.as_bytes());
        }
        out.extend_from_slice(text);
    }
    out.push(b'"');
}
