//! Turns options into keys, tokens and certificates. All named files are read here, so that mistakes surface before a
//! configuration takes effect. Errors never show the content of secret files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use http::HeaderValue;
use warmroute_gateway::{Keys, Token, WorkerApi};
use warmroute_operate::Acceptors;
use warmroute_wire::{Acceptor, AppProtocol, Dialer, Identity, WorkerTls};

use crate::options::groups::ClientWorkerApi;
use crate::options::{Options, Secret, Security};

/// The token of the admin listener.
pub fn admin_token(security: &Security) -> anyhow::Result<Option<Token>> {
    let token = secret("admin-token", &security.admin_token, &security.admin_token_file)?;
    Ok(token.map(|token| Token::new(&token)))
}

/// Who may manage workers on the client listener.
pub fn worker_api(security: &Security) -> anyhow::Result<WorkerApi> {
    Ok(match security.client_worker_api.unwrap_or_default() {
        ClientWorkerApi::Off => WorkerApi::AdminOnly,
        ClientWorkerApi::Open => WorkerApi::Open,
        ClientWorkerApi::Token => {
            let token = admin_token(security)?;
            WorkerApi::WithToken(token.context("client-worker-api: token needs an admin-token")?)
        }
    })
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
pub fn check_secret(secret: &str) -> anyhow::Result<()> {
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
pub fn dialer(security: &Security) -> anyhow::Result<Dialer> {
    let key = secret("worker-api-key", &security.worker_api_key, &security.worker_api_key_file)?;
    let header = key.map(|key| HeaderValue::try_from(format!("Bearer {key}")));
    // The original error would show the key.
    let header = header.transpose().map_err(|_| {
        anyhow::anyhow!("worker-api-key contains characters that an HTTP header cannot carry")
    })?;
    let identity = identity(&security.worker_tls_cert, &security.worker_tls_key).context("worker-tls")?;
    Dialer::new(header, WorkerTls { ca: security.worker_tls_ca.clone(), identity }).context("worker-tls")
}

/// A certificate and its key: both or neither.
pub fn identity(cert: &Option<PathBuf>, key: &Option<PathBuf>) -> anyhow::Result<Option<Identity>> {
    match (cert.clone(), key.clone()) {
        (Some(certificates), Some(key)) => Ok(Some(Identity { certificates, key })),
        (None, None) => Ok(None),
        _ => anyhow::bail!("set both the certificate and its key"),
    }
}

/// Plain or TLS, for each listener.
pub fn acceptors(options: &Options) -> anyhow::Result<Acceptors> {
    let s = &options.security;
    Ok(Acceptors {
        picker: picker_acceptor(options).context("tls")?,
        clients: acceptor(identity(&s.tls_cert, &s.tls_key), &s.tls_client_ca).context("tls")?,
        operators: acceptor(identity(&s.admin_tls_cert, &s.admin_tls_key), &s.admin_tls_client_ca)
            .context("admin-tls")?,
    })
}

/// The endpoint picker's certificate: the client listener's, or one of its own making, because most proxies that use TLS
/// do not verify it.
fn picker_acceptor(options: &Options) -> anyhow::Result<Acceptor> {
    let Some(_) = options.picker.picker_port else { return Ok(Acceptor::default()) };
    Ok(match identity(&options.security.tls_cert, &options.security.tls_key)? {
        Some(identity) => Acceptor::tls(&identity, None, AppProtocol::Http2)?,
        None => Acceptor::self_signed("warmroute", AppProtocol::Http2)?,
    })
}

fn acceptor(
    identity: anyhow::Result<Option<Identity>>,
    client_ca: &Option<PathBuf>,
) -> anyhow::Result<Acceptor> {
    match identity? {
        Some(identity) => Ok(Acceptor::tls(&identity, client_ca.as_ref(), AppProtocol::Http)?),
        None if client_ca.is_some() => {
            anyhow::bail!("a CA bundle for clients requires a certificate and a key of the listener")
        }
        None => Ok(Acceptor::default()),
    }
}
