//! An engine that follows a script: what it does with each request is a closure of the test.
//!
//! Health checks, models and metrics are answered for it, so that the gateway finds it ready; every other request goes to
//! the script, with the raw connection in hand.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{PATIENCE, eventually};

/// A request as it arrived, byte for byte, and the connection to answer on.
pub struct Asked {
    pub head: String,
    pub body: Vec<u8>,
    pub stream: TcpStream,
    /// The how-manieth request of the script, from 0.
    pub turn: usize,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// A whole JSON answer.
    pub fn answer(&mut self, body: &str) {
        self.write(&format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// The head of a stream of events.
    pub fn begin_events(&mut self) {
        self.write(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        );
    }

    pub fn chunk(&mut self, text: &str) {
        self.write(&format!("{:x}\r\n{text}\r\n", text.len()));
    }

    pub fn end_chunks(&mut self) {
        self.write("0\r\n\r\n");
    }

    /// Waits until the other side is gone.
    pub fn wait_for_hang_up(&mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let gone = matches!(self.stream.read(&mut [0; 1]), Ok(0))
            || self.stream.take_error().is_ok_and(|error| error.is_some());
        assert!(gone, "the other side is still there");
    }

    /// Resets the connection: what was not read by then is lost, and the other side gets an error.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
}

/// A scripted engine.
pub struct Scripted {
    pub url: String,
    asked: Arc<AtomicUsize>,
    problems: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    /// Serves model `m` by this script, each request on a thread of its own.
    pub fn new(script: impl Fn(Asked) + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let problems = Arc::new(Mutex::new(Vec::new()));
        let (count, script, trouble) = (Arc::clone(&asked), Arc::new(script), Arc::clone(&problems));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (count, script, trouble) =
                    (Arc::clone(&count), Arc::clone(&script), Arc::clone(&trouble));
                std::thread::spawn(move || {
                    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        serve(stream.unwrap(), &count, &*script);
                    }));
                    if let Err(panic) = played {
                        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        trouble.lock().unwrap().push(text);
                    }
                });
            }
        });
        Scripted { url, asked, problems }
    }

    /// How many requests reached the script.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub fn wait_for_asked(&self, n: usize) {
        eventually(&format!("the engine is asked {n} times"), || (self.asked() >= n).then_some(()));
    }

    /// Fails the test if an assertion inside the script failed.
    pub fn check(&self) {
        assert_eq!(*self.problems.lock().unwrap(), Vec::<String>::new());
    }
}

fn serve(mut stream: TcpStream, count: &AtomicUsize, script: &dyn Fn(Asked)) {
    stream.set_nodelay(true).unwrap();
    while let Some((head, body)) = read_request(&mut stream) {
        let path = head.split(' ').nth(1).unwrap();
        let canned = match path {
            "/health" => Some(String::new()),
            "/v1/models" => Some(r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#.to_owned()),
            "/metrics" => Some("vllm:num_requests_waiting{engine=\"0\"} 0.0\n".to_owned()),
            _ => None,
        };
        let answering = stream.try_clone().unwrap();
        match canned {
            Some(body) => Asked { head, body: vec![], stream: answering, turn: 0 }.answer(&body),
            None => {
                let turn = count.fetch_add(1, Ordering::SeqCst);
                drop(stream);
                return script(Asked { head, body, stream: answering, turn });
            }
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => return None,
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = bytes[head_end + 4..].to_vec();
    let missing = length.unwrap_or(0_usize).saturating_sub(body.len());
    let mut rest = vec![0; missing];
    stream.read_exact(&mut rest).ok()?;
    body.extend_from_slice(&rest);
    Some((head, body))
}
