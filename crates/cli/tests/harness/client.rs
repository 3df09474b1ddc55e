//! An HTTP client that shows every byte.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use super::TIMEOUT;

/// A response, read to its end.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body ended as its framing promised.
    pub complete: bool,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// A request in flight.
pub struct Call {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// `http://host:port` without the scheme.
pub fn authority(url: &str) -> &str {
    url.strip_prefix("http://").unwrap()
}

impl Call {
    /// Sends exactly these bytes.
    pub fn raw(url: &str, bytes: &[u8]) -> Call {
        Call::try_raw(url, bytes).unwrap()
    }

    fn try_raw(url: &str, bytes: &[u8]) -> io::Result<Call> {
        let mut stream = TcpStream::connect(authority(url))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        stream.write_all(bytes)?;
        Ok(Call { stream, buffer: Vec::new() })
    }

    /// Sends a request with these header lines and a body.
    pub fn send(url: &str, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Call {
        Call::raw(url, &Call::request(method, path, headers, body))
    }

    /// Sends a request; `Err` if the connection fails.
    pub fn try_send(url: &str, method: &str, path: &str, headers: &[&str], body: &[u8]) -> io::Result<Call> {
        Call::try_raw(url, &Call::request(method, path, headers, body))
    }

    /// Sends more bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends these bytes again and again, from another thread, until the connection is closed.
    pub fn keep_sending(&self, bytes: Vec<u8>) {
        let mut stream = self.stream.try_clone().unwrap();
        std::thread::spawn(move || while stream.write_all(&bytes).is_ok() {});
    }

    /// A request as bytes.
    pub fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    /// Reads until the text has arrived, and returns everything read so far.
    pub fn read_until(&mut self, text: &str) -> String {
        while !String::from_utf8_lossy(&self.buffer).contains(text) {
            let mut chunk = [0; 4096];
            let n = self.stream.read(&mut chunk).unwrap_or_else(|e| panic!("{e}; so far: {}", self.so_far()));
            assert!(n > 0, "the end came before {text:?}: {}", self.so_far());
            self.buffer.extend_from_slice(&chunk[..n]);
        }
        self.so_far()
    }

    /// Whether the text has arrived by now, without waiting.
    pub fn has_come(&mut self, text: &str) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        _ = self.stream.read_to_end(&mut self.buffer);
        self.stream.set_nonblocking(false).unwrap();
        self.so_far().contains(text)
    }

    /// How often the text has arrived by now, without waiting.
    pub fn count_of(&mut self, text: &str) -> usize {
        self.has_come(text);
        self.so_far().matches(text).count()
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Closes the connection.
    pub fn hang_up(self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Reads to the end of the connection.
    pub fn finish(self) -> Response {
        self.finish_if_begun().expect("a response")
    }

    /// Reads to the end; `None` if the connection closed before any byte.
    pub fn finish_if_begun(mut self) -> Option<Response> {
        // A broken connection is a valid outcome, so an error counts as the end.
        _ = self.stream.read_to_end(&mut self.buffer);
        let head_end = self.buffer.windows(4).position(|w| w == b"\r\n\r\n")?;
        Some(parse(&self.buffer, head_end))
    }
}

fn parse(bytes: &[u8], head_end: usize) -> Response {
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> =
        lines.map(|line| line.split_once(": ").map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap()).collect();
    let rest = &bytes[head_end + 4..];
    let find =
        |name: &str| headers.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str());
    let (body, complete) = match (find("transfer-encoding"), find("content-length")) {
        (Some("chunked"), _) => unchunk(rest),
        (_, Some(length)) => (rest.to_vec(), rest.len() == length.parse::<usize>().unwrap()),
        _ => (rest.to_vec(), true),
    };
    Response { status, headers, body, complete }
}

fn unchunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(line_end) = rest.windows(2).position(|w| w == b"\r\n") else { return (body, false) };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line_end]).unwrap(), 16).unwrap();
        rest = &rest[line_end + 2..];
        if size == 0 {
            return (body, true);
        }
        if rest.len() < size + 2 {
            body.extend_from_slice(&rest[..size.min(rest.len())]);
            return (body, false);
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
}

pub fn get(url: &str, path: &str) -> Response {
    Call::send(url, "GET", path, &[], b"").finish()
}

pub fn post(url: &str, path: &str, body: &str) -> Response {
    Call::send(url, "POST", path, &["content-type: application/json"], body.as_bytes()).finish()
}

/// A small chat request.
pub fn chat(model: &str) -> String {
    format!(r#"{{"model":"{model}","max_tokens":4,"messages":[{{"role":"user","content":"Hello"}}]}}"#)
}

/// A small streaming chat request.
pub fn chat_stream(model: &str, max_tokens: u32) -> String {
    format!(
        r#"{{"model":"{model}","max_tokens":{max_tokens},"stream":true,"messages":[{{"role":"user","content":"Hello"}}]}}"#
    )
}
