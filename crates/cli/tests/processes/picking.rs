//! The endpoint picker as a process: its listener, TLS on the same port, and handovers. The protocol itself is tested in
//! `crates/edge/picker`, and with a real Envoy in `conformance/envoy`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::harness::TIMEOUT;
use crate::harness::client::{chat, post};
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::temp_folder::TempFolder;

/// The beginning of HTTP/2: the preface and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The type of a frame of settings, and of a TLS record with a handshake.
const SETTINGS: u8 = 4;
const TLS_HANDSHAKE: u8 = 22;

/// The first `n` bytes of the answer to these bytes.
fn answer<const N: usize>(address: &str, bytes: &[u8]) -> [u8; N] {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = [0; N];
    stream.read_exact(&mut answer).unwrap();
    answer
}

/// What a TLS client sends first.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("picker").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn the_picker_takes_plain_and_encrypted_connections_beside_the_gateway() {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &["--picker-port", "0", "--picker-host", "127.0.0.1"]);
    let picker = gateway.process.picker();
    assert_eq!(answer::<9>(picker, HTTP2)[3], SETTINGS);
    assert_eq!(answer::<1>(picker, &client_hello()), [TLS_HANDSHAKE], "with a certificate of its own");
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
}

#[test]
fn a_handover_passes_the_pickers_listener() {
    let engine = engine(&[]);
    let folder = TempFolder::new("picker-handover");
    let socket = folder.file("sock");
    let flags = ["--picker-port", "0", "--picker-host", "127.0.0.1", "--handover", &socket];
    let old = Gateway::over(&[engine.url()], &flags);
    let picker = old.process.picker().to_owned();
    let new = Gateway::start(&[engine.url()], &flags);
    assert_eq!(new.process.picker(), picker);
    assert!(old.process.wait().success());
    assert_eq!(answer::<9>(&picker, HTTP2)[3], SETTINGS);
}

#[test]
fn each_pool_has_a_listener_that_a_handover_passes() {
    let engines = [engine(&[]), engine(&[])];
    let folder = TempFolder::new("picker-pools");
    let (socket, config) = (folder.file("sock"), folder.file("config.toml"));
    let table = |(engine, pool): (&Process, &str)| {
        format!("[[workers]]\nurl = \"{}\"\npool = \"{pool}\"\n", engine.url())
    };
    let tables: Vec<String> = engines.iter().zip(["llama", "qwen"]).map(table).collect();
    std::fs::write(&config, tables.concat()).unwrap();
    let picker = ["--picker-pools", "llama=0", "qwen=0", "--picker-host", "127.0.0.1"];
    let flags = [&["--config", &config, "--handover", &socket][..], &picker].concat();
    let old = Gateway::start(&[], &flags);
    let places = ["llama", "qwen"].map(|pool| old.process.pool(pool).to_owned());
    assert_ne!(places[0], places[1]);
    assert_eq!(answer::<9>(&places[1], HTTP2)[3], SETTINGS);
    for worker in old.workers() {
        let pool = if worker["url"] == engines[0].url() { "llama" } else { "qwen" };
        assert_eq!(worker["pools"], serde_json::json!([pool]));
    }
    let new = Gateway::start(&[], &flags);
    assert_eq!(["llama", "qwen"].map(|pool| new.process.pool(pool).to_owned()), places);
    assert!(old.process.wait().success());
    assert_eq!(answer::<9>(&places[0], HTTP2)[3], SETTINGS);
}

#[test]
fn a_setting_without_meaning_is_refused() {
    let refused = run(&["serve", "--picker-port", "0", "--picker-fallbacks", "9"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("picker-fallbacks must be at most 3"), "{error}");
    let refused = run(&["serve", "--picker-feedback", "always"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("off, observer, stream"), "{error}");
}
