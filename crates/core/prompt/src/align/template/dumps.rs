//! `tojson`, printed as by Python's `json.dumps`.
//!
//! Tools and their arguments reach the prompt through this filter, so every byte matters: `", "` and `": "`
//! as separators, no HTML escapes, non-ASCII characters unescaped unless the template asks otherwise, keys in
//! their own order.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::python::write_number;

/// The filter: `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(crate) fn tojson(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let layout = Layout::read(&arguments.into_values())?;
    let mut out = String::new();
    layout.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

/// Layout of the text.
struct Layout {
    is_ascii: bool,
    indent: Option<String>,
    between_items: String,
    after_key: String,
    is_sorted: bool,
}

impl Layout {
    fn read(arguments: &[Value]) -> Result<Layout, Error> {
        let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
        let argument = |at: usize, name: &str| match positional.get(at) {
            Some(value) => Ok(value.clone()),
            None => named.get::<Option<Value>>(name).map(Option::unwrap_or_default),
        };
        let indent = indent_of(&argument(1, "indent")?);
        let separators = argument(2, "separators")?;
        let separator = |at: usize, default: &str| match separators.get_item_by_index(at) {
            Ok(text) if text.as_str().is_some() => text.as_str().unwrap_or_default().to_owned(),
            _ => default.to_owned(),
        };
        let layout = Layout {
            is_ascii: argument(0, "ensure_ascii")?.is_true(),
            between_items: separator(0, if indent.is_some() { "," } else { ", " }),
            after_key: separator(1, ": "),
            indent,
            is_sorted: argument(3, "sort_keys")?.is_true(),
        };
        named.assert_all_used()?;
        Ok(layout)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_list(&items, depth, ('[', ']'), out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.is_sorted {
                    keys.sort();
                }
                self.write_list(&keys, depth, ('{', '}'), out, |key, out| {
                    self.write_key(key, out);
                    out.push_str(&self.after_key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            // Python also refuses undefined values.
            other => return Err(Error::new(ErrorKind::InvalidOperation, format!("{other} is no JSON"))),
        }
        Ok(())
    }

    fn write_list(
        &self,
        items: &[Value],
        depth: usize,
        (open, close): (char, char),
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                out.push_str(&self.between_items);
            }
            self.break_line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    /// Writes a key. Python writes numbers, `true` and `null` as strings.
    fn write_key(&self, key: &Value, out: &mut String) {
        match key.as_str() {
            Some(key) => self.write_text(key, out),
            None => self.write_text(&key.to_string(), out),
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                letter if letter < ' ' || (self.is_ascii && letter > '~') => write_escape(letter, out),
                letter => out.push(letter),
            }
        }
        out.push('"');
    }
}

fn indent_of(indent: &Value) -> Option<String> {
    indent.as_str().map(str::to_owned).or_else(|| Some(" ".repeat(indent.as_usize()?)))
}

fn write_escape(letter: char, out: &mut String) {
    // DEL is ASCII and stays unescaped.
    if letter == '\x7f' {
        return out.push(letter);
    }
    for unit in letter.encode_utf16(&mut [0; 2]) {
        write!(out, "\\u{unit:04x}").expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(source: &str) -> String {
        let mut environment = minijinja::Environment::new();
        environment.add_filter("tojson", tojson);
        let value = Value::from_pairs([
            ("b", Value::from(vec![Value::from(1), Value::from(0.5), Value::from(())])),
            ("a", Value::from("<é&'\"\n\u{1f600}")),
            ("e", Value::from(Vec::<Value>::new())),
        ]);
        environment.render_str(source, Value::from_pairs([("x", value)])).unwrap()
    }

    #[test]
    fn the_default_equals_python_without_ascii_escapes() {
        assert_eq!(
            json("{{ x | tojson }}"),
            "{\"b\": [1, 0.5, null], \"a\": \"<é&'\\\"\\n\u{1f600}\", \"e\": []}"
        );
    }

    #[test]
    fn every_argument_of_python_is_supported() {
        let indented = "{\n  \"b\": [\n    1,\n    0.5,\n    null\n  ],\n  \"a\": \"<é&'\\\"\\n\u{1f600}\",\n  \"e\": []\n}";
        assert_eq!(json("{{ x | tojson(indent=2) }}"), indented);
        assert_eq!(
            json("{{ x | tojson(separators=(',', ':'), sort_keys=true) }}"),
            "{\"a\":\"<é&'\\\"\\n\u{1f600}\",\"b\":[1,0.5,null],\"e\":[]}"
        );
        assert_eq!(json("{{ x.a | tojson(ensure_ascii=true) }}"), r#""<\u00e9&'\"\n\ud83d\ude00""#);
        assert_eq!(
            json("{{ x.a | tojson(true) }}"),
            r#""<\u00e9&'\"\n\ud83d\ude00""#,
            "the first argument is ensure_ascii"
        );
    }
}
