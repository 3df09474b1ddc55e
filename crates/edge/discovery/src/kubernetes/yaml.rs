//! Reads the YAML of kubeconfigs: mappings, lists and scalars in block style, as Kubernetes tools write it.
//!
//! A YAML library would be the project's largest parser, for one file that is read at the start. Flow style (except `{}`
//! and `[]`), anchors, tags and several documents are refused with the line, and with the command that writes JSON.

use serde_json::{Map, Value};

/// Deepest nesting. Kubeconfigs have six levels.
const DEPTH_MAX: usize = 32;

/// The text is not in the subset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}; `kubectl config view --raw --flatten -o json` writes a file that can be read")]
pub(super) struct BadYaml {
    pub line: usize,
    pub why: &'static str,
}

/// A line without its indentation, comments and empty lines.
#[derive(Clone, Copy, Debug)]
struct Row<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// Parses a document.
pub(super) fn parse(text: &str) -> Result<Value, BadYaml> {
    let mut rows = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let content = line.trim_start_matches(' ');
        let row = Row { number: i + 1, indent: line.len() - content.len(), text: content.trim_end() };
        if content.starts_with('\t') {
            return Err(row.bad("a tab in the indentation"));
        }
        let is_start = row.text == "---" && rows.is_empty();
        if !row.text.is_empty() && !row.text.starts_with('#') && !is_start {
            rows.push(row);
        }
    }
    let mut parser = Parser { rows: &rows, at: 0 };
    let value = match parser.peek() {
        Some(first) => parser.block(first.indent, 0)?,
        None => Value::Null,
    };
    match parser.peek() {
        Some(rest) => Err(rest.bad("wrong indentation")),
        None => Ok(value),
    }
}

impl Row<'_> {
    fn bad(&self, why: &'static str) -> BadYaml {
        BadYaml { line: self.number, why }
    }
}

