//! A real `redis-server` for one test: a free port, nothing on disk, stopped with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warmroute_share::{Link, RedisConfig, RedisTimings, redis};
use warmroute_types::RouterId;

use super::{TEST_TIMEOUT, free_port, secret, wait_until_ready};

/// Skips the test with a message if redis-server is not installed.
#[macro_export]
macro_rules! require_redis {
    () => {
        if !$crate::support::server::is_installed() {
            eprintln!(
                "skipped: redis-server is not installed (Debian and Ubuntu: apt-get install redis-server)"
            );
            return;
        }
    };
}

pub fn is_installed() -> bool {
    Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok()
}

pub struct Server {
    child: Child,
    pub port: u16,
    folder: PathBuf,
    options: Vec<String>,
}

impl Server {
    /// Starts a server with these additional options.
    pub async fn start(options: &[&str]) -> Server {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        // Another process may take the free port; then the server ends at once.
        loop {
            let server = Server::launch(free_port().await.port(), Vec::clone(&options));
            if let Some(server) = server.ready().await {
                return server;
            }
        }
    }

    fn launch(port: u16, options: Vec<String>) -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("warmroute-redis-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let child = command(port, &folder, &options).spawn().unwrap();
        Server { child, port, folder, options }
    }

    async fn ready(mut self) -> Option<Server> {
        loop {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return self.child.try_wait().unwrap().is_none().then_some(self);
            }
            if self.child.try_wait().unwrap().is_some() {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub async fn restart(&mut self) {
        self.child = command(self.port, &self.folder, &self.options).spawn().unwrap();
        wait_until_ready(|| std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()).await;
    }

    /// `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// A client that may do everything on the server, but does not know the secret.
    pub async fn intruder(&self) -> ::redis::aio::MultiplexedConnection {
        let client = ::redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}

fn command(port: u16, folder: &Path, options: &[String]) -> Command {
    let mut command = Command::new("redis-server");
    let port = port.to_string();
    let own = if options.iter().any(|option| option == "--tls-cert-file") { "--tls-port" } else { "--port" };
    if own == "--tls-port" {
        command.args(["--port", "0"]);
    }
    command.args([own, &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
    command.arg(folder).args(options).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Timeouts that never expire, even on a busy machine.
pub fn config(url: impl Into<String>) -> RedisConfig {
    let timings = RedisTimings {
        announce_interval: Duration::from_millis(50),
        gone_after: TEST_TIMEOUT,
        answer: TEST_TIMEOUT,
        redial: Duration::from_millis(100),
    };
    RedisConfig { timings, ..RedisConfig::new(url, secret()) }
}

/// Silent routers are given up soon. Only for tests of that.
pub fn short_timeouts(url: impl Into<String>) -> RedisConfig {
    let config = config(url);
    let (gone_after, answer) = (Duration::from_millis(600), Duration::from_millis(400));
    RedisConfig { timings: RedisTimings { gone_after, answer, ..config.timings }, ..config }
}

pub fn join(me: u64, config: RedisConfig) -> Link {
    redis(config, RouterId(me)).unwrap()
}
