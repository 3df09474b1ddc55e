//! A real `redis-server` for one test.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use super::eventually;

/// A server on a free port without persistence, killed when dropped.
pub struct RedisServer {
    child: Child,
    port: u16,
}

impl RedisServer {
    /// `None`, with a message, if it is not installed.
    pub fn start() -> Option<RedisServer> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let Ok(child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            eprintln!(
                "skipped: redis-server is not installed (Debian and Ubuntu: apt-get install redis-server)"
            );
            return None;
        };
        let server = RedisServer { child, port };
        eventually("the server answers", || TcpStream::connect(("127.0.0.1", port)).ok());
        Some(server)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
