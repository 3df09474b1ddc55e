//! Where requests name their session: headers and paths in the body, in order.
//!
//! Agents and chat clients all name their session somewhere else. docs/policies.md lists what each of them sends. The
//! body is searched while it is read (`warmroute_prompt::JsonPath`), never a second time.

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};
use warmroute_prompt::{Body, JsonPath};
use xxhash_rust::xxh3::xxh3_64;

/// Headers that name one conversation or one run of an agent.
const SESSION_HEADERS: [&str; 9] = [
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-opencode-session",
    "x-openwebui-chat-id",
    "x-litellm-session-id",
    "x-smg-routing-key",
];

/// Fields of bodies that do.
const SESSION_FIELDS: [&str; 5] =
    ["session_id", "prompt_cache_key", "litellm_session_id", "metadata.session_id", "metadata.user_id"];

/// Names of users and tenants, from the narrowest to the widest.
const USER_SOURCES: [&str; 6] = [
    "header:x-user-id",
    "header:x-openwebui-user-id",
    "body:user",
    "body:safety_identifier",
    "header:x-tenant-id",
    "header:x-correlation-id",
];

/// A source of session names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKey {
    /// A request header.
    Header(HeaderName),
    /// A value in the body.
    Body(JsonPath),
}

impl SessionKey {
    /// The order that suits most clients: names of conversations before names of users.
    pub fn default_order() -> Vec<SessionKey> {
        let headers = SESSION_HEADERS.iter().map(|name| format!("header:{name}"));
        let fields = SESSION_FIELDS.iter().map(|path| format!("body:{path}"));
        let users = USER_SOURCES.iter().map(|source| (*source).to_owned());
        let all = headers.chain(fields).chain(users);
        all.map(|source| source.parse().expect("a test reads the list")).collect()
    }
}

impl FromStr for SessionKey {
    type Err = String;

    /// Parses `header:NAME` or `body:PATH`.
    fn from_str(text: &str) -> Result<SessionKey, String> {
        let wrong =
            || format!("`{text}`: expected header:NAME or body:PATH, for example body:metadata.user_id");
        match text.split_once(':').ok_or_else(wrong)? {
            ("header", name) => HeaderName::from_str(name).map(SessionKey::Header).map_err(|_| wrong()),
            ("body", path) => path.parse().map(SessionKey::Body).map_err(|why| format!("`{text}`: {why}")),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionKey::Header(name) => write!(f, "header:{name}"),
            SessionKey::Body(path) => write!(f, "body:{path}"),
        }
    }
}

/// All sources of session names, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionKeys {
    order: Vec<Source>,
    paths: Vec<JsonPath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Header(HeaderName),
    /// The path at this place.
    Body(usize),
}

impl SessionKeys {
    /// These sources, in this order.
    pub fn new(keys: Vec<SessionKey>) -> SessionKeys {
        let mut paths = Vec::new();
        let order = keys.into_iter().map(|key| match key {
            SessionKey::Header(name) => Source::Header(name),
            SessionKey::Body(path) => {
                paths.push(path);
                Source::Body(paths.len() - 1)
            }
        });
        SessionKeys { order: order.collect(), paths }
    }

    /// The paths for [`Body::read_with`].
    pub(crate) fn paths(&self) -> &[JsonPath] {
        &self.paths
    }

    /// The hash of the first session name that the request carries. The body was read with [`SessionKeys::paths`], or
    /// is empty.
    pub(crate) fn find(&self, headers: &HeaderMap, body: &Body<'_>) -> Option<u64> {
        // Most requests have none of these headers, and the lengths of the names show that.
        let length_bit = |name: &HeaderName| 1_u64 << name.as_str().len().min(63);
        let lengths = headers.keys().fold(0, |lengths, name| lengths | length_bit(name));
        self.order.iter().find_map(|source| match source {
            Source::Header(name) if lengths & length_bit(name) == 0 => None,
            Source::Header(name) => {
                headers.get(name).filter(|value| !value.is_empty()).map(|value| xxh3_64(value.as_bytes()))
            }
            Source::Body(place) => body.found(*place).map(|value| xxh3_64(&value)),
        })
    }
}

impl Default for SessionKeys {
    fn default() -> SessionKeys {
        SessionKeys::new(SessionKey::default_order())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn session_keys_print_as_they_parse() {
        for key in SessionKey::default_order() {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        assert_eq!("body:a.0.b".parse::<SessionKey>().unwrap().to_string(), "body:a.0.b");
        for wrong in ["x-user", "body:", "body:a..b", "header:", "header:a b", "path:a"] {
            assert!(wrong.parse::<SessionKey>().is_err(), "{wrong}");
        }
    }

    fn found(keys: &SessionKeys, header: Option<(&'static str, &'static str)>, json: &str) -> Option<u64> {
        let headers =
            header.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let body = Body::read_with(json.as_bytes(), keys.paths(), |_| None).unwrap();
        keys.find(&headers.into_iter().collect(), &body)
    }

    /// What each client sends, as docs/policies.md lists it.
    #[test]
    fn the_sessions_of_common_clients_are_found() {
        let keys = SessionKeys::default();
        let is = |name: &str| Some(xxh3_64(name.as_bytes()));
        for (client, header, json, name) in [
            (
                "Claude Code",
                Some(("x-claude-code-session-id", "s1")),
                r#"{"metadata":{"user_id":"u"}}"#,
                "s1",
            ),
            (
                "Claude Code before 2.1.86",
                None,
                r#"{"metadata":{"user_id":"user_a_session_b"}}"#,
                "user_a_session_b",
            ),
            ("Codex", Some(("session-id", "s2")), r#"{"prompt_cache_key":"p"}"#, "s2"),
            ("Codex, earlier", Some(("session_id", "s3")), r#"{"prompt_cache_key":"p"}"#, "s3"),
            ("OpenAI SDK", None, r#"{"user":"u","prompt_cache_key":"p1"}"#, "p1"),
            ("OpenAI SDK", None, r#"{"user":"u"}"#, "u"),
            ("OpenCode", Some(("x-session-affinity", "s4")), "{}", "s4"),
            ("Open WebUI", Some(("x-openwebui-chat-id", "c1")), r#"{"user":"u"}"#, "c1"),
            ("LibreChat", None, r#"{"user":"66a"}"#, "66a"),
            ("LiteLLM", None, r#"{"litellm_session_id":"l1","user":"u"}"#, "l1"),
        ] {
            assert_eq!(found(&keys, header, json), is(name), "{client}");
        }
        assert_eq!(found(&keys, None, r#"{"user":"","metadata":{"user_id":null}}"#), None);
    }

    #[test]
    fn the_configured_order_counts() {
        let keys = ["body:meta.ids.1", "header:x-mine", "body:user"];
        let keys = SessionKeys::new(keys.iter().map(|key| key.parse().unwrap()).collect());
        let header = Some(("x-mine", "h"));
        let is = |name: &str| Some(xxh3_64(name.as_bytes()));
        assert_eq!(found(&keys, header, r#"{"user":"u","meta":{"ids":["a",7]}}"#), is("7"));
        assert_eq!(found(&keys, header, r#"{"user":"u","meta":{"ids":["a"]}}"#), is("h"));
        assert_eq!(found(&keys, None, r#"{"user":"u"}"#), is("u"));
    }
}
