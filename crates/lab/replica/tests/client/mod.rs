//! HTTP client over plain sockets, so that tests see the wire format.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmroute_engine::Profile;
use warmroute_replica::{Config, Replica, serve};

/// Timeout of every wait.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A replica a thousand times faster than a GPU.
pub fn fast() -> Config {
    Config { speed: 1_000.0, ..Config::for_profile(Profile::Llama3_1_8b) }
}

/// Starts a replica on a free port.
pub async fn start(config: Config) -> Replica {
    serve(config, TcpListener::bind("127.0.0.1:0").unwrap()).await.unwrap()
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Head in lower case, one header per line.
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The data of all server-sent events, without `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// The names of all server-sent events that have one.
    pub fn event_names(&self) -> Vec<&str> {
        self.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect()
    }
}

/// A connection that can be read piece by piece.
pub struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Wire {
    /// Connects and sends a request.
    pub async fn send(replica: &Replica, method: &str, path: &str, headers: &str, body: &str) -> Wire {
        let mut stream = TcpStream::connect(replica.address()).await.unwrap();
        let length = body.len();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        Wire { stream, received: Vec::new() }
    }

    /// Reads until the received text contains `text`. Returns everything received.
    pub async fn read_until(&mut self, text: &str) -> io::Result<String> {
        while !String::from_utf8_lossy(&self.received).contains(text) {
            self.read_some().await?;
        }
        Ok(self.so_far())
    }

    /// Reads until the connection ends. Returns how it ended.
    pub async fn read_to_end(&mut self) -> io::Result<()> {
        loop {
            match self.read_some().await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Everything received.
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    async fn read_some(&mut self) -> io::Result<()> {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.received)).await;
        match read.expect("the replica is silent") {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Sends a request and reads the whole response.
pub async fn ask(replica: &Replica, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut wire = Wire::send(replica, method, path, &format!("connection: close\r\n{headers}"), body).await;
    wire.read_to_end().await.unwrap();
    parse(&wire.so_far())
}

/// `POST` with a JSON body.
pub async fn post(replica: &Replica, path: &str, body: &Value) -> Answer {
    ask(replica, "POST", path, "content-type: application/json\r\n", &body.to_string()).await
}

/// `GET`.
pub async fn get(replica: &Replica, path: &str) -> Answer {
    ask(replica, "GET", path, "", "").await
}

/// Polls until a condition holds.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let looking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn parse(response: &str) -> Answer {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {response:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let head = head.to_lowercase();
    let body = match head.contains("transfer-encoding: chunked") {
        true => unchunk(body),
        false => body.to_owned(),
    };
    Answer { status, head, body }
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n").expect("a chunk's length");
        let length = usize::from_str_radix(length, 16).expect("a chunk's length in hex");
        if length == 0 {
            return whole;
        }
        whole.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").expect("a chunk's end");
    }
}
