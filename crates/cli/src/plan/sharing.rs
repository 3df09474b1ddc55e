//! How this router shares what it knows with others.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use sha2::{Digest, Sha256};
use warmroute_share::{
    BadShare, MeshConfig, MeshPace, MeshTls, RedisConfig, RedisPace, Secret, Secrets, Versions,
};
use warmroute_types::mask_url;
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
    /// Files with secrets that everybody on this machine may read.
    pub exposed: Vec<PathBuf>,
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
    refuse_idle(options, &by)?;
    if by.is_empty() {
        return Ok(None);
    }
    let file = options.share_secret_file.as_deref();
    let file =
        file.context("share-secret-file: routers that share must share a secret, of 16 bytes or more")?;
    let secrets = Secrets::from_file(file).map_err(|bad| named(bad, options))?;
    let seed = secrets.spoken().map_or(0, |spoken| seed(spoken.reveal()));
    let transport = match by.as_slice() {
        ["mesh"] => Transport::Mesh(Box::new(mesh(options, secrets)?)),
        urls => Transport::Redis(Box::new(redis(options, urls, secrets)?)),
    };
    let files = [&options.share_secret_file, &options.share_redis_password_file];
    let exposed = files.into_iter().flatten().filter(|file| is_exposed(file)).cloned().collect();
    Ok(Some(SharePlan { transport, seed, exposed }))
}

/// An option that has no effect is a mistake of somebody who believes that it has.
fn refuse_idle(options: &Sharing, by: &[&str]) -> anyhow::Result<()> {
    let (idle, why) = match by {
        [] => ("", "means nothing without share: write share = \"mesh\", or the URL of a Redis server"),
        ["mesh"] => ("share-redis-", "is for sharing by Redis, and share says mesh: leave one of them out"),
        _ => ("mesh-", "is for sharing by mesh, and share names a Redis server: leave one of them out"),
    };
    match given(options).into_iter().find(|key| key.starts_with(idle)) {
        Some(key) => Err(anyhow!("{key} {why}")),
        None => Ok(()),
    }
}

/// The keys beside `share` whose values are not what they are by themselves.
fn given(options: &Sharing) -> Vec<String> {
    let table = |options: &Sharing| toml::Table::try_from(options).unwrap_or_default();
    let defaults = table(&Sharing::defaults());
    let differs = |(key, value): &(String, toml::Value)| key != "share" && defaults.get(key) != Some(value);
    table(options).into_iter().filter(differs).map(|(key, _)| key).collect()
}

/// With the key that has to be mended.
fn named(bad: BadShare, options: &Sharing) -> anyhow::Error {
    let is_mesh = options.share.iter().flatten().any(|by| by == "mesh");
    let key = match &bad {
        BadShare::NoSecret(_) | BadShare::Unreadable { .. } => "share-secret-file",
        BadShare::BadUrl(_) => "share",
        BadShare::BadPeer(place) if options.mesh_advertise.as_ref() == Some(place) => "mesh-advertise",
        BadShare::BadPeer(_) => "mesh-peers",
        BadShare::BadTls(_) if is_mesh => "mesh-tls",
        BadShare::BadTls(_) => "share-redis-tls",
        BadShare::CannotListen { .. } => "mesh-listen",
    };
    anyhow::Error::new(bad).context(key)
}

/// Whether everybody on this machine may read it.
fn is_exposed(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|there| there.permissions().mode() & 0o004 != 0)
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

fn mesh(options: &Sharing, secrets: Secrets) -> anyhow::Result<MeshConfig> {
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
    let is_named = tls.is_some() || options.mesh_tls_name.is_none();
    anyhow::ensure!(
        is_named,
        "mesh-tls-name means nothing without mesh-tls-cert, mesh-tls-key and mesh-tls-ca"
    );
    let config = MeshConfig {
        listen: filled(options.mesh_listen),
        advertise: options.mesh_advertise.clone(),
        peers: options.mesh_peers.clone().unwrap_or_default(),
        secret: Some(secrets),
        tls,
        versions: Versions::OURS,
        pace: MeshPace::default(),
    };
    config.validate().and_then(|()| config.read_certificates()).map_err(|bad| named(bad, options))?;
    Ok(config)
}

fn redis(options: &Sharing, urls: &[&str], secret: Secrets) -> anyhow::Result<RedisConfig> {
    anyhow::ensure!(!urls.contains(&"mesh"), "share: mesh or the URLs of Redis servers, not both");
    for url in urls {
        let is_redis = url.starts_with("redis://") || url.starts_with("rediss://");
        anyhow::ensure!(
            is_redis,
            "share: `{}` is neither mesh nor redis://HOST:PORT nor rediss://HOST:PORT",
            mask_url(url)
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
    config.validate().and_then(|()| config.read_certificates()).map_err(|bad| named(bad, options))?;
    Ok(config)
}
