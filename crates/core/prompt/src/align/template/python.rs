//! Values as Python prints them.
//!
//! Templates are written for Jinja2, where printing a value calls `str()`. `True`, `None`, lists and maps
//! have their own spelling in Python, and templates for tools print them.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::ValueKind;

/// Writes a value as `str()` does.
pub(crate) fn write_str(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        _ => write_repr(value, out),
    }
}

/// Writes a value as `repr()` does.
pub(crate) fn write_repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => write_number(value, out),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (n, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if n > 0 { ", " } else { "" });
                write_repr(&key, out);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (n, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if n > 0 { ", " } else { "" });
                write_repr(&item, out);
            }
            out.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            out.push(close);
        }
        _ => write!(out, "{value}").expect("a string takes everything"),
    }
}

/// Writes a quoted string as Python does: in single quotes, unless double quotes avoid an escape.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            letter if letter == quote => out.extend(['\\', letter]),
            '\0'..' ' | '\x7f'..'\u{a1}' | '\u{ad}' => {
                write!(out, "\\x{:02x}", letter as u32).expect("a string takes everything");
            }
            letter => out.push(letter),
        }
    }
    out.push(quote);
}

/// Writes integers as they are, and other numbers in Python's shortest form.
pub(crate) fn write_number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => write_float(number, out),
        _ => write!(out, "{value}").expect("a string takes everything"),
    }
}

/// Writes the shortest digits of a number, with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn write_float(number: f64, out: &mut String) {
    if !number.is_finite() {
        return out.push_str(match number {
            n if n.is_nan() => "nan",
            n if n > 0.0 => "inf",
            _ => "-inf",
        });
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse().unwrap_or(0) {
        -4..16 if number.fract() == 0.0 => write!(out, "{number:.1}"),
        -4..16 => write!(out, "{number}"),
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            write!(out, "{digits}e{sign}{:02}", i32::abs(exponent))
        }
    }
    .expect("a string takes everything");
}

/// Whether Python's `str.strip` removes a character: Unicode white space and the four ASCII separators.
pub(crate) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\x1c'..='\x1f')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repr(value: impl Into<Value>) -> String {
        let mut out = String::new();
        write_repr(&value.into(), &mut out);
        out
    }

    #[test]
    fn values_are_spelled_as_in_python() {
        assert_eq!(
            repr(vec![Value::from(true), Value::from(()), Value::from(1), Value::from("a")]),
            "[True, None, 1, 'a']"
        );
        assert_eq!(
            repr(Value::from_pairs([("b", Value::from(1.0)), ("a", Value::from("it's"))])),
            r#"{'b': 1.0, 'a': "it's"}"#
        );
        assert_eq!(repr("a\n\"'\u{7f}é"), r#"'a\n"\'\x7fé'"#);
    }

    #[test]
    fn floats_have_python_s_shortest_form() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5e-7, "-2.5e-07"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (-0.0, "-0.0"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(repr(number), text);
        }
    }
}
