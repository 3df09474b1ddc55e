//! Starts the engine, what ends TLS in front of it, and the proxies.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use warmroute_bench_gateway::process::Process;
use warmroute_bench_gateway::proxies::{Nginx, find, free_port, start_engine};
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::target::Target;

use crate::client::SERVER_NAME;

/// Everything that runs.
pub struct Servers {
    /// The certificate of all servers.
    pub certificate: CertificateDer<'static>,
    /// The engine, without TLS.
    pub engine: Target,
    /// What is measured.
    pub proxies: Vec<Target>,
    _tls_end: Process,
}

/// The files of a certificate.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Servers {
    /// Starts all.
    pub fn start(binary: &str, before: Option<&str>, scratch: &Scratch) -> Result<Servers, Box<dyn Error>> {
        let names = vec![SERVER_NAME.to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names)?;
        let files = Files { certificate: scratch.file("cert.pem"), key: scratch.file("key.pem") };
        fs::write(&files.certificate, made.cert.pem())?;
        fs::write(&files.key, made.signing_key.serialize_pem())?;
        let engine = start_engine(Path::new(binary), scratch)?;
        let (end_port, plain) = (free_port()?, format!("http://127.0.0.1:{}", engine.port));
        let _tls_end = start_nginx("tls-end", end_port, &plain, &files, scratch)?;
        let upstream = format!("https://{SERVER_NAME}:{end_port}");
        let mut proxies = Vec::new();
        for (name, binary) in [("warmroute before", before), ("warmroute", Some(binary))] {
            let Some(binary) = binary else { continue };
            let mut process = start_gateway(name, binary, &upstream, &files, scratch)?;
            proxies.push(Target::unchecked_proxy(name, process.announced_port()?, process));
        }
        let port = free_port()?;
        let process = start_nginx("nginx", port, &upstream, &files, scratch)?;
        proxies.push(Target::unchecked_proxy("nginx", port, process));
        Ok(Servers { certificate: made.cert.der().clone(), engine, proxies, _tls_end })
    }
}

fn start_gateway(
    name: &str,
    binary: &str,
    upstream: &str,
    files: &Files,
    scratch: &Scratch,
) -> Result<Process, Box<dyn Error>> {
    let (certificate, key) = (files.certificate.display().to_string(), files.key.display().to_string());
    let ports = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0"];
    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--worker-tls-ca", &certificate];
    let words = [&ports[..], &tls, &["--worker-urls", upstream]].concat();
    Ok(Process::start(Path::new(binary), &words, scratch.file(&format!("{name}.log")))?)
}

/// nginx with a TLS listener, in front of an `http` or `https` server.
fn start_nginx(
    name: &str,
    port: u16,
    upstream: &str,
    files: &Files,
    scratch: &Scratch,
) -> Result<Process, Box<dyn Error>> {
    let program = find("nginx").ok_or("nginx is not installed")?;
    let config = scratch.file(&format!("{name}.conf"));
    let (scheme, address) = upstream.split_once("://").ok_or("a URL has a scheme")?;
    let (listen, servers) = (format!("{port} ssl"), vec![address.to_owned()]);
    let nginx = Nginx { name, listen, servers, scheme, more: tls_lines(files) };
    fs::write(&config, nginx.config(scratch.path()))?;
    let words = ["-c".into(), config.into_os_string()];
    Ok(Process::start(&program, &words, scratch.file(&format!("{name}.log")))?)
}

/// TLS 1.3 on both sides, with one cipher suite and one key exchange. Sessions are resumed by tickets.
fn tls_lines(files: &Files) -> String {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    format!(
        "    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.3;
    ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
    ssl_ecdh_curve X25519;
    ssl_session_cache off;
    ssl_session_tickets on;
    proxy_ssl_protocols TLSv1.3;
    proxy_ssl_trusted_certificate {certificate};
    proxy_ssl_verify on;
    proxy_ssl_name {SERVER_NAME};
"
    )
}
