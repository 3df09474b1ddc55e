//! How this router shares what it knows with others.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use sha2::{Digest, Sha256};
use warmroute_share::{MeshConfig, MeshPace, MeshTls, RedisConfig, RedisPace, Secret, Versions};
use warmroute_types::masked;
use warmroute_wire::WorkerTls;

use super::filled;
use crate::options::Sharing;
use crate::security::identity;

/// Checked, and not begun.
pub struct SharePlan {
    /// By what.
    pub transport: Transport,
    /// Of the digests of prompts: routers with the same secret have the same.
    pub seed: u64,
}

impl SharePlan {
    /// Where other routers reach us, if they do.
    pub fn listen(&self) -> Option<SocketAddr> {
        match &self.transport {
            Transport::Mesh(config) => Some(config.listen),
            Transport::Redis(_) => None,
        }
    }
}

/// What carries messages.
pub enum Transport {
    /// The routers themselves.
    Mesh(Box<MeshConfig>),
    /// A Redis or Valkey server.
    Redis(Box<RedisConfig>),
}

/// The plan; `None` for a router on its own.
pub fn plan(options: &Sharing) -> anyhow::Result<Option<SharePlan>> {
    let by: Vec<&str> = options.share.iter().flatten().map(String::as_str).collect();
    if by.is_empty() {
        let idle = without_share(options);
        anyhow::ensure!(
            idle.is_none(),
            "{} means nothing without share: write share = [\"mesh\"], or the URL of a Redis server",
            idle.unwrap_or_default()
        );
        return Ok(None);
    }
    let file = options.share_secret_file.as_deref();
    let file =
        file.context("share-secret-file: routers that share must share a secret, of 16 bytes or more")?;
    let text = read(file).context("share-secret-file")?;
    let seed = seed(&text);
    let secret = Secret::new(text);
    let transport = match by.as_slice() {
        ["mesh"] => Transport::Mesh(Box::new(mesh(options, secret)?)),
        urls => Transport::Redis(Box::new(redis(options, urls, secret)?)),
    };
    Ok(Some(SharePlan { transport, seed }))
}

/// An option that somebody gave who believes that this router shares.
fn without_share(options: &Sharing) -> Option<&'static str> {
    let given = [
        ("share-secret-file", options.share_secret_file.is_some()),
        ("mesh-peers", options.mesh_peers.as_ref().is_some_and(|peers| !peers.is_empty())),
        ("mesh-advertise", options.mesh_advertise.is_some()),
        ("mesh-tls-cert", options.mesh_tls_cert.is_some()),
        ("share-redis-password-file", options.share_redis_password_file.is_some()),
    ];
    given.into_iter().find(|(_, is_given)| *is_given).map(|(key, _)| key)
}

/// Digests are keyed by what only the routers know, in another way than messages are.
fn seed(secret: &str) -> u64 {
    let hash = Sha256::new().chain_update(b"warmroute prompts\0").chain_update(secret).finalize();
    hash.iter().take(8).fold(0, |seed, &byte| seed << 8 | u64::from(byte))
}

fn read(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.trim().to_owned())
}

fn mesh(options: &Sharing, secret: Secret) -> anyhow::Result<MeshConfig> {
    let identity = identity(&options.mesh_tls_cert, &options.mesh_tls_key).context("mesh-tls")?;
    let tls = match (identity, &options.mesh_tls_ca) {
        (Some(identity), Some(ca)) => {
            Some(MeshTls { identity, ca: ca.clone(), server_name: options.mesh_tls_name.clone() })
        }
        (None, None) => None,
        _ => anyhow::bail!(
            "mesh-tls: a certificate, its key and the routers' authority (mesh-tls-ca) go together"
        ),
    };
    let config = MeshConfig {
        listen: filled(options.mesh_listen),
        advertise: options.mesh_advertise.clone(),
        peers: options.mesh_peers.clone().unwrap_or_default(),
        secret: Some(secret),
        tls,
        versions: Versions::OURS,
        pace: MeshPace::default(),
    };
    config.validate()?;
    Ok(config)
}

fn redis(options: &Sharing, urls: &[&str], secret: Secret) -> anyhow::Result<RedisConfig> {
    anyhow::ensure!(!urls.contains(&"mesh"), "share: mesh or the URLs of Redis servers, not both");
    for url in urls {
        let is_redis = url.starts_with("redis://") || url.starts_with("rediss://");
        anyhow::ensure!(
            is_redis,
            "share: `{}` is neither mesh nor redis://HOST:PORT nor rediss://HOST:PORT",
            masked(url)
        );
        let rest = url.split("//").nth(1).unwrap_or_default();
        let login = rest.split_once('@');
        let shows_password = login.is_some_and(|(login, _)| login.contains(':'));
        anyhow::ensure!(
            !shows_password,
            "share: a password in a URL is seen by whoever sees the process; put it into share-redis-password-file"
        );
        let is_bare = !rest.contains('?') && rest.split_once('/').is_none_or(|(_, path)| path.is_empty());
        anyhow::ensure!(
            is_bare,
            "share: a Redis URL ends with its port: there is no database to choose, for nothing is stored, and \
             a password belongs into share-redis-password-file"
        );
    }
    let password = options.share_redis_password_file.as_deref().map(read).transpose();
    let config = RedisConfig {
        urls: urls.iter().map(|url| Secret::new(*url)).collect(),
        password: password.context("share-redis-password-file")?.map(Secret::new),
        secret,
        prefix: filled(options.share_redis_prefix.clone()),
        tls: WorkerTls {
            ca: options.share_redis_tls_ca.clone(),
            identity: identity(&options.share_redis_tls_cert, &options.share_redis_tls_key)
                .context("share-redis-tls")?,
        },
        versions: Versions::OURS,
        pace: RedisPace::default(),
    };
    config.validate()?;
    Ok(config)
}
