//! Starts the engine and everything that is put in front of it.
//!
//! Every proxy gets the same chance: keep-alive on both sides, no access log, as many threads as the machine has cores,
//! answers passed on as they come.

use std::error::Error;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use crate::args::{Args, PeerCommand};
use crate::case::CLIENT_KEY;
use crate::launch::Launch;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::target::Target;

/// The gateway as it may be run: its name in the table, its options.
const GATEWAYS: [(&str, &[&str]); 3] = [
    ("round_robin", &["--policy", "round_robin"]),
    ("expected_ttft", &[]),
    ("guarded", &["--max-concurrent-requests", "1000", "--queue-size", "1000"]),
];
const CONFIGURED: [&str; 2] = ["nginx", "haproxy"];
/// Searched after PATH, because daemons are often not in a user's.
const DAEMON_DIRS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// The engine first: it is what all the others are compared with. Then the gateway, then its peers.
pub fn start_all(args: &Args, scratch: &Scratch) -> Result<Vec<Target>, Box<dyn Error>> {
    let engine = start_engine(&args.binary, scratch)?;
    let upstream = engine.port;
    let mut targets = vec![engine];
    for (name, _) in GATEWAYS {
        targets.push(start_gateway(&args.binary, name, upstream, scratch, &Launch::Plain)?);
    }
    for name in wanted_peers(args)? {
        targets.push(start_configured(&name, upstream, scratch, &Launch::Plain)?);
    }
    for peer in &args.commands {
        targets.push(start_command(peer, upstream, scratch)?);
    }
    Ok(targets)
}

/// One that takes next to no time.
pub fn start_engine(binary: &Path, scratch: &Scratch) -> Result<Target, Box<dyn Error>> {
    let words = ["engine", "--speed", "10000", "--port", "0"];
    let mut process = Process::start(binary, &words, scratch.file("engine.log"))?;
    Target::engine(process.announced_port()?, process)
}

/// The gateway with the options of this name in [`GATEWAYS`].
pub fn start_gateway(
    binary: &Path,
    name: &str,
    upstream: u16,
    scratch: &Scratch,
    launch: &Launch,
) -> Result<Target, Box<dyn Error>> {
    let (_, options) = GATEWAYS.iter().find(|known| known.0 == name).ok_or("no such options")?;
    let (worker, keys) = (format!("http://127.0.0.1:{upstream}"), scratch.file("keys"));
    let ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"];
    let mut words = [&["serve"], &ports[..], options, &["--worker-urls", &worker]].concat();
    if name == "guarded" {
        fs::write(
            &keys,
            format!("{CLIENT_KEY} name=bench requests-per-minute=100000000 tokens-per-minute=4000000000\n"),
        )?;
        words.extend(["--api-keys-file", keys.to_str().ok_or("a folder without a proper name")?]);
    }
    if let Launch::Callgrind { .. } = launch {
        // Requests are slow there: a probe every second would be a good part of each.
        words.extend(["--health-check-interval-secs", "600", "--load-interval-ms", "600000"]);
    }
    let mut process = launch.start(binary, &words, scratch.file(&format!("warmroute-{name}.log")))?;
    Target::proxy(&format!("warmroute {name}"), process.announced_port()?, process)
}

/// Those asked for must be there; without a wish, those that are there are taken.
fn wanted_peers(args: &Args) -> Result<Vec<String>, String> {
    let Some(names) = &args.peers else {
        return Ok(CONFIGURED
            .iter()
            .filter(|name| find(name).is_some())
            .map(|name| name.to_string())
            .collect());
    };
    match names.iter().find(|name| !CONFIGURED.contains(&name.as_str())) {
        Some(unknown) => {
            Err(format!("--peers knows nginx and haproxy; give `{unknown}` with --peer NAME=COMMAND"))
        }
        None => Ok(names.clone()),
    }
}

/// nginx or haproxy.
pub fn start_configured(
    name: &str,
    upstream: u16,
    scratch: &Scratch,
    launch: &Launch,
) -> Result<Target, Box<dyn Error>> {
    let program = find(name).ok_or_else(|| format!("{name} is not installed"))?;
    let port = free_port()?;
    let config = scratch.file(&format!("{name}.conf"));
    let text = if name == "nginx" {
        let servers = vec![format!("127.0.0.1:{upstream}")];
        let nginx = Nginx { name, listen: port.to_string(), servers, scheme: "http", more: String::new() };
        nginx.config(scratch.path())
    } else {
        haproxy_config(port, upstream)
    };
    fs::write(&config, text)?;
    let config = config.to_string_lossy().into_owned();
    let words: &[&str] = match (name, launch) {
        ("nginx", Launch::Plain) => &["-c", &config],
        // Workers of their own would not be counted.
        ("nginx", Launch::Callgrind { .. }) => &["-c", &config, "-g", "master_process off;"],
        _ => &["-db", "-f", &config],
    };
    let process = launch.start(&program, words, scratch.file(&format!("{name}.log")))?;
    Target::proxy(name, port, process)
}

fn start_command(peer: &PeerCommand, upstream: u16, scratch: &Scratch) -> Result<Target, Box<dyn Error>> {
    let port = free_port()?;
    let worker = format!("http://127.0.0.1:{upstream}");
    let fill = |word: &String| word.replace("{port}", &port.to_string()).replace("{upstream}", &worker);
    let words: Vec<String> = peer.words.iter().map(fill).collect();
    let (program, rest) = words.split_first().ok_or("--peer takes NAME=COMMAND")?;
    let process = Process::start(Path::new(program), rest, scratch.file(&format!("{}.log", peer.name)))?;
    Target::proxy(&peer.name, port, process)
}

/// An nginx in front of servers.
pub struct Nginx<'a> {
    /// What its files are called.
    pub name: &'a str,
    /// Where it listens: a port, with what follows it in `listen`.
    pub listen: String,
    /// Addresses of the servers behind it.
    pub servers: Vec<String>,
    /// `http` or `https`, to them.
    pub scheme: &'a str,
    /// Further lines of the `http` block.
    pub more: String,
}

impl Nginx<'_> {
    /// Buffers as large as the largest prompt, so that no body goes by way of a file.
    pub fn config(&self, scratch: &Path) -> String {
        let Nginx { name, listen, servers, scheme, more } = self;
        let folder = scratch.display();
        let servers: String = servers.iter().map(|address| format!("        server {address};\n")).collect();
        format!(
            "user root;
daemon off;
worker_processes auto;
worker_rlimit_nofile 16384;
pid {folder}/{name}.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/{name}-body;
    proxy_temp_path {folder}/{name}-proxy;
    fastcgi_temp_path {folder}/{name}-fastcgi;
    uwsgi_temp_path {folder}/{name}-uwsgi;
    scgi_temp_path {folder}/{name}-scgi;
    client_max_body_size 64m;
    client_body_buffer_size 256k;
    keepalive_requests 100000000;
    tcp_nodelay on;
{more}    upstream engine {{
{servers}        keepalive 4096;
        keepalive_requests 100000000;
    }}
    server {{
        listen 127.0.0.1:{listen};
        location / {{
            proxy_pass {scheme}://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off;
        }}
    }}
}}
"
        )
    }
}

fn haproxy_config(port: u16, upstream: u16) -> String {
    format!(
        "global
    maxconn 1024
defaults
    mode http
    option http-keep-alive
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{port}
    default_backend engine
backend engine
    server one 127.0.0.1:{upstream}
"
    )
}

/// The path of an installed program.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(DAEMON_DIRS.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// A port that was free a moment ago: not every proxy can take port 0 and say which one it got.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
