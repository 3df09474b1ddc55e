//! An engine that follows a script: a closure of the test answers each request.
//!
//! Health checks, models and metrics are answered automatically, so that the gateway finds the engine ready. Every
//! other request goes to the script with its raw connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{TIMEOUT, eventually};

/// A request, byte for byte, and its connection.
pub struct ReceivedRequest {
    pub head: String,
    pub body: Vec<u8>,
    pub stream: TcpStream,
    /// The number of this request, from 0.
    pub turn: usize,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// Sends a whole JSON answer.
    pub fn answer(&mut self, body: &str) {
        self.write(&format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Sends the head of an event stream.
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

    /// Waits for another request on the same connection. False if the connection ends instead.
    pub fn next_request(&mut self) -> bool {
        self.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        read_request(&mut self.stream).is_some()
    }

    /// Waits until the other side has closed.
    pub fn wait_for_hang_up(&mut self) {
        self.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let gone = matches!(self.stream.read(&mut [0; 1]), Ok(0))
            || self.stream.take_error().is_ok_and(|error| error.is_some());
        assert!(gone, "the other side is still there");
    }

    /// Waits until the other side has closed, however it does.
    pub fn wait_for_hang_up_or_close(&mut self) {
        self.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        _ = self.stream.read(&mut [0; 1]);
    }

    /// Resets the connection: unread bytes are lost, and the other side gets an error.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
}

/// A scripted engine.
pub struct Scripted {
    pub url: String,
    asked: Arc<AtomicUsize>,
    probed: Arc<AtomicUsize>,
    problems: Arc<Mutex<Vec<String>>>,
    is_sleeping: Arc<Mutex<Option<bool>>>,
}

/// What all connections of an engine share.
struct ServerState<S> {
    script: S,
    models: Option<&'static str>,
    /// The `Authorization` header that the list of models requires.
    guard: Option<&'static str>,
    asked: Arc<AtomicUsize>,
    probed: Arc<AtomicUsize>,
    problems: Arc<Mutex<Vec<String>>>,
    /// `None`: the engine has no sleep mode.
    is_sleeping: Arc<Mutex<Option<bool>>>,
}

impl Scripted {
    /// Serves model `m` by this script, each request on its own thread.
    pub fn new(script: impl Fn(ReceivedRequest) + Send + Sync + 'static) -> Scripted {
        Scripted::with_models(Some("m"), script)
    }

    /// Serves another model. `None`: the list of models is refused.
    pub fn with_models(
        models: Option<&'static str>,
        script: impl Fn(ReceivedRequest) + Send + Sync + 'static,
    ) -> Scripted {
        Scripted::start(models, None, script)
    }

    /// Serves model `m`, with this `Authorization` header required.
    pub fn guarded(
        guard: &'static str,
        script: impl Fn(ReceivedRequest) + Send + Sync + 'static,
    ) -> Scripted {
        Scripted::start(Some("m"), Some(guard), script)
    }

    fn start(
        models: Option<&'static str>,
        guard: Option<&'static str>,
        script: impl Fn(ReceivedRequest) + Send + Sync + 'static,
    ) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, probed, problems, is_sleeping) = Default::default();
        let scripted = Scripted {
            url,
            asked: Arc::clone(&asked),
            probed: Arc::clone(&probed),
            problems: Arc::clone(&problems),
            is_sleeping: Arc::clone(&is_sleeping),
        };
        let stage = Arc::new(ServerState { script, models, guard, asked, probed, problems, is_sleeping });
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stage = Arc::clone(&stage);
                std::thread::spawn(move || {
                    let play = std::panic::AssertUnwindSafe(|| serve(stream.unwrap(), &stage));
                    if let Err(panic) = std::panic::catch_unwind(play) {
                        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        stage.problems.lock().unwrap().push(text);
                    }
                });
            }
        });
        scripted
    }

    /// Number of health checks.
    pub fn probed(&self) -> usize {
        self.probed.load(Ordering::SeqCst)
    }

    /// Gives the engine a sleep mode and this state.
    pub fn set_sleeping(&self, is_sleeping: bool) {
        *self.is_sleeping.lock().unwrap() = Some(is_sleeping);
    }

    /// Number of requests that reached the script.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub fn wait_for_asked(&self, n: usize) {
        eventually(&format!("the engine is asked {n} times"), || (self.asked() >= n).then_some(()));
    }

    /// Fails the test if an assertion in the script failed.
    pub fn check(&self) {
        assert_eq!(*self.problems.lock().unwrap(), Vec::<String>::new());
    }
}

fn serve<S: Fn(ReceivedRequest)>(mut stream: TcpStream, stage: &ServerState<S>) {
    stream.set_nodelay(true).unwrap();
    while let Some((head, body)) = read_request(&mut stream) {
        let path = head.split(' ').nth(1).unwrap();
        let is_known = stage
            .guard
            .is_none_or(|guard| head.lines().any(|line| line == format!("authorization: {guard}")));
        let canned = match (path, stage.models.filter(|_| is_known)) {
            ("/health", _) => Some(String::new()),
            // The metrics name two ranks, because a rank that they do not name gets no requests.
            ("/metrics", _) => {
                let waiting = |rank| format!("vllm:num_requests_waiting{{engine=\"{rank}\"}} 0.0\n");
                Some(waiting(0) + &waiting(1))
            }
            ("/v1/models", Some(id)) => {
                Some(format!(r#"{{"object":"list","data":[{{"id":"{id}","object":"model"}}]}}"#))
            }
            ("/v1/models", None) => {
                stage.probed.fetch_add(1, Ordering::SeqCst);
                stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").unwrap();
                continue;
            }
            ("/is_sleeping", _) if stage.is_sleeping.lock().unwrap().is_some() => {
                let is_sleeping = stage.is_sleeping.lock().unwrap().unwrap_or_default();
                Some(format!(r#"{{"is_sleeping":{is_sleeping}}}"#))
            }
            // Clients' requests have an id; without one the gateway asks for itself.
            ("/tokenize", _) if !head.contains("x-request-id") => {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
                continue;
            }
            // The engine has no sleep mode and publishes no events.
            ("/is_sleeping" | "/kv_event_sources" | "/server_info" | "/get_server_info", _) => {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
                continue;
            }
            _ => None,
        };
        let answering = stream.try_clone().unwrap();
        match canned {
            Some(body) => {
                stage.probed.fetch_add(1, Ordering::SeqCst);
                ReceivedRequest { head, body: vec![], stream: answering, turn: 0 }.answer(&body);
            }
            None => {
                let turn = stage.asked.fetch_add(1, Ordering::SeqCst);
                drop(stream);
                return (stage.script)(ReceivedRequest { head, body, stream: answering, turn });
            }
        }
    }
}

/// The head and the body of the next request.
pub fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
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
