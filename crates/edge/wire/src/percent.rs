//! Percent-encoding, as in URLs.

/// Decodes percent-encoded text. Invalid escapes stay as they are; what is not UTF-8 is replaced.
pub fn percent_decoded(text: &str) -> String {
    String::from_utf8_lossy(&percent_decoded_bytes(text)).into_owned()
}

/// Decodes percent-encoded bytes. Invalid escapes stay as they are.
pub fn percent_decoded_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        let escaped = (*byte == b'%').then(|| tail.get(..2)).flatten();
        let escaped = escaped.filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        let decoded = escaped.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(*byte));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::percent_decoded;

    #[test]
    fn encoded_and_plain_urls_decode_alike() {
        assert_eq!(percent_decoded("http%3A%2F%2Fa%3a80"), "http://a:80");
        assert_eq!(percent_decoded("http://a:80"), "http://a:80");
        assert_eq!(percent_decoded("%zz%+1%"), "%zz%+1%");
    }
}
