//! Parse errors without the offending value: a token in the wrong field must not reach a log.

/// Beginnings of serde's messages that quote a value, up to what was expected instead.
const QUOTING: [&str; 3] = ["invalid type", "invalid value", "unknown variant"];

/// A serde message without the value that it quotes. Names of keys stay.
pub fn redact_values(message: &str) -> String {
    let Some(what) = QUOTING.iter().find(|what| message.starts_with(**what)) else {
        return message.to_owned();
    };
    // The last match is serde's own; earlier ones may be part of the value.
    let expected = message.rfind(", expected ").map_or("", |at| &message[at..]);
    format!("{what}{expected}")
}

#[cfg(test)]
mod tests {
    use super::redact_values;

    #[test]
    fn messages_keep_the_expectation_and_lose_the_value() {
        for (message, left) in [
            ("invalid type: string \"hush, expected x\", expected u16", "invalid type, expected u16"),
            (
                "invalid value: integer `70000`, expected u16 at line 1",
                "invalid value, expected u16 at line 1",
            ),
            ("unknown variant `hush`, expected `on` or `off`", "unknown variant, expected `on` or `off`"),
            ("unknown variant `hush`, there are no variants", "unknown variant"),
            ("unknown field `prot`, expected `port`", "unknown field `prot`, expected `port`"),
        ] {
            assert_eq!(redact_values(message), left);
        }
    }
}
