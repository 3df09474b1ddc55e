//! Whether a template refuses a system message after the first message, by the same trial as vLLM's.

use minijinja::Value;
use minijinja::syntax::SyntaxConfig;

use super::{NAME, environment, unless_panicked};

/// Renders a conversation with two system messages. vLLM renders it in plain Jinja2, without the functions and tags
/// that transformers adds: a template that tells the time here, or marks what is generated, counts as refusing.
pub(super) fn is_refused(source: &str, syntax: SyntaxConfig) -> bool {
    let mut environment = environment(syntax);
    let message = |role: &str| Value::from_pairs([("role", role), ("content", "t")]);
    let messages: Vec<Value> = ["system", "user", "system", "user"].map(message).into();
    let variables = [("messages", Value::from(messages)), ("add_generation_prompt", Value::from(false))];
    if environment.add_template_owned(NAME, source.to_owned()).is_err() {
        return true;
    }
    let template = environment.get_template(NAME);
    let rendered =
        unless_panicked(|| template.and_then(|template| template.render(Value::from_pairs(variables))));
    rendered.is_none_or(|rendered| rendered.is_err())
}
