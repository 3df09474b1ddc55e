//! Reads a response's status line and headers, and how its body is delimited (RFC 9112, 6.3).

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Version};
use hyper::ext::ReasonPhrase;

use super::body_decoder::BodyDecoder;
use super::error::BadResponse;

/// Longest head. Workers send a few hundred bytes.
const HEAD_BYTES_MAX: usize = 128 << 10;
/// Longest body: programs count in signed 64-bit numbers.
const LENGTH_MAX: u64 = i64::MAX as u64;
/// Most headers of a response.
const HEADERS_MAX: usize = 100;

/// A response's head, and what follows it.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) head: Response<()>,
    pub(super) body: BodyDecoder,
    /// Whether the worker keeps the connection open after this response.
    pub(super) keeps_open: bool,
}

/// Finds the end of a head in bytes that arrive bit by bit.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    /// No end is among so many bytes.
    searched: usize,
    /// Bytes of line breaks before the head.
    skipped: usize,
    /// Bytes of interim responses.
    interim: usize,
}

impl HeadReader {
    /// Whether something was read that is left out.
    pub(super) fn has_begun(&self) -> bool {
        self.skipped > 0 || self.interim > 0
    }

    /// Takes the head out of what has been received, once it is there as a whole. Interim responses (1xx) are dropped,
    /// except for a switch of protocols, which ends the use of the connection.
    pub(super) fn read(
        &mut self,
        received: &mut BytesMut,
        method: &Method,
    ) -> Result<Option<ResponseHead>, BadResponse> {
        while let Some(bytes) = self.take(received)? {
            let length = bytes.len();
            let head = parse(bytes, method)?;
            let status = head.head.status();
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Some(head));
            }
            self.interim += length;
            if self.interim > HEAD_BYTES_MAX {
                return Err(BadResponse::HeadTooLong);
            }
        }
        Ok(None)
    }

    /// The bytes of a head with the empty line at its end.
    fn take(&mut self, received: &mut BytesMut) -> Result<Option<Bytes>, BadResponse> {
        if self.searched == 0 {
            // A line break that belongs to the response before is tolerated, as by most clients.
            let breaks = received.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let skipped = breaks.min(2 - self.skipped);
            received.advance(skipped);
            self.skipped += skipped;
        }
        if !b"HTTP/1.".starts_with(&received[..received.len().min(7)]) {
            return Err(BadResponse::Head);
        }
        let end = head_end(received, self.searched);
        if end.unwrap_or(received.len()) > HEAD_BYTES_MAX {
            return Err(BadResponse::HeadTooLong);
        }
        self.searched = if end.is_some() { 0 } else { received.len() };
        Ok(end.map(|end| received.split_to(end).freeze()))
    }
}

/// The end of the first empty line, if no end is among the first `searched` bytes.
fn head_end(bytes: &[u8], searched: usize) -> Option<usize> {
    // An empty line is at most the last three of these and what follows.
    let from = searched.saturating_sub(3);
    memchr::memchr_iter(b'\n', &bytes[from..]).find_map(|at| match bytes[from + at + 1..] {
        [b'\n', ..] => Some(from + at + 2),
        [b'\r', b'\n', ..] => Some(from + at + 3),
        _ => None,
    })
}

fn parse(bytes: Bytes, method: &Method) -> Result<ResponseHead, BadResponse> {
    let mut fields = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    match parser.parse_response_with_uninit_headers(&mut response, &bytes, &mut fields) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(BadResponse::HeadTooLong),
        _ => return Err(BadResponse::Head),
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(BadResponse::Head)?;
    let mut headers = HeaderMap::with_capacity(response.headers.len());
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| BadResponse::Head)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value));
        headers.append(name, value.map_err(|_| BadResponse::Head)?);
    }
    let version = if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    join_lengths(&mut headers)?;
    let body = body_of(status, method, version, &headers)?;
    let keeps_open = keeps_open(version, &headers) && !may_go_on(status, method, &headers);
    let mut head = Response::new(());
    if let Some(reason) = response.reason.filter(|reason| Some(*reason) != status.canonical_reason()) {
        // httparse accepts more bytes than may be sent on.
        let reason = ReasonPhrase::try_from(reason.as_bytes());
        reason.into_iter().for_each(|reason| _ = head.extensions_mut().insert(reason));
    }
    (*head.status_mut(), *head.version_mut(), *head.headers_mut()) = (status, version, headers);
    Ok(ResponseHead { head, body, keeps_open })
}

/// How the body is delimited. No other transfer coding than chunks was asked for.
fn body_of(
    status: StatusCode,
    method: &Method,
    version: Version,
    headers: &HeaderMap,
) -> Result<BodyDecoder, BadResponse> {
    if has_no_body(status, method) {
        return Ok(BodyDecoder::Over);
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(content_length(headers)?.map_or(BodyDecoder::UntilClose, BodyDecoder::of_length)),
        (Some(only), None)
            if version == Version::HTTP_11 && only.as_bytes().eq_ignore_ascii_case(b"chunked") =>
        {
            Ok(BodyDecoder::Size)
        }
        _ => Err(BadResponse::Encoding),
    }
}

