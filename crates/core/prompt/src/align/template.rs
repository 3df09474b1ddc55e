//! Chat template of a model, run as the engine runs it.
//!
//! Engines run templates with Jinja2 in the environment that transformers sets up. Here minijinja runs them
//! in the same environment: trimmed blocks, Python's methods and spellings, `tojson` as `json.dumps`,
//! `raise_exception`, `strftime_now`, `{% generation %}` blocks. Templates are compiled once; rendering
//! copies long contents only where the template creates new strings.

mod content_format;
mod dumps;
mod late_system;
mod methods;
mod python;
mod strftime;

use minijinja::machinery::{eval, get_compiled_template, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

pub(crate) use content_format::ContentFormat;

use super::unaligned::{Unaligned, Unrendered};

/// One compiled template.
pub(crate) struct Template {
    environment: Environment<'static>,
    pub format: ContentFormat,
    /// Whether it supports the role `developer`, by the same text search as vLLM's.
    pub knows_developer: bool,
    /// Whether it refers to contents, without which a message cannot be continued.
    pub mentions_content: bool,
    /// Whether vLLM finds that it refuses a system message after the first message.
    pub refuses_late_system: bool,
    tells_time: bool,
}

/// Name of the only template in its environment.
const NAME: &str = "chat_template";

impl Template {
    pub fn new(source: &str) -> Result<Template, Unaligned> {
        let plain = without_generation(source);
        let syntax = syntax().map_err(|error| unusable(&error))?;
        let tree =
            minijinja::machinery::parse(&plain, NAME, syntax.clone()).map_err(|error| unusable(&error))?;
        let format = ContentFormat::of(&tree);
        let refuses_late_system = plain != source || late_system::is_refused(&plain, syntax.clone());
        let mut environment = environment(syntax);
        environment.add_template_owned(NAME, plain.clone()).map_err(|error| unusable(&error))?;
        let template = Template {
            environment,
            format,
            knows_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            mentions_content: source.contains("content"),
            refuses_late_system,
            tells_time: source.contains("strftime_now"),
        };
        template.try_out()?;
        Ok(template)
    }

    /// Renders into an empty text, whose capacity is reused: prompts are long, and fresh memory is slow.
    pub fn render(
        &self,
        mut variables: Vec<(Value, Value)>,
        unix_s: u64,
        text: &mut String,
    ) -> Result<(), Unrendered> {
        if self.tells_time {
            variables.push((Value::from("strftime_now"), clock(unix_s)));
        }
        let failed = |error: Error| Unrendered::TemplateFailed { line: error.line().unwrap_or(0) };
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let compiled = get_compiled_template(&template);
        let (root, mut out) = (Value::from_pairs(variables), make_string_output(text));
        let (instructions, blocks) = (&compiled.instructions, &compiled.blocks);
        let rendered = unless_panicked(|| {
            eval(&self.environment, instructions, root, blocks, &mut out, AutoEscape::None).map(|_| ())
        });
        rendered.ok_or(Unrendered::TemplateFailed { line: 0 })?.map_err(failed)
    }

    /// Renders a small conversation, so that unsupported functions fail now and not in production. A template
    /// may refuse this conversation for its own reasons.
    fn try_out(&self) -> Result<(), Unaligned> {
        let message = Value::from_pairs([("role", "user"), ("content", "Hi")]);
        let variables = [
            ("messages", Value::from(vec![message])),
            ("add_generation_prompt", Value::from(true)),
            ("strftime_now", clock(0)),
        ];
        let template = self.environment.get_template(NAME).map_err(|error| unusable(&error))?;
        match unless_panicked(|| template.render(Value::from_pairs(variables))) {
            Some(Err(error)) if is_missing_part(&error) => Err(unusable(&error)),
            Some(_) => Ok(()),
            None => Err(Unaligned::Template { problem: "it cannot be rendered".to_owned(), line: 0 }),
        }
    }
}

/// What `work` returns; `None` if it panics. The engine of templates overflows in some expressions, and a template comes
/// from a model's files.
fn unless_panicked<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("format", &self.format).finish_non_exhaustive()
    }
}

fn is_missing_part(error: &Error) -> bool {
    use ErrorKind::{UnknownFilter, UnknownFunction, UnknownMethod, UnknownTest};
    matches!(error.kind(), UnknownFilter | UnknownFunction | UnknownMethod | UnknownTest)
}

