//! Responses of workers: what is read does not depend on how reads split the bytes, and a body is what a plain reader finds.

use bytes::{Bytes, BytesMut};
use http::Method;
use warmroute_fuzz::cuttings;

use super::body_decoder::BodyDecoder;
use super::error::BadResponse;
use super::response_head::{HeadReader, ResponseHead};

/// What was read of a worker's bytes.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Status, headers, and whether the connection stays open.
    head: Option<(u16, String, bool)>,
    body: Vec<u8>,
    /// Where the body's decoder stands in the end.
    end: Result<BodyDecoder, BadResponse>,
    unread: usize,
}

/// The bytes that a worker sends as its response.
pub(crate) fn response(input: &[u8]) {
    for method in [Method::POST, Method::HEAD] {
        let [whole, others @ ..] = cuttings(input).map(|pieces| Seen::of(&pieces, &method));
        others.iter().for_each(|seen| assert_eq!(*seen, whole));
        assert!(whole.body.len() + whole.unread <= input.len());
        let mut received = BytesMut::from(input);
        let Ok(Some(head)) = HeadReader::default().read(&mut received, &method) else {
            assert!(whole.head.is_none() && whole.body.is_empty());
            continue;
        };
        let expected = plain_body(head.body, &received);
        match &whole.end {
            Ok(_) => assert_eq!(whole.body, expected),
            Err(_) => assert!(expected.starts_with(&whole.body)),
        }
        let mut end = whole.end;
        let is_whole = end.as_mut().is_ok_and(BodyDecoder::end);
        assert!(is_whole == (whole.end == Ok(BodyDecoder::Over)) || head.body == BodyDecoder::UntilClose);
    }
}

/// The body in these bytes, as far as it has come.
fn plain_body(framing: BodyDecoder, mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    match framing {
        BodyDecoder::Length(length) => bytes[..bytes.len().min(length as usize)].to_vec(),
        BodyDecoder::UntilClose => bytes.to_vec(),
        BodyDecoder::Size => {
            while let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") {
                let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count().min(end);
                let digits = std::str::from_utf8(&bytes[..digits]).expect("digits are text");
                let size = u64::from_str_radix(digits, 16).unwrap_or(0);
                let data = &bytes[end + 2..];
                let part = usize::try_from(size).unwrap_or(usize::MAX).min(data.len());
                body.extend_from_slice(&data[..part]);
                bytes = data.get(part + 2..).filter(|_| size > 0).unwrap_or_default();
            }
            body
        }
        _ => body,
    }
}

impl Seen {
    fn of(pieces: &[&[u8]], method: &Method) -> Seen {
        let (mut received, mut reader) = (BytesMut::new(), HeadReader::default());
        let mut seen = Seen { head: None, body: Vec::new(), end: Ok(BodyDecoder::Over), unread: 0 };
        let mut last = Vec::new();
        for piece in pieces {
            received.extend_from_slice(piece);
            if seen.head.is_none() {
                match reader.read(&mut received, method) {
                    Ok(None) => continue,
                    Ok(Some(ResponseHead { head, body, keeps_open })) => {
                        let fields = format!("{:?}", head.headers());
                        seen.head = Some((head.status().as_u16(), fields, keeps_open));
                        seen.end = Ok(body);
                    }
                    Err(error) => return Seen { end: Err(error), ..seen },
                }
            }
            while let Ok(decoder) = &mut seen.end {
                match decoder.decode(&mut received) {
                    Ok(Some(part)) => seen.take(part, &mut last),
                    Ok(None) => break,
                    Err(error) => seen.end = Err(error),
                }
            }
        }
        seen.unread = if matches!(seen.end, Ok(BodyDecoder::Over)) { received.len() } else { 0 };
        seen
    }

    /// Takes a part of the body. The part before it must not have changed meanwhile.
    fn take(&mut self, part: Bytes, last: &mut Vec<(usize, Bytes)>) {
        assert!(!part.is_empty());
        assert!(last.iter().all(|(at, before)| self.body[*at..].starts_with(before)));
        last.clear();
        last.push((self.body.len(), part.clone()));
        self.body.extend_from_slice(&part);
    }
}