/// Whether no body follows, whatever the head says.
fn has_no_body(status: StatusCode, method: &Method) -> bool {
    status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || *method == Method::HEAD
}

/// Whether unexpected bytes may follow: data of another protocol, or a body after a status that allows none.
fn may_go_on(status: StatusCode, method: &Method, headers: &HeaderMap) -> bool {
    let declares_body = || {
        headers.contains_key(header::TRANSFER_ENCODING)
            || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0")
    };
    status == StatusCode::SWITCHING_PROTOCOLS || (has_no_body(status, method) && declares_body())
}

/// Makes one header of several equal lengths. Clients may refuse a list.
fn join_lengths(headers: &mut HeaderMap) -> Result<(), BadResponse> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    let is_list =
        values.next().is_some_and(|first| first.as_bytes().contains(&b',')) || values.next().is_some();
    if is_list && let Some(length) = content_length(headers)? {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    Ok(())
}

/// The length that all `Content-Length` headers give.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, BadResponse> {
    let values = headers.get_all(header::CONTENT_LENGTH);
    let lengths = values.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    lengths.map(|length| decimal(length.trim_ascii())).try_fold(None, |before, length| match before {
        Some(before) if before != length? => Err(BadResponse::Length),
        _ => length.map(Some),
    })
}

/// A number of digits alone: Rust's parser accepts a sign.
fn decimal(digits: &[u8]) -> Result<u64, BadResponse> {
    let digits = digits.iter().all(u8::is_ascii_digit).then_some(digits);
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let number = digits.and_then(|digits| digits.parse().ok());
    number.filter(|&length| length <= LENGTH_MAX).ok_or(BadResponse::Length)
}

