//! A client that keeps its connection, as SDKs do, and never retries.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::TIMEOUT;
use super::client::authority;

/// A client with one kept connection.
pub struct KeepAlive {
    url: String,
    stream: Option<BufReader<TcpStream>>,
    /// Number of connections so far.
    pub connected: usize,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    /// Whether the gateway announced that the connection closes.
    pub is_last: bool,
}

impl KeepAlive {
    pub fn new(url: &str) -> KeepAlive {
        KeepAlive { url: url.to_owned(), stream: None, connected: 0 }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request on the kept connection, or on a new one if the gateway announced a close.
    pub fn post(&mut self, path: &str, body: &str) -> std::io::Result<Answer> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(authority(&self.url))?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_nodelay(true)?;
            self.stream = Some(BufReader::new(stream));
            self.connected += 1;
        }
        let stream = self.stream.as_mut().unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all(format!("{head}{body}").as_bytes())?;
        let answer = read(stream)?;
        if answer.is_last {
            self.stream = None;
        }
        Ok(answer)
    }

    /// Waits until the gateway closes the idle connection.
    pub fn wait_for_close(&mut self) {
        let end = self.stream.as_mut().unwrap().read(&mut [0; 1]);
        assert!(matches!(end, Ok(0)), "{end:?}");
        self.stream = None;
    }
}

fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Answer> {
    let status = line(stream)?.split(' ').nth(1).unwrap_or_default().parse().unwrap_or(0);
    let (mut length, mut is_last) = (None, false);
    loop {
        let header = line(stream)?.to_ascii_lowercase();
        match header.split_once(": ") {
            Some(("content-length", value)) => length = value.parse::<usize>().ok(),
            Some(("connection", value)) => is_last |= value == "close",
            Some(_) => {}
            None => break,
        }
    }
    let body = match length {
        Some(length) => exactly(stream, length)?,
        None => chunks(stream)?,
    };
    Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned(), is_last })
}

fn line(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

fn exactly(stream: &mut BufReader<TcpStream>, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn chunks(stream: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(&line(stream)?, 16).map_err(std::io::Error::other)?;
        let chunk = exactly(stream, size)?;
        line(stream)?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(&chunk);
    }
}
