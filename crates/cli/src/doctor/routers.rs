//! Checks the connections to peers or to the Redis server, and whether they accept this router.

use std::io::ErrorKind;
use std::net::SocketAddr;

use warmroute_follow::{SharePlan, Transport};
use warmroute_share::{
    AnnouncedRouters, MeshConfig, MeshFailure, MeshProbe, RedisConfig, RedisFailure, Versions, probe_mesh,
    probe_redis,
};

use super::finding::Finding;

const FIRST: &str = "if this is the first router, that is as it should be";

/// Runs all checks that do not require joining.
pub async fn check(plan: &SharePlan) -> Vec<Finding> {
    let exposed = plan.exposed.iter().map(|file| {
        let says = format!("all users of this machine can read {}", file.display());
        Finding::note(says, "run chmod o-r: any process that knows the secret can join as a router")
    });
    let mut findings: Vec<Finding> = exposed.collect();
    findings.extend(match &plan.transport {
        Transport::Mesh(config) => mesh(config).await,
        Transport::Redis(config) => redis(config).await,
    });
    findings
}

async fn mesh(config: &MeshConfig) -> Vec<Finding> {
    let mut findings = Vec::from_iter(advertised(config));
    if config.peers.is_empty() {
        findings.push(Finding::note(
            "no mesh peers are configured; this router waits for connections",
            "--mesh-peers HOST:PORT…, unless all others name this one",
        ));
    }
    let probes = match probe_mesh(config).await {
        Ok(probes) => probes,
        Err(bad) => return vec![Finding::trouble(bad.to_string(), "docs/many-routers.md")],
    };
    let is_joined = probes.iter().any(|probe| probe.found.is_ok());
    findings.extend(probes.iter().map(|probe| describe_peer(probe, is_joined)));
    findings
}

fn advertised(config: &MeshConfig) -> Option<Finding> {
    let address = config.advertised();
    let is_here = |place: &str| place.parse().is_ok_and(|place: SocketAddr| place.ip().is_loopback());
    if config.listen.port() == 0 {
        return None;
    }
    if is_here(&address) && !config.peers.iter().all(|peer| is_here(peer)) {
        return Some(Finding::note(
            format!("peers dial this router at {address}, which is only this machine"),
            "--mesh-advertise HOST:PORT, as the others reach this router",
        ));
    }
    Some(Finding::good(format!("peers dial this router at {address}")))
}

/// One peer that answers is enough: it lists the others.
fn describe_peer(probe: &MeshProbe, is_joined: bool) -> Finding {
    let at = match &probe.address {
        Some(address) if *address != probe.listed => format!("{} ({address})", probe.listed),
        _ => probe.listed.clone(),
    };
    match &probe.found {
        Ok(met) => Finding::good(format!(
            "{at}: router {} has our secret and speaks version {}",
            met.router, met.version
        )),
        Err(failed) if failed.is_unreachable() && is_joined => Finding::note(
            format!("{at}: {failed}"),
            "one reachable router is enough: it announces the others",
        ),
        Err(failed) => Finding::trouble(format!("{at}: {failed}"), mesh_remedy(failed)),
    }
}

fn mesh_remedy(failed: &MeshFailure) -> String {
    let remedy = match failed {
        MeshFailure::Unresolved(_) => {
            "is the name right? In Kubernetes it is that of a headless service, with publishNotReadyAddresses"
        }
        MeshFailure::Unreachable(_) | MeshFailure::TimedOut(_) => {
            return format!(
                "is a router with --share mesh started there, is that its --mesh-listen port, and may this machine connect? {FIRST}"
            );
        }
        MeshFailure::Closed | MeshFailure::Io(_) => "the log of the process at that address may say why",
        MeshFailure::NotARouter => {
            "is it the port of --mesh-listen, and not the one for clients or for operators?"
        }
        MeshFailure::WrongSecret => "give all routers the same --share-secret-file",
        MeshFailure::IncompatibleVersions { .. } => "upgrade the older one",
        MeshFailure::SelfDial | MeshFailure::AlreadyConnected(_) => "no harm",
    };
    remedy.to_owned()
}

async fn redis(config: &RedisConfig) -> Vec<Finding> {
    let probes = match probe_redis(config).await {
        Ok(probes) => probes,
        Err(bad) => return vec![Finding::trouble(bad.to_string(), "docs/many-routers.md")],
    };
    let is_served = probes.iter().any(|probe| probe.found.is_ok());
    let findings = probes.iter().flat_map(|probe| match &probe.found {
        Ok(announced) => describe_server(&probe.server, announced, config),
        Err(RedisFailure::Replica) if is_served => {
            vec![Finding::good(format!("{}: a replica, passed over while it is one", probe.server))]
        }
        Err(lost) if is_served => {
            vec![Finding::note(format!("{}: {lost}", probe.server), redis_remedy(lost, config))]
        }
        Err(lost) => vec![Finding::trouble(format!("{}: {lost}", probe.server), redis_remedy(lost, config))],
    });
    findings.collect()
}

fn describe_server(server: &str, announced: &AnnouncedRouters, config: &RedisConfig) -> Vec<Finding> {
    let prefix = &config.prefix;
    let mut findings =
        vec![Finding::good(format!("{server}: messages published on {prefix}:* are received"))];
    findings.push(match announced.routers.len() {
        0 => Finding::note(format!("{server}: no other router has announced itself"), FIRST),
        count => Finding::good(format!("{server}: {count} other router(s) with our secret")),
    });
    for (router, theirs) in &announced.incompatible {
        let ours = Versions::OURS;
        findings.push(Finding::trouble(
            format!("router {router} speaks version {theirs}, this one would speak {ours}"),
            "upgrade the older one: all routers on a server must have one version in common",
        ));
    }
    if announced.unreadable > 0 {
        findings.push(Finding::trouble(
            format!("{server}: a router announces itself on {prefix}:all with another secret"),
            "give all routers the same --share-secret-file, and another fleet another --share-redis-prefix",
        ));
    }
    findings
}

fn redis_remedy(lost: &RedisFailure, config: &RedisConfig) -> String {
    let remedy = match lost {
        RedisFailure::Forbidden(_) => {
            return format!(
                "ACL SETUSER NAME on >PASSWORD resetchannels &{}:* +publish +subscribe +role",
                config.prefix
            );
        }
        RedisFailure::Io(error) if error.kind() == ErrorKind::InvalidData => {
            "--share-redis-tls-ca names who vouches for it, and the URL must have a name that is in its certificate"
        }
        RedisFailure::WrongPassword | RedisFailure::NoPassword => {
            "redis-cli -u URL --askpass PING tries the same"
        }
        RedisFailure::Tls | RedisFailure::NotTls => "change the URL in --share on every router",
        RedisFailure::Replica => "name the main server, too: --share redis://A,redis://B",
        RedisFailure::NoEcho(_) => {
            "what is published there does not come back: is a proxy between, or are these several servers?"
        }
        _ => "is it running, is the address right, and may this machine connect to it?",
    };
    remedy.to_owned()
}
