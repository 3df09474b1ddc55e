//! `tracestate`: entries of other tracing systems, which are passed on as they came.

/// Entries in one header. More make it invalid.
const ENTRIES_MAX: usize = 32;

/// Bytes that are passed on. The standard asks for at least 512; entries at the end are left out beyond it.
const BYTES_MAX: usize = 512;

const KEY_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 256;

/// All headers as one list. `None` if there is none or any entry is invalid.
pub(crate) fn valid_state<'a>(headers: impl Iterator<Item = &'a [u8]>) -> Option<String> {
    let mut entries: Vec<(&str, &str)> = Vec::new();
    for header in headers {
        let header = std::str::from_utf8(header).ok()?;
        for entry in header.split(',').map(|entry| entry.trim_matches([' ', '\t'])) {
            if entry.is_empty() {
                continue;
            }
            let (key, value) = entry.split_once('=')?;
            let is_repeated = entries.iter().any(|(known, _)| *known == key);
            if is_repeated || entries.len() == ENTRIES_MAX || !is_key(key) || !is_value(value) {
                return None;
            }
            entries.push((key, value));
        }
    }
    let mut state = String::new();
    for (key, value) in entries {
        if state.len() + key.len() + value.len() + 2 > BYTES_MAX {
            break;
        }
        let comma = if state.is_empty() { "" } else { "," };
        state.extend([comma, key, "=", value]);
    }
    Some(state).filter(|state| !state.is_empty())
}

fn is_key(key: &str) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    key.len() <= KEY_BYTES_MAX && key.as_bytes().first().is_some_and(is_first) && key.bytes().all(is_known)
}

fn is_value(value: &str) -> bool {
    let is_printable = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    !value.is_empty() && value.len() <= VALUE_BYTES_MAX && value.bytes().all(is_printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(headers: &[&str]) -> Option<String> {
        valid_state(headers.iter().map(|header| header.as_bytes()))
    }

    #[test]
    fn valid_entries_are_one_list() {
        assert_eq!(state(&[]), None);
        assert_eq!(state(&["", " , "]), None);
        assert_eq!(
            state(&["rojo=00f0,congo=t6 1 ", "tenant@vendor=x"]).unwrap(),
            "rojo=00f0,congo=t6 1,tenant@vendor=x"
        );
    }

    #[test]
    fn one_invalid_entry_makes_all_invalid() {
        for bad in ["a", "=1", "A=1", "a=", "a=1=2", "a=1,a=2", "a=\u{e9}", "-a=1", "a b=1"] {
            assert_eq!(state(&["ok=1", bad]), None, "{bad}");
        }
        let many: Vec<String> = (0..=ENTRIES_MAX).map(|n| format!("k{n}=v")).collect();
        assert_eq!(state(&[&many.join(",")]), None);
        assert!(state(&[&many[1..].join(",")]).is_some());
    }

    #[test]
    fn entries_beyond_the_bound_are_left_out() {
        let long = "v".repeat(253);
        let passed = state(&[&format!("a={long},b={long},c=1")]).unwrap();
        assert!(passed.starts_with("a=v") && passed.contains(",b=v") && !passed.contains("c=1"), "{passed}");
    }
}
