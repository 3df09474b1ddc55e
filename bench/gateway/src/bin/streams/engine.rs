//! A server that reads a prompt, sends the first token at once and the others at even intervals. It computes nothing, so
//! that a client's wait for the first token is that of the way to it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Tokens of a stream.
pub const TOKENS: u32 = 32;
const STACK_BYTES: usize = 128 << 10;
const EVENT: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"llama-3.1-8b\",\
\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"finish_reason\":null}]}\n\n";
const MODELS: &str = r#"{"object":"list","data":[{"id":"llama-3.1-8b","object":"model"}]}"#;

/// A server on every loopback address.
pub struct Engine {
    pub port: u16,
    stream_us: Arc<AtomicU64>,
}

impl Engine {
    /// Starts one, which lives as long as this process.
    pub fn start() -> io::Result<Engine> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let engine = Engine { port: listener.local_addr()?.port(), stream_us: Arc::default() };
        let stream_us = Arc::clone(&engine.stream_us);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let stream_us = Arc::clone(&stream_us);
                let serve = move || {
                    // A client that goes away ends its connection and nothing else.
                    let _ = serve(stream, &stream_us);
                };
                thread::Builder::new().stack_size(STACK_BYTES).spawn(serve).expect("a thread can be started");
            }
        });
        Ok(engine)
    }

    /// How long streams that begin from now on take.
    pub fn stream_for(&self, length: Duration) {
        self.stream_us.store(length.as_micros() as u64, Relaxed);
    }
}

fn serve(stream: TcpStream, stream_us: &AtomicU64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let is_stream = line.starts_with("POST");
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let lower = line.to_ascii_lowercase();
            match lower.strip_prefix("content-length:") {
                Some(value) => length = value.trim().parse().map_err(io::Error::other)?,
                None if lower.trim().is_empty() => break,
                None => {}
            }
        }
        io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        let out = reader.get_mut();
        match is_stream {
            true => send_stream(out, Duration::from_micros(stream_us.load(Relaxed)))?,
            false => write!(
                out,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{MODELS}",
                MODELS.len()
            )?,
        }
    }
}

fn send_stream(out: &mut TcpStream, length: Duration) -> io::Result<()> {
    let began = Instant::now();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{EVENT}\r\n", EVENT.len());
    out.write_all(format!("{head}{chunk}").as_bytes())?;
    for token in 1..TOKENS {
        let due = began + length * token / TOKENS;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        out.write_all(chunk.as_bytes())?;
    }
    let done = "data: [DONE]\n\n";
    out.write_all(format!("{:x}\r\n{done}\r\n0\r\n\r\n", done.len()).as_bytes())
}
