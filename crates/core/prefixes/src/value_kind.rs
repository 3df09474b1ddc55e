//! What a changing value looks like.

use warmroute_prompt::{Word, words};

/// Kind of a value, the most telling first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ValueKind {
    Time,
    Id,
    Number,
}

/// The most telling kind among the values of a text that differ from earlier ones, and the position of the first of them.
/// `is_same` takes a value and its number.
pub(crate) fn value_in(text: &[u8], is_same: impl Fn(usize, &[u8]) -> bool) -> Option<(ValueKind, usize)> {
    let values = words(text).filter(|word| word.is_value).enumerate();
    let differing = values.filter(|(number, word)| !is_same(*number, word.text)).map(|(_, word)| word);
    differing
        .map(|word: Word<'_>| (kind_of(word.text), word.at))
        .reduce(|first, next| (first.0.min(next.0), first.1))
}

fn kind_of(word: &[u8]) -> ValueKind {
    let digits = word.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = word.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    if digits == 0 || is_date(word) || is_clock(word) || is_epoch(word) {
        ValueKind::Time
    } else if (letters > 0 && digits + letters >= 8) || digits >= 12 {
        ValueKind::Id
    } else {
        ValueKind::Number
    }
}

/// Groups of digits, by their lengths.
fn digit_groups(word: &[u8]) -> Vec<usize> {
    word.split(|byte| !byte.is_ascii_digit()).map(<[u8]>::len).filter(|len| *len > 0).collect()
}

/// 2026-11-17, 17/11/2026 or 17.11.2026, with or without a time. A word with other letters, such as a UUID, is none.
fn is_date(word: &[u8]) -> bool {
    let separators = word.iter().filter(|byte| matches!(byte, b'-' | b'/' | b'.')).count();
    let has_letters =
        word.iter().any(|byte| byte.is_ascii_alphabetic() && !matches!(byte, b'T' | b'Z' | b'W'));
    let groups = digit_groups(word);
    let is_day = |groups: &[usize]| matches!(groups, [4, 1..=2, 1..=2, ..] | [1..=2, 1..=2, 4, ..]);
    !has_letters && separators >= 2 && is_day(&groups)
}

/// 08:12 or 08:12:13.
fn is_clock(word: &[u8]) -> bool {
    word.contains(&b':') && matches!(*digit_groups(word), [1..=2, 2] | [1..=2, 2, 2, ..])
}

/// Seconds, milliseconds or microseconds since 1970, of this decade or the next ones.
fn is_epoch(word: &[u8]) -> bool {
    let whole = word.split(|byte| *byte == b'.').next().unwrap_or_default();
    whole.iter().all(u8::is_ascii_digit) && matches!(whole.len(), 10 | 13 | 16) && whole[0] == b'1'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_apart() {
        for (text, kind) in [
            ("2026-11-17", ValueKind::Time),
            ("2026-11-17T08:12:13.123Z", ValueKind::Time),
            ("11/17/2026", ValueKind::Time),
            ("08:12:13", ValueKind::Time),
            ("Nov", ValueKind::Time),
            ("1794702240", ValueKind::Time),
            ("1794702240.25", ValueKind::Time),
            ("9f86d081-884c-4d65-9a2f-eaa0c55ad015", ValueKind::Id),
            ("2026d081-11ac-17bb-9a2f-eaa0c55ad015", ValueKind::Id),
            ("req_8x2kq9ab", ValueKind::Id),
            ("202611170812", ValueKind::Id),
            ("17", ValueKind::Number),
            ("3.14", ValueKind::Number),
            ("v2", ValueKind::Number),
        ] {
            assert_eq!(kind_of(text.as_bytes()), kind, "{text}");
        }
    }

    #[test]
    fn the_most_telling_of_the_values_that_differ_counts() {
        let text = b"Turn 17 at 08:12 for req_8x2kq9ab.";
        let found = |same: &[usize]| value_in(text, |number, _| same.contains(&number));
        assert_eq!(found(&[]), Some((ValueKind::Time, 5)));
        assert_eq!(found(&[0]), Some((ValueKind::Time, 11)));
        assert_eq!(found(&[1]), Some((ValueKind::Id, 5)));
        assert_eq!(found(&[1, 2]), Some((ValueKind::Number, 5)));
        assert_eq!(found(&[0, 1, 2]), None);
        assert_eq!(value_in(b"Nothing here.", |_, _| false), None);
    }
}