struct Parser<'a> {
    rows: &'a [Row<'a>],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Row<'a>> {
        self.rows.get(self.at).copied()
    }

    /// A mapping or a list whose rows have this indentation.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Value, BadYaml> {
        let Some(first) = self.peek() else { return Ok(Value::Null) };
        if depth > DEPTH_MAX {
            return Err(first.bad("too deeply nested"));
        }
        if is_item(first.text) { self.list(indent, depth) } else { self.mapping(indent, depth) }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Value, BadYaml> {
        let mut items = Vec::new();
        while let Some(row) = self.peek().filter(|row| row.indent == indent && is_item(row.text)) {
            let rest = row.text[1..].trim_start();
            let inner = Row { indent: indent + row.text.len() - rest.len(), text: rest, ..row };
            if is_item(rest) {
                return Err(row.bad("a list in a list's row"));
            } else if rest.is_empty() {
                self.at += 1;
                items.push(self.nested(indent, depth)?);
            } else if split_key(rest).is_some() {
                items.push(self.mapping_from(inner, depth + 1)?);
            } else {
                self.at += 1;
                items.push(self.scalar(inner, indent)?);
            }
        }
        Ok(Value::Array(items))
    }

    fn mapping(&mut self, indent: usize, depth: usize) -> Result<Value, BadYaml> {
        match self.peek().filter(|row| row.indent == indent) {
            Some(first) => self.mapping_from(first, depth),
            None => Ok(Value::Null),
        }
    }

    /// A mapping whose first row may stand behind the hyphen of a list's item.
    fn mapping_from(&mut self, first: Row<'a>, depth: usize) -> Result<Value, BadYaml> {
        let mut entries = Map::new();
        let mut next = Some(first);
        while let Some(row) = next {
            let (key, rest) = split_key(row.text).ok_or_else(|| row.bad("expected `key: value`"))?;
            let key = key_of(key).ok_or_else(|| row.bad("unsupported key"))?;
            self.at += 1;
            let value = if rest.is_empty() {
                self.nested_or_list(row.indent, depth)?
            } else {
                self.scalar(Row { text: rest, ..row }, row.indent)?
            };
            if entries.insert(key, value).is_some() {
                return Err(row.bad("the key is set twice"));
            }
            next = self.peek().filter(|row| row.indent == first.indent && !is_item(row.text));
        }
        Ok(Value::Object(entries))
    }

    /// The block below a key. A list may have the indentation of its key.
    fn nested_or_list(&mut self, indent: usize, depth: usize) -> Result<Value, BadYaml> {
        match self.peek() {
            Some(row) if row.indent == indent && is_item(row.text) => self.list(indent, depth + 1),
            _ => self.nested(indent, depth),
        }
    }

    fn nested(&mut self, indent: usize, depth: usize) -> Result<Value, BadYaml> {
        match self.peek() {
            Some(row) if row.indent > indent => self.block(row.indent, depth + 1),
            _ => Ok(Value::Null),
        }
    }

    /// A scalar. A plain one may continue on rows that are further indented.
    fn scalar(&mut self, row: Row<'a>, indent: usize) -> Result<Value, BadYaml> {
        let text = row.text;
        match text.as_bytes()[0] {
            b'"' => return quoted(text).map(Value::String).ok_or_else(|| row.bad("invalid quoted text")),
            b'\'' => {
                return single_quoted(text).map(Value::String).ok_or_else(|| row.bad("invalid quoted text"));
            }
            b'|' | b'>' => return self.literal(row, indent),
            b'{' if text == "{}" => return Ok(Value::Object(Map::new())),
            b'[' if text == "[]" => return Ok(Value::Array(Vec::new())),
            b'{' | b'[' | b'&' | b'*' | b'!' | b'%' | b'@' | b'`' => {
                return Err(row.bad("flow style, anchors and tags are not supported"));
            }
            _ => {}
        }
        let mut plain = without_comment(text).to_owned();
        while let Some(more) = self.peek().filter(|more| more.indent > indent) {
            plain.push(' ');
            plain.push_str(without_comment(more.text));
            self.at += 1;
        }
        Ok(match plain.as_str() {
            "null" | "~" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => Value::String(plain),
        })
    }

    /// A text block. Its lines are joined as they are, or by spaces.
    fn literal(&mut self, row: Row<'a>, indent: usize) -> Result<Value, BadYaml> {
        let separator = match row.text {
            "|" | "|-" => "\n",
            ">" | ">-" => " ",
            _ => return Err(row.bad("unsupported text block")),
        };
        let mut lines = Vec::new();
        while let Some(line) = self.peek().filter(|line| line.indent > indent) {
            lines.push(line.text);
            self.at += 1;
        }
        Ok(Value::String(lines.join(separator)))
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// The key and the value of a row.
fn split_key(text: &str) -> Option<(&str, &str)> {
    let end = match text.as_bytes()[0] {
        quote @ (b'"' | b'\'') => 2 + text[1..].find(char::from(quote))?,
        _ => 0,
    };
    let colon = end + text[end..].find(':')?;
    let (key, rest) = (&text[..colon], &text[colon + 1..]);
    let rest = if rest.is_empty() { Some("") } else { rest.strip_prefix(' ').map(str::trim_start) };
    rest.map(|rest| (key, if rest.starts_with('#') { "" } else { rest }))
}

fn key_of(text: &str) -> Option<String> {
    match text.as_bytes().first()? {
        b'"' => quoted(text),
        b'\'' => single_quoted(text),
        b'?' | b'&' | b'*' | b'!' | b'{' | b'[' => None,
        _ => Some(text.trim_end().to_owned()),
    }
}

/// YAML's double quotes are JSON's, with more escapes that no kubeconfig needs.
fn quoted(text: &str) -> Option<String> {
    let end = 1 + text.rfind('"')?;
    without_comment(&text[end..]).trim().is_empty().then(|| serde_json::from_str(&text[..end]).ok())?
}

fn single_quoted(text: &str) -> Option<String> {
    let end = text.rfind('\'').filter(|&end| end > 0)?;
    let inner = &text[1..end];
    let is_closed = without_comment(&text[end + 1..]).trim().is_empty();
    let is_escaped = !inner.replace("''", "").contains('\'');
    (is_closed && is_escaped).then(|| inner.replace("''", "'"))
}

fn without_comment(text: &str) -> &str {
    match text.starts_with('#') {
        true => "",
        false => text.split(" #").next().unwrap_or_default().trim_end(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn block_style_is_read() {
        for (text, value) in [
            ("", json!(null)),
            ("---\na: b\n", json!({"a": "b"})),
            ("a:\n  b: c # why\n  d: 'it''s'\n", json!({"a": {"b": "c", "d": "it's"}})),
            ("a:\n- b: 1\n  c: 2\n- d\n", json!({"a": [{"b": "1", "c": "2"}, "d"]})),
            (
                "a:\n  - b:\n      c: x\n    d: y\ne: z\n",
                json!({"a": [{"b": {"c": "x"}, "d": "y"}], "e": "z"}),
            ),
            (
                "a: {}\nb: []\nc: null\nd:\ne: true\n",
                json!({"a": {}, "b": [], "c": null, "d": null, "e": true}),
            ),
            ("a: \"x: \\\"y\\\" # z\"\n", json!({"a": "x: \"y\" # z"})),
            ("a: http://h:1/p#q\n", json!({"a": "http://h:1/p#q"})),
            ("a: one\n  two\nb: three\n", json!({"a": "one two", "b": "three"})),
            ("a: |\n  x\n  y\nb: z\n", json!({"a": "x\ny", "b": "z"})),
            ("\"k\": v\n", json!({"k": "v"})),
            ("-\n  a: b\n", json!([{"a": "b"}])),
        ] {
            assert_eq!(parse(text).unwrap_or_else(|bad| panic!("{text}: {bad}")), value, "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_line() {
        for (text, line) in [
            ("a: {b: c}", 1),
            ("a: b\nc: [d]", 2),
            ("a: &x b", 1),
            ("a: b\n\tc: d", 2),
            ("a: b\na: c", 2),
            ("a:\n    b: c\n  d: e", 3),
            ("just text", 1),
            ("- a\n- - b", 2),
            ("a: \"open", 1),
            ("a: b\n---\nc: d", 2),
        ] {
            let bad = parse(text).map(|value| format!("{text}: {value}")).unwrap_err();
            assert_eq!(bad.line, line, "{text}");
        }
        let deep: String = (0..100).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
        assert_eq!(parse(&deep).unwrap_err().why, "too deeply nested");
    }

    proptest::proptest! {
        /// Any text is read or refused, without a panic.
        #[test]
        fn any_text_is_read_or_refused(text in "[ab:{}\\[\\]\"'|>#&\\- \n\t]{0,60}") {
            _ = parse(&text);
        }
    }
}
