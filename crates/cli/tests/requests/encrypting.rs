//! TLS on both listeners and towards workers, with client certificates and certificate rotation.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;

use crate::harness::client::{Call, chat, get, post};
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::temp_folder::TempFolder;
use crate::harness::{TIMEOUT, eventually};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A certificate authority, as files.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempFolder,
}

/// Files of a certificate and its key.
#[derive(Clone)]
struct Identity {
    cert: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = TempFolder::new(&format!("tls-{name}"));
        std::fs::write(folder.file("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, folder }
    }

    fn ca(&self) -> String {
        self.folder.file("ca.pem")
    }

    /// Issues a certificate for 127.0.0.1.
    fn issue(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = Identity {
            cert: self.folder.file(&format!("{name}.pem")),
            key: self.folder.file(&format!("{name}.key")),
        };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

/// The whole answer to a client with this authority and certificate, or an empty one.
fn ask(url: &str, path: &str, ca: &str, identity: Option<&Identity>) -> String {
    let body = chat("llama-3.1-8b");
    let method = if path.starts_with("/v1/chat") { "POST" } else { "GET" };
    let request = Call::request(method, path, &[], if method == "POST" { body.as_bytes() } else { b"" });
    let mut answer = Vec::new();
    if let Ok(mut stream) = connect(url, ca, identity)
        && stream.write_all(&request).is_ok()
    {
        // A failed handshake is a valid outcome.
        _ = stream.read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn connect(
    url: &str,
    ca: &str,
    identity: Option<&Identity>,
) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { cert, key }) => {
            let cert = CertificateDer::from_pem_file(cert).unwrap();
            builder.with_client_auth_cert(vec![cert], PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
    let socket = TcpStream::connect(url.strip_prefix("https://").unwrap())?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.flush()?;
    Ok(stream)
}

/// A gateway with this server certificate.
fn serve_as(identity: &Identity, flags: &[&str]) -> Process {
    serve(&[&["--tls-cert", &identity.cert, "--tls-key", &identity.key], flags].concat())
}

fn serve(flags: &[&str]) -> Process {
    Process::serve(flags, Stdio::null())
}

const OK: &str = "HTTP/1.1 200 OK";

#[test]
fn both_listeners_speak_tls_and_require_certificates_if_configured() {
    let (authority, stranger) = (Authority::new("listeners"), Authority::new("stranger"));
    let (server, client, other) =
        (authority.issue("server"), authority.issue("client"), stranger.issue("other"));
    let (engine, ca) = (engine(&[]), authority.ca());
    let admin =
        ["--admin-tls-cert", &server.cert, "--admin-tls-key", &server.key, "--admin-tls-client-ca", &ca];
    let gateway = serve_as(&server, &[&["--worker-urls", engine.url()], &admin[..]].concat());
    assert!(gateway.url().starts_with("https://") && gateway.admin().starts_with("https://"));
    eventually("it is ready", || {
        ask(gateway.admin(), "/readyz", &ca, Some(&client)).starts_with(OK).then_some(())
    });
    let answer = ask(gateway.url(), "/v1/chat/completions", &ca, None);
    assert!(answer.starts_with(OK) && answer.contains("\"choices\""), "{answer}");
    assert_eq!(
        ask(gateway.url(), "/health", &stranger.ca(), None),
        "",
        "who does not trust it does not talk to it"
    );
    assert_eq!(ask(gateway.admin(), "/metrics", &ca, None), "", "no certificate");
    assert_eq!(ask(gateway.admin(), "/metrics", &ca, Some(&other)), "", "a stranger's certificate");
    assert!(ask(gateway.admin(), "/metrics", &ca, Some(&client)).contains("warmroute_client_connections"));
    // A plain HTTP client gets an error and affects no other client.
    let plain = gateway.url().replace("https://", "http://");
    assert!(Call::send(&plain, "GET", "/health", &[], b"").finish_if_begun().is_none());
    assert!(ask(gateway.url(), "/health", &ca, None).starts_with(OK));
}

#[test]
fn old_versions_of_tls_are_refused_with_an_alert() {
    let (authority, engine) = (Authority::new("versions"), engine(&[]));
    let Identity { cert, key } = authority.issue("server");
    let gateway = Gateway::over(&[engine.url()], &["--tls-cert", &cert, "--tls-key", &key]);
    // SSL 3.0, TLS 1.0 and TLS 1.1.
    for minor in 0..=2 {
        let hello = [&[3, minor][..], &[7; 32], &[0, 0, 2, 0, 0x2f, 1, 0]].concat();
        let length = hello.len() as u8;
        let record = [&[0x16, 3, minor.min(1), 0, length + 4, 1, 0, 0, length][..], &hello].concat();
        let mut stream = TcpStream::connect(gateway.url().trim_start_matches("https://")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&record).unwrap();
        let mut answer = Vec::new();
        _ = stream.read_to_end(&mut answer);
        assert!(matches!(answer[..], [0x15, 3, _, 0, 2, 2, _]), "3.{minor}: {answer:x?}");
    }
}

#[test]
fn a_certificate_is_replaced_at_run_time_and_a_bad_one_is_refused() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (before, after) = (old.issue("server"), new.issue("server"));
    let gateway = serve_as(&before, &[]);
    let heard = |ca: &str| !ask(gateway.url(), "/health", ca, None).is_empty();
    assert!(heard(&old.ca()) && !heard(&new.ca()));
    let mut open = connect(gateway.url(), &old.ca(), None).unwrap();

    let refused =
        || get(gateway.admin(), "/metrics").text().contains("config_reloads_total{outcome=\"refused\"} 1");
    std::fs::write(&before.cert, "no certificate").unwrap();
    eventually("a bad certificate is refused", || refused().then_some(()));
    assert!(heard(&old.ca()), "the old one stays");

    std::fs::copy(&after.key, &before.key).unwrap();
    std::fs::copy(&after.cert, &before.cert).unwrap();
    eventually("the new certificate is shown", || heard(&new.ca()).then_some(()));
    assert!(!heard(&old.ca()));
    open.write_all(&Call::request("GET", "/health", &[], b"")).unwrap();
    let mut answer = String::new();
    _ = open.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 503"), "a connection that was open goes on: {answer}");
}

#[test]
fn a_listener_with_tls_is_handed_over_and_its_certificate_is_replaced_after_that() {
    let (old, new) = (Authority::new("handover-old"), Authority::new("handover-new"));
    let (before, after, engine) = (old.issue("server"), new.issue("server"), engine(&[]));
    let path = old.folder.file("sock");
    let flags = ["--worker-urls", engine.url(), "--handover", &path];
    let first = serve_as(&before, &flags);
    eventually("it is ready", || (get(first.admin(), "/readyz").status == 200).then_some(()));
    let mut open = connect(first.url(), &old.ca(), None).unwrap();
    let second = serve_as(&before, &flags);
    assert_eq!((second.url(), second.admin()), (first.url(), first.admin()));
    let answer = ask(second.url(), "/v1/chat/completions", &old.ca(), None);
    assert!(answer.starts_with(OK), "{answer}");
    open.write_all(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
    let mut last = String::new();
    _ = open.read_to_string(&mut last);
    assert!(
        last.starts_with(OK) && last.contains("connection: close"),
        "the first one still answers: {last}"
    );
    assert!(first.wait().success());
    std::fs::copy(&after.key, &before.key).unwrap();
    std::fs::copy(&after.cert, &before.cert).unwrap();
    eventually("the new certificate is shown", || {
        ask(second.url(), "/health", &new.ca(), None).starts_with(OK).then_some(())
    });
}

/// A gateway serves as the TLS worker behind the gateway under test.
#[test]
fn workers_are_reached_over_tls_with_a_client_certificate() {
    let (authority, stranger) = (Authority::new("workers"), Authority::new("impostor"));
    let (server, client) = (authority.issue("server"), authority.issue("client"));
    let (engine, ca) = (engine(&[]), authority.ca());
    let worker = serve_as(&server, &["--worker-urls", engine.url(), "--tls-client-ca", &ca]);
    eventually("the worker is ready", || (get(worker.admin(), "/readyz").status == 200).then_some(()));
    let shown = ["--worker-tls-ca", &ca, "--worker-tls-cert", &client.cert, "--worker-tls-key", &client.key];
    let gateway = Gateway::over(&[worker.url()], &shown);
    for _ in 0..3 {
        let response = post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
        assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(worker.url())));
    }
    // An untrusted worker certificate, and a missing client certificate.
    let (stranger_ca, log) = (stranger.ca(), authority.folder.file("log"));
    for trusted in [&stranger_ca, &ca] {
        let flags = ["--worker-urls", worker.url(), "--worker-tls-ca", trusted];
        let gateway = Process::serve(&flags, std::fs::File::create(&log).unwrap().into());
        let text = || std::fs::read_to_string(&log).unwrap();
        eventually("its probe fails", || text().contains("probe failed").then_some(()));
        eventually(&format!("because of a certificate: {}", text()), || {
            text()
                .lines()
                .any(|line| line.contains("probe failed") && line.contains("ertificate"))
                .then_some(())
        });
        assert_eq!(get(gateway.admin(), "/readyz").status, 503);
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 503);
    }
}

#[test]
fn explain_asks_an_admin_listener_with_tls() {
    let (authority, engine) = (Authority::new("explain"), engine(&[]));
    let Identity { cert, key } = authority.issue("gateway");
    let gateway = serve(&["--admin-tls-cert", &cert, "--admin-tls-key", &key, "--worker-urls", engine.url()]);
    let asked = run(&["explain", "--admin", gateway.admin(), "--admin-ca", &authority.ca()]);
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let asked = run(&["explain", "--admin", gateway.admin()]);
    let error = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(!asked.status.success() && error.contains("no gateway answers"), "{error}");
}

#[test]
fn certificates_without_keys_are_refused_at_the_start() {
    let authority = Authority::new("start");
    let (one, other) = (authority.issue("one"), authority.issue("other"));
    let config = authority.folder.file("config.toml");
    for (cert, key, why) in [
        (&one.cert, &other.key, "security.tls-cert: "),
        (&one.key, &one.key, "has no certificate in PEM"),
        (&one.cert, &one.cert, "has no private key in PEM"),
    ] {
        std::fs::write(&config, format!("[security]\ntls-cert = {cert:?}\ntls-key = {key:?}\n")).unwrap();
        let checked = run(&["check", &config]);
        let error = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(!checked.status.success() && error.contains(why), "{error}");
        assert!(!error.contains("PRIVATE"), "{error}");
    }
}

#[test]
fn the_doctor_tells_tls_from_plain_http() {
    let (authority, plain) = (Authority::new("doctor"), engine(&[]));
    let Identity { cert, key } = authority.issue("gateway");
    let tls = Gateway::over(&[plain.url()], &["--tls-cert", &cert, "--tls-key", &key]);
    let examine = |url: &str| {
        let done = run(&["doctor", "--worker-urls", url, "--worker-tls-ca", &authority.ca()]);
        (String::from_utf8_lossy(&done.stdout).into_owned(), done.status.success())
    };
    let (said, is_content) = examine(&plain.url().replace("http://", "https://"));
    let words = "the URL says https, but the engine speaks plain HTTP at this port";
    assert!(
        !is_content && said.contains(words) && said.contains(&format!("write {}", plain.url())),
        "{said}"
    );
    let (said, is_content) = examine(&tls.url().replace("https://", "http://"));
    let words = "the URL says http, but the engine speaks TLS at this port";
    assert!(!is_content && said.contains(words) && said.contains(&format!("write {}", tls.url())), "{said}");
    let (said, _) = examine(tls.url());
    assert!(!said.contains("at this port"), "{said}");
    let (said, _) = examine("https://127.0.0.1:1");
    assert!(said.contains("the engine does not answer") && !said.contains("at this port"), "{said}");
}
