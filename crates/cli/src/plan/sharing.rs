//! Turns options into the settings for sharing between routers.

use std::path::Path;

use anyhow::{Context, anyhow};
use warmroute_follow::{SharePlan, Transport};
use warmroute_share::{
    BadShare, MeshConfig, MeshTimings, RedisConfig, RedisTimings, Secret, Secrets, Versions,
};
use warmroute_types::mask_url;
use warmroute_wire::WorkerTls;

use super::value_of;
use crate::options::{Options, Sharing};
use crate::security::identity;

/// The settings; `None` for a single router.
pub fn plan(options: &Sharing) -> anyhow::Result<Option<SharePlan>> {
    let by: Vec<&str> = options.share.iter().flatten().map(String::as_str).collect();
    refuse_unused(options, &by)?;
    if by.is_empty() {
        return Ok(None);
    }
    if by != ["mesh"] {
        check_redis_urls(&by)?;
    }
    let file = options.share_secret_file.as_deref();
    let file = file.context(
        "share-secret-file is missing: routers that share state need a common secret of at least 16 bytes",
    )?;
    let secrets = Secrets::from_file(file).map_err(|bad| with_key(bad, options))?;
    let transport = match by.as_slice() {
        ["mesh"] => Transport::Mesh(Box::new(mesh(options, secrets.clone())?)),
        urls => Transport::Redis(Box::new(redis(options, urls, secrets.clone())?)),
    };
    let files: Vec<&Path> =
        [Some(file), options.share_redis_password_file.as_deref()].into_iter().flatten().collect();
    Ok(Some(SharePlan::new(transport, &secrets, &files)))
}

/// Refuses options without effect, because the user expects one.
fn refuse_unused(options: &Sharing, by: &[&str]) -> anyhow::Result<()> {
    let (prefix, why) = match by {
        [] => ("", "has no effect without share: set share = \"mesh\" or a Redis URL"),
        ["mesh"] => ("share-redis-", "applies to Redis, but share is mesh: remove one of them"),
        _ => ("mesh-", "applies to the mesh, but share is a Redis URL: remove one of them"),
    };
    match given(options).into_iter().find(|key| key.starts_with(prefix)) {
        Some(key) => Err(anyhow!("{key} {why}")),
        None => Ok(()),
    }
}

/// Keys other than `share` that differ from their defaults.
fn given(options: &Sharing) -> Vec<String> {
    let table = |options: &Sharing| toml::Table::try_from(options).unwrap_or_default();
    let defaults = table(&Options::defaults().sharing);
    let differs = |(key, value): &(String, toml::Value)| key != "share" && defaults.get(key) != Some(value);
    table(options).into_iter().filter(differs).map(|(key, _)| key).collect()
}

/// Adds the key that must be corrected.
fn with_key(bad: BadShare, options: &Sharing) -> anyhow::Error {
    let key = match &bad {
        BadShare::NoSecret(_) | BadShare::Unreadable { .. } => "share-secret-file",
        BadShare::BadUrl(_) => "share",
        BadShare::BadPeer(place) if options.mesh_advertise.as_ref() == Some(place) => "mesh-advertise",
        BadShare::BadPeer(_) => "mesh-peers",
        BadShare::BadTls(_) => "share-redis-tls",
        BadShare::CannotListen { .. } => "mesh-listen",
    };
    anyhow::Error::new(bad).context(key)
}

fn read(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.trim().to_owned())
}

fn mesh(options: &Sharing, secrets: Secrets) -> anyhow::Result<MeshConfig> {
    let config = MeshConfig {
        listen: value_of(options.mesh_listen),
        advertise: options.mesh_advertise.clone(),
        peers: options.mesh_peers.clone().unwrap_or_default(),
        secret: secrets,
        versions: Versions::OURS,
        timings: MeshTimings::default(),
    };
    config.validate().map_err(|bad| with_key(bad, options))?;
    Ok(config)
}

fn check_redis_urls(urls: &[&str]) -> anyhow::Result<()> {
    anyhow::ensure!(!urls.contains(&"mesh"), "share: set mesh or Redis URLs, not both");
    for url in urls {
        let is_redis = url.starts_with("redis://") || url.starts_with("rediss://");
        anyhow::ensure!(
            is_redis,
            "share: `{}`: expected mesh, redis://HOST:PORT or rediss://HOST:PORT",
            mask_url(url)
        );
        let rest = url.split("//").nth(1).unwrap_or_default();
        let login = rest.split_once('@');
        let shows_password = login.is_some_and(|(login, _)| login.contains(':'));
        anyhow::ensure!(
            !shows_password,
            "share: other users of this machine can see a password in a URL; use share-redis-password-file"
        );
        let is_bare = !rest.contains('?') && rest.split_once('/').is_none_or(|(_, path)| path.is_empty());
        anyhow::ensure!(
            is_bare,
            "share: a Redis URL must end with its port; nothing is stored, so there is no database to choose, \
             and a password belongs in share-redis-password-file"
        );
    }
    Ok(())
}

fn redis(options: &Sharing, urls: &[&str], secret: Secrets) -> anyhow::Result<RedisConfig> {
    let password = options.share_redis_password_file.as_deref().map(read).transpose();
    let config = RedisConfig {
        urls: urls.iter().map(|url| Secret::new(*url)).collect(),
        password: password.context("share-redis-password-file")?.map(Secret::new),
        secret,
        prefix: value_of(options.share_redis_prefix.clone()),
        tls: WorkerTls {
            ca: options.share_redis_tls_ca.clone(),
            identity: identity(&options.share_redis_tls_cert, &options.share_redis_tls_key)
                .context("share-redis-tls")?,
        },
        versions: Versions::OURS,
        timings: RedisTimings::default(),
    };
    config.validate().and_then(|()| config.read_certificates()).map_err(|bad| with_key(bad, options))?;
    Ok(config)
}
