//! Turns options into keys, tokens and certificates. All named files are read here, so that mistakes surface before a
//! configuration takes effect. Errors never show the content of secret files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use http::HeaderValue;
use warmroute_gateway::{Keys, Token};
use warmroute_operate::{Acceptors, PickerPlan};
use warmroute_wire::{Acceptor, AppProtocol, BadTls, Dialer, TlsFiles};

use crate::options::{Events, Secret, Security, TlsSettings};

/// The token of the admin listener.
pub fn admin_token(security: &Security) -> anyhow::Result<Option<Token>> {
    let token = secret("admin-token", &security.admin_token, &security.admin_token_file)?;
    Ok(token.map(|token| Token::new(&token)))
}

/// The token of `POST /events`.
pub fn events_token(events: &Events) -> anyhow::Result<Option<Token>> {
    let token = secret("events-token", &events.events_token, &None)?;
    Ok(token.map(|token| Token::new(&token)))
}

/// A secret that the option `key` gives, or the file of `key-file`.
pub fn secret(key: &str, given: &Option<Secret>, file: &Option<PathBuf>) -> anyhow::Result<Option<String>> {
    let (key, secret) = match (given, file) {
        (Some(_), Some(_)) => anyhow::bail!("{key}: set either the value or the file, not both"),
        (Some(given), None) => (key.to_owned(), Ok(given.reveal().to_owned())),
        (None, Some(file)) => (format!("{key}-file"), read(file).map(|text| text.trim().to_owned())),
        (None, None) => return Ok(None),
    };
    let secret = secret.and_then(|secret| check_secret(&secret).map(|()| secret));
    secret.map(Some).context(key)
}

/// Checks that a header can carry the secret.
fn check_secret(secret: &str) -> anyhow::Result<()> {
    anyhow::ensure!(!secret.is_empty(), "the secret is empty");
    anyhow::ensure!(
        !secret.contains(char::is_control),
        "the secret contains control characters, such as a line break"
    );
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The API keys.
pub fn keys(security: &Security) -> anyhow::Result<Option<Keys>> {
    let Some(file) = &security.api_keys_file else { return Ok(None) };
    let keys =
        read(file).and_then(|text| Keys::read(&text).with_context(|| format!("in {}", file.display())));
    keys.map(Some).context("api-keys-file")
}

/// How to connect to workers.
pub fn dialer(security: &Security, tls: TlsFiles) -> anyhow::Result<Dialer> {
    let key = secret("worker-api-key", &security.worker_api_key, &security.worker_api_key_file)?;
    let header = key.map(|key| HeaderValue::try_from(format!("Bearer {key}")));
    // The original error would show the key.
    let header = header.transpose().map_err(|_| {
        anyhow::anyhow!("worker-api-key contains characters that an HTTP header cannot carry")
    })?;
    Dialer::new(header, tls).context("worker-tls")
}

/// Plain or TLS, for each listener.
pub fn acceptors(tls: &TlsSettings, picker: Option<&PickerPlan>) -> anyhow::Result<Acceptors> {
    let TlsSettings { clients, operators, .. } = tls;
    Ok(Acceptors {
        clients: Acceptor::new(clients, AppProtocol::Http).context("tls")?,
        operators: Acceptor::new(operators, AppProtocol::Http).context("admin-tls")?,
        picker: picker
            .map_or_else(|| Ok(Acceptor::default()), |_| picker_acceptor(clients))
            .context("tls")?,
    })
}

/// The endpoint picker's certificate: the client listener's, or one of its own making, because most proxies that use TLS
/// do not verify it.
fn picker_acceptor(clients: &TlsFiles) -> Result<Acceptor, BadTls> {
    match clients.certificates {
        Some(_) => Acceptor::new(&TlsFiles { ca: None, ..clients.clone() }, AppProtocol::Http2),
        None => Acceptor::self_signed("warmroute", AppProtocol::Http2),
    }
}
