//! The settings of sharing state with other routers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use warmroute_share::{BadShare, MeshConfig, RedisConfig, Secret, Secrets};
use warmroute_types::mask_url;

use super::{SharePlan, Transport};

/// Sharing by a mesh or by Redis. The secrets are not read yet.
#[derive(Clone, Debug)]
pub struct ShareSettings {
    /// `mesh`, or URLs of Redis servers; empty: a single router.
    pub by: Vec<String>,
    /// File with the secrets that all routers share.
    pub secret_file: Option<PathBuf>,
    /// The mesh, if it is the transport.
    pub mesh: MeshConfig,
    /// File with the password of the Redis servers.
    pub redis_password_file: Option<PathBuf>,
    /// The Redis servers, if they are the transport.
    pub redis: RedisConfig,
}

impl Default for ShareSettings {
    fn default() -> ShareSettings {
        ShareSettings {
            by: Vec::new(),
            secret_file: None,
            mesh: MeshConfig::new(SocketAddr::from(([0, 0, 0, 0], 7_946)), Vec::new(), []),
            redis_password_file: None,
            redis: RedisConfig::new("", []),
        }
    }
}

impl ShareSettings {
    /// The validated settings; `None` for a single router.
    pub fn plan(&self) -> anyhow::Result<Option<SharePlan>> {
        let by: Vec<&str> = self.by.iter().map(String::as_str).collect();
        self.refuse_unused(&by)?;
        if by.is_empty() {
            return Ok(None);
        }
        if by != ["mesh"] {
            check_redis_urls(&by)?;
        }
        let file = self.secret_file.as_deref().context(
            "share-secret-file is missing: routers that share state need a common secret of at least 16 bytes",
        )?;
        let secrets = Secrets::from_file(file).map_err(|bad| self.with_key(bad))?;
        let transport = match by.as_slice() {
            ["mesh"] => Transport::Mesh(Box::new(self.mesh(secrets.clone())?)),
            urls => Transport::Redis(Box::new(self.redis(urls, secrets.clone())?)),
        };
        let files: Vec<&Path> =
            [Some(file), self.redis_password_file.as_deref()].into_iter().flatten().collect();
        Ok(Some(SharePlan::new(transport, &secrets, &files)))
    }

    /// Refuses options without effect, because the user expects one.
    fn refuse_unused(&self, by: &[&str]) -> anyhow::Result<()> {
        let (prefix, why) = match by {
            [] => ("", "has no effect without share: set share = \"mesh\" or a Redis URL"),
            ["mesh"] => ("share-redis-", "applies to Redis, but share is mesh: remove one of them"),
            _ => ("mesh-", "applies to the mesh, but share is a Redis URL: remove one of them"),
        };
        let without = ShareSettings::default();
        let (tls, no_tls) = (&self.redis.tls, &without.redis.tls);
        let given = [
            ("share-secret-file", self.secret_file != without.secret_file),
            ("mesh-listen", self.mesh.listen != without.mesh.listen),
            ("mesh-advertise", self.mesh.advertise != without.mesh.advertise),
            ("mesh-peers", self.mesh.peers != without.mesh.peers),
            ("share-redis-password-file", self.redis_password_file != without.redis_password_file),
            ("share-redis-prefix", self.redis.prefix != without.redis.prefix),
            ("share-redis-tls-ca", tls.ca != no_tls.ca),
            ("share-redis-tls-cert", tls.certificates != no_tls.certificates),
            ("share-redis-tls-key", tls.key != no_tls.key),
        ];
        let unused = given.iter().find(|(key, is_given)| *is_given && key.starts_with(prefix));
        unused.map_or(Ok(()), |(key, _)| anyhow::bail!("{key} {why}"))
    }

    /// Adds the key that must be corrected.
    fn with_key(&self, bad: BadShare) -> anyhow::Error {
        let key = match &bad {
            BadShare::NoSecret(_) | BadShare::Unreadable { .. } => "share-secret-file",
            BadShare::BadUrl(_) => "share",
            BadShare::BadPeer(place) if self.mesh.advertise.as_ref() == Some(place) => "mesh-advertise",
            BadShare::BadPeer(_) => "mesh-peers",
            BadShare::BadTls(_) => "share-redis-tls",
            BadShare::CannotListen { .. } => "mesh-listen",
        };
        anyhow::Error::new(bad).context(key)
    }

    fn mesh(&self, secret: Secrets) -> anyhow::Result<MeshConfig> {
        let config = MeshConfig { secret, ..self.mesh.clone() };
        config.validate().map_err(|bad| self.with_key(bad))?;
        Ok(config)
    }

    fn redis(&self, urls: &[&str], secret: Secrets) -> anyhow::Result<RedisConfig> {
        let password = self.redis_password_file.as_deref().map(read).transpose();
        let config = RedisConfig {
            urls: urls.iter().map(|url| Secret::new(*url)).collect(),
            password: password.context("share-redis-password-file")?.map(Secret::new),
            secret,
            ..self.redis.clone()
        };
        config.validate().and_then(|()| config.read_certificates()).map_err(|bad| self.with_key(bad))?;
        Ok(config)
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.trim().to_owned())
}

fn check_redis_urls(urls: &[&str]) -> anyhow::Result<()> {
    ensure!(!urls.contains(&"mesh"), "share: set mesh or Redis URLs, not both");
    for url in urls {
        let is_redis = url.starts_with("redis://") || url.starts_with("rediss://");
        ensure!(
            is_redis,
            "share: `{}`: expected mesh, redis://HOST:PORT or rediss://HOST:PORT",
            mask_url(url)
        );
        let rest = url.split("//").nth(1).unwrap_or_default();
        let login = rest.split_once('@');
        let shows_password = login.is_some_and(|(login, _)| login.contains(':'));
        ensure!(
            !shows_password,
            "share: other users of this machine can see a password in a URL; use share-redis-password-file"
        );
        let is_bare = !rest.contains('?') && rest.split_once('/').is_none_or(|(_, path)| path.is_empty());
        ensure!(
            is_bare,
            "share: a Redis URL must end with its port; nothing is stored, so there is no database to choose, \
             and a password belongs in share-redis-password-file"
        );
    }
    Ok(())
}
