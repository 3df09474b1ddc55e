//! Parse errors for users: without the offending value, because a token in the wrong field must not reach a log, and
//! with words in place of what the standard library says.

/// Beginnings of serde's messages that quote a value, up to what was expected instead.
const QUOTING: [&str; 3] = ["invalid type", "invalid value", "unknown variant"];

/// A serde message without the value that it quotes, in plain words. Names of keys stay.
pub fn redact_values(message: &str) -> String {
    let Some(what) = QUOTING.iter().find(|what| message.starts_with(**what)) else {
        return in_words(message);
    };
    // The last match is serde's own; earlier ones may be part of the value.
    let expected = message.rfind(", expected ").map_or("", |at| &message[at..]);
    format!("{what}{}", in_words(expected))
}

/// What a value of a type looks like, by the name of the type.
const FORMS: [(&str, &str); 10] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0 on"),
    ("usize", "a whole number from 0 on"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("IpAddr", "an IP address, such as 0.0.0.0 or ::1"),
    ("Uri", "a URL, such as http://127.0.0.1:8080"),
    ("SocketAddr", "an IP address with a port, such as 0.0.0.0:7946 or [::1]:7946"),
];

/// What a value of this type looks like.
pub fn form_of(type_name: &str) -> Option<&'static str> {
    FORMS.iter().find(|(name, _)| *name == type_name).map(|(_, form)| *form)
}

/// Messages of the standard library and of parsers, and what to tell users instead.
const WORDS: [(&str, &str); 12] = [
    ("invalid digit found in string", "expected a whole number"),
    ("cannot parse integer from empty string", "expected a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "expected a number"),
    ("cannot parse float from empty string", "expected a number"),
    ("provided string was not `true` or `false`", "expected true or false"),
    ("expected a boolean", "expected true or false"),
    ("expected a sequence", "expected a list"),
    ("expected a map", "expected a table"),
    ("invalid IP address syntax", "expected an IP address, such as 0.0.0.0 or ::1"),
    (
        "invalid socket address syntax",
        "expected an IP address with a port, such as 0.0.0.0:7946 or [::1]:7946",
    ),
];

/// The message with words in place of names of types and messages of the standard library.
fn in_words(message: &str) -> String {
    let expected = message.split_once("expected ").map_or("", |(_, expected)| expected);
    let name = expected.split(' ').next().unwrap_or_default();
    let message = match form_of(name) {
        Some(form) => message.replacen(&format!("expected {name}"), &format!("expected {form}"), 1),
        None => message.to_owned(),
    };
    WORDS.iter().fold(message, |message, (theirs, ours)| message.replace(theirs, ours))
}

#[cfg(test)]
mod tests {
    use super::redact_values;

    #[test]
    fn messages_keep_the_expectation_and_lose_the_value() {
        for (message, left) in [
            (
                "invalid type: string \"hush, expected x\", expected u16",
                "invalid type, expected a whole number from 0 to 65535",
            ),
            (
                "invalid value: integer `70000`, expected u16 at line 1",
                "invalid value, expected a whole number from 0 to 65535 at line 1",
            ),
            ("invalid type: integer `1`, expected a boolean", "invalid type, expected true or false"),
            ("invalid type: map, expected a sequence", "invalid type, expected a list"),
            ("invalid digit found in string", "expected a whole number"),
            ("invalid IP address syntax", "expected an IP address, such as 0.0.0.0 or ::1"),
            ("unknown variant `hush`, expected `on` or `off`", "unknown variant, expected `on` or `off`"),
            ("unknown variant `hush`, there are no variants", "unknown variant"),
            ("unknown field `prot`, expected `port`", "unknown field `prot`, expected `port`"),
        ] {
            assert_eq!(redact_values(message), left);
        }
    }
}
