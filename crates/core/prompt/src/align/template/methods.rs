//! String methods for templates, where Python's differ from minijinja-contrib's.

use minijinja::value::from_args;
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python::is_space;

/// Calls a method that minijinja itself does not have.
pub(crate) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match value.as_str().map(|text| on_text(text, name, arguments)) {
        Some(Ok(Some(result))) => Ok(result),
        Some(Err(error)) => Err(error),
        Some(Ok(None)) | None => unknown_method_callback(state, value, name, arguments),
    }
}

fn on_text(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let result = match name {
        "strip" | "lstrip" | "rstrip" if arguments.is_empty() => {
            let text = if name == "rstrip" { text } else { text.trim_start_matches(is_space) };
            let text = if name == "lstrip" { text } else { text.trim_end_matches(is_space) };
            Value::from(text)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" => {
            let (at,): (&str,) = from_args(arguments)?;
            let (before, after) = text.split_once(at).map_or((text, None), |(a, b)| (a, Some(b)));
            list([before, after.map_or("", |_| at), after.unwrap_or_default()])
        }
        "rpartition" => {
            let (at,): (&str,) = from_args(arguments)?;
            let (before, after) = text.rsplit_once(at).map_or((None, text), |(a, b)| (Some(a), b));
            list([before.unwrap_or_default(), before.map_or("", |_| at), after])
        }
        "rsplit" => {
            let (at, most): (&str, Option<usize>) = from_args(arguments)?;
            let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
            let mut parts: Vec<&str> = text.rsplitn(most, at).collect();
            parts.reverse();
            list(parts)
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn list<'t>(parts: impl IntoIterator<Item = &'t str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.set_unknown_method_callback(call);
        environment.render_str(source, Value::from_pairs([("x", "  a-b-c\x1c\n")])).unwrap()
    }

    #[test]
    fn strings_have_python_s_methods() {
        for (source, text) in [
            ("[{{ x.strip() }}]", "[a-b-c]"),
            ("[{{ x.lstrip().rstrip('\n') }}]", "[a-b-c\x1c]"),
            ("{{ x.strip().removeprefix('a-').removesuffix('-c').removesuffix('z') }}", "b"),
            ("{{ x.strip().partition('-')[2] }}{{ 'q'.partition('-')[0] }}", "b-cq"),
            ("{{ x.strip().rpartition('-')[0] }}{{ 'q'.rpartition('-')[2] }}", "a-bq"),
            ("{{ x.strip().rsplit('-', 1)[0] }}", "a-b"),
            ("{{ x.strip().split('-')[-1] }}", "c"),
            ("{{ x.upper().strip() }}", "A-B-C"),
        ] {
            assert_eq!(render(source), text, "{source}");
        }
    }
}