fn unusable(error: &Error) -> Unaligned {
    let problem = error
        .detail()
        .map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    Unaligned::Template { problem, line: error.line().unwrap_or(0) }
}

fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn environment(syntax: SyntaxConfig) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&python_str(value)).map_err(Error::from),
    });
    environment.add_function("raise_exception", |words: Rest<Value>| -> Result<Value, Error> {
        let words = words.first().map(python_str).unwrap_or_default();
        Err(Error::new(ErrorKind::InvalidOperation, words))
    });
    environment.add_filter("tojson", dumps::tojson);
    environment.add_filter("trim", trim);
    environment.add_filter("string", |value: &Value| python_str(value));
    environment.add_filter("join", join);
    // In Jinja2 strings and maps are sequences.
    let is_sequence =
        |value: &Value| matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map);
    environment.add_test("sequence", is_sequence);
    environment
}

fn clock(unix_s: u64) -> Value {
    Value::from_function(move |format: &str| {
        let unknown = || Error::new(ErrorKind::UnknownFunction, "strftime directive");
        strftime::strftime(format, unix_s).ok_or_else(unknown)
    })
}

fn python_str(value: &Value) -> String {
    let mut out = String::new();
    python::write_str(value, &mut out);
    out
}

fn trim(text: &str, letters: Option<&str>) -> String {
    match letters {
        Some(letters) => text.trim_matches(|letter| letters.contains(letter)).to_owned(),
        None => text.trim_matches(python::is_space).to_owned(),
    }
}

fn join(values: &Value, between: Option<&str>, attribute: Option<&str>) -> Result<String, Error> {
    let mut out = String::new();
    for (n, value) in values.try_iter()?.enumerate() {
        if n > 0 {
            out.push_str(between.unwrap_or_default());
        }
        match attribute {
            Some(name) => python::write_str(&value.get_attr(name)?, &mut out),
            None => python::write_str(&value, &mut out),
        }
    }
    Ok(out)
}

/// Replaces `{% generation %}`, which marks the model's output for training and renders its content.
/// minijinja has no custom tags, so it becomes a condition that always holds, with the same white-space
/// rules.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let name_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        let name = &tag[name_at..];
        let name = &name
            [..name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len())];
        let replacement = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => name,
        };
        out.push_str(&tag[..name_at]);
        out.push_str(replacement);
        rest = &tag[name_at + name.len()..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> String {
        let tools = Value::from(vec![Value::from_pairs([("strict", true)])]);
        let variables = vec![(Value::from("tools"), tools), (Value::from("n"), Value::from(()))];
        let mut text = String::new();
        Template::new(source).unwrap().render(variables, 1_751_896_920, &mut text).unwrap();
        text
    }

    #[test]
    fn values_are_printed_as_by_jinja2() {
        for (source, text) in [
            ("{{ tools[0].strict }} {{ n }} {{ missing }}|{{ tools }}", "True None |[{'strict': True}]"),
            ("{{ ['a', true] | join('-') }}{{ none | string }}", "a-TrueNone"),
            ("{{ 'x' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}", "TrueTrueFalse"),
            ("{{ ' a\x1f ' | trim }}", "a"),
            ("{{ strftime_now('%d %b %Y') }}", "07 Jul 2025"),
            ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
            ("{{ tools[::-1] | length }}", "1"),
        ] {
            assert_eq!(render(source), text, "{source}");
        }
    }

    #[test]
    fn a_generation_block_renders_its_content() {
        let source = "a\n  {%- generation -%}\n  b{{ n }}\n{% endgeneration %}\nc {% set generation_x = 1 %}{{ generation_x }}";
        assert_eq!(render(source), "abNone\nc 1");
    }

    #[test]
    fn a_template_with_unsupported_functions_is_refused_at_once() {
        for (source, words) in [
            ("{% for m in messages %}{{ m", "syntax error"),
            ("\n{{ messages | frobnicate }}", "frobnicate"),
            ("{{ messages[0].content.frob() }}", "unknown method"),
            ("{{ frob(1) }}", "frob"),
        ] {
            let refused = Template::new(source).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_conversation_that_the_template_refuses_is_not_rendered() {
        let template = Template::new("{% if n is none %}\n{{ raise_exception('no') }}{% endif %}").unwrap();
        let variables = vec![(Value::from("n"), Value::from(()))];
        assert_eq!(
            template.render(variables, 0, &mut String::new()),
            Err(Unrendered::TemplateFailed { line: 2 })
        );
    }
}