fn keeps_open(version: Version, headers: &HeaderMap) -> bool {
    // A length beside chunks is how responses are smuggled.
    let is_ambiguous =
        headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH);
    let names = |option: &[u8]| {
        let values = headers.get_all(header::CONNECTION).iter();
        let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        options.any(|one| one.trim_ascii().eq_ignore_ascii_case(option))
    };
    !is_ambiguous && !names(b"close") && (version == Version::HTTP_11 || names(b"keep-alive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_for(method: Method, text: &str) -> Result<Option<ResponseHead>, BadResponse> {
        HeadReader::default().read(&mut BytesMut::from(text), &method)
    }

    fn read(text: &str) -> Result<Option<ResponseHead>, BadResponse> {
        read_for(Method::POST, text)
    }

    #[test]
    fn a_head_is_read_when_its_last_byte_has_come() {
        let text = "HTTP/1.1 200 Fine\r\nContent-Type: text/plain\r\nx-a: 1\r\nx-a:  2 \r\n\r\nbody";
        let (mut reader, mut received) = (HeadReader::default(), BytesMut::new());
        let mut heads = text.bytes().filter_map(|byte| {
            received.extend_from_slice(&[byte]);
            if received.starts_with(b"H") { reader.read(&mut received, &Method::GET).unwrap() } else { None }
        });
        let ResponseHead { head, body, keeps_open } = heads.next().expect("there is a head");
        assert!(heads.next().is_none());
        assert_eq!(
            (head.status(), head.version(), body, keeps_open),
            (StatusCode::OK, Version::HTTP_11, BodyDecoder::UntilClose, true)
        );
        assert_eq!(head.headers().get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(head.extensions().get::<ReasonPhrase>().unwrap().as_bytes(), b"Fine");
        assert_eq!(received, "body");
    }

    #[test]
    fn the_body_is_delimited_as_the_rfc_says() {
        for (method, head, expected) in [
            (Method::POST, "HTTP/1.1 200 OK\r\ncontent-length: 5", Ok(BodyDecoder::Length(5))),
            (Method::POST, "HTTP/1.1 200 OK\r\ncontent-length: 0", Ok(BodyDecoder::Over)),
            (
                Method::POST,
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5, 5",
                Ok(BodyDecoder::Length(5)),
            ),
            (
                Method::POST,
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6",
                Err(BadResponse::Length),
            ),
            (Method::POST, "HTTP/1.1 200 OK\r\ncontent-length: 5, 6", Err(BadResponse::Length)),
            (Method::POST, "HTTP/1.1 200 OK\r\ncontent-length: +5", Err(BadResponse::Length)),
            (Method::POST, "HTTP/1.1 200 OK\r\ncontent-length:", Err(BadResponse::Length)),
            (
                Method::POST,
                "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999",
                Err(BadResponse::Length),
            ),
            (
                Method::POST,
                "HTTP/1.1 200 OK\r\ncontent-length: 9223372036854775808",
                Err(BadResponse::Length),
            ),
            (Method::POST, "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked", Ok(BodyDecoder::Size)),
            (
                Method::POST,
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked",
                Err(BadResponse::Encoding),
            ),
            (Method::POST, "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked", Err(BadResponse::Encoding)),
            (Method::POST, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked,", Err(BadResponse::Encoding)),
            (
                Method::POST,
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
                Ok(BodyDecoder::Size),
            ),
            (Method::POST, "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked", Err(BadResponse::Encoding)),
            (Method::POST, "HTTP/1.1 200 OK", Ok(BodyDecoder::UntilClose)),
            (Method::POST, "HTTP/1.1 204 No Content\r\ncontent-length: 5", Ok(BodyDecoder::Over)),
            (Method::GET, "HTTP/1.1 304 Not Modified\r\ncontent-length: 5", Ok(BodyDecoder::Over)),
            (Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 5", Ok(BodyDecoder::Over)),
            (Method::GET, "HTTP/1.1 101 Switching Protocols\r\nupgrade: x", Ok(BodyDecoder::Over)),
        ] {
            let found = read_for(method, &format!("{head}\r\n\r\n"));
            assert_eq!(found.map(|head| head.expect("it is whole").body), expected, "{head}");
        }
    }

    #[test]
    fn several_equal_lengths_become_one() {
        for lengths in ["5, 5", "5\r\ncontent-length: 05", "5,5\r\ncontent-length: 5", "5"] {
            let head =
                read(&format!("HTTP/1.1 200 OK\r\ncontent-length: {lengths}\r\n\r\n")).unwrap().unwrap().head;
            let lengths: Vec<_> = head.headers().get_all(header::CONTENT_LENGTH).iter().collect();
            assert_eq!(lengths, ["5"]);
        }
    }

    #[test]
    fn a_connection_is_not_kept_where_a_body_may_follow_that_is_none() {
        for (method, head, is_kept) in [
            (Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 5", false),
            (Method::HEAD, "HTTP/1.1 200 OK", true),
            (Method::POST, "HTTP/1.1 204 No Content\r\ncontent-length: 4", false),
            (Method::POST, "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked", false),
            (Method::POST, "HTTP/1.1 204 No Content\r\ncontent-length: 0", true),
            (Method::GET, "HTTP/1.1 304 Not Modified\r\ncontent-length: 5", false),
        ] {
            let found = read_for(method, &format!("{head}\r\n\r\n")).unwrap().unwrap();
            assert_eq!(found.keeps_open, is_kept, "{head}");
        }
    }

    #[test]
    fn a_connection_is_kept_only_if_both_sides_agree_on_where_responses_end() {
        for (head, expected) in [
            ("HTTP/1.1 200 OK", true),
            ("HTTP/1.1 200 OK\r\nconnection: Close", false),
            ("HTTP/1.1 200 OK\r\nconnection: x-a, close\r\nconnection: keep-alive", false),
            ("HTTP/1.0 200 OK", false),
            ("HTTP/1.0 200 OK\r\nconnection: Keep-Alive", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked", false),
            ("HTTP/1.1 101 Switching Protocols", false),
        ] {
            let found = read(&format!("{head}\r\n\r\n")).unwrap().expect("it is whole");
            assert_eq!(found.keeps_open, expected, "{head}");
        }
    }

    #[test]
    fn interim_responses_are_dropped() {
        let text =
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
        assert_eq!(read(text).unwrap().unwrap().head.status(), StatusCode::OK);
        assert!(read("HTTP/1.1 100 Continue\r\n\r\n").unwrap().is_none());
        let flood = "HTTP/1.1 100 Continue\r\n\r\n".repeat(HEAD_BYTES_MAX / 20);
        assert_eq!(read(&flood).map(|_| ()), Err(BadResponse::HeadTooLong));
    }

    #[test]
    fn what_is_no_http_is_refused_at_once() {
        for text in [
            "x",
            "HTTP/2",
            "HTTP/1.1 abc OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx y: 1\r\n\r\n",
            "\r\n\r\n\r\nHTTP/1.1",
        ] {
            assert_eq!(read(text).map(|_| ()), Err(BadResponse::Head), "{text}");
        }
        for text in ["HTTP/1.1 200 OK\r\nx: \r\n y\r\n\r\n", "HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n"] {
            assert_eq!(read(text).map(|_| ()), Err(BadResponse::Head), "{text}");
        }
        assert!(read("\r\nHTTP/1.1 200 OK\r\n\r\n").unwrap().is_some());
        assert!(read("").unwrap().is_none() && read("HT").unwrap().is_none());
        let many: String = (0..=HEADERS_MAX).map(|i| format!("x-{i}: 1\r\n")).collect();
        let long = format!("x: {}\r\n", "y".repeat(HEAD_BYTES_MAX));
        for fields in [many, long.clone()] {
            let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
            assert_eq!(read(&text).map(|_| ()), Err(BadResponse::HeadTooLong));
        }
        assert_eq!(read(&format!("HTTP/1.1 200 OK\r\n{long}")).map(|_| ()), Err(BadResponse::HeadTooLong));
    }
}
