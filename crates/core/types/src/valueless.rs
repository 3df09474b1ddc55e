//! What is wrong with a text, without the value that is: a token in the wrong place must not end up in a log.

/// How messages of serde begin that go on with a value, up to what was expected instead.
const QUOTING: [&str; 3] = ["invalid type", "invalid value", "unknown variant"];

/// A message of serde without the value it quotes. Names of keys stay.
pub fn valueless(message: &str) -> String {
    let Some(what) = QUOTING.iter().find(|what| message.starts_with(**what)) else {
        return message.to_owned();
    };
    // The last one is serde's; others may stand in the value.
    let expected = message.rfind(", expected ").map_or("", |at| &message[at..]);
    format!("{what}{expected}")
}

#[cfg(test)]
mod tests {
    use super::valueless;

    #[test]
    fn messages_keep_what_was_expected_and_lose_what_was_there() {
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
            assert_eq!(valueless(message), left);
        }
    }
}
