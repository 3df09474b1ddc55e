//! Turns flags into a simulated world and its traffic.

use anyhow::{Context, anyhow};
use warmroute_engine::{Config as EngineConfig, Tier};
use warmroute_sim::{Config, EventPath, EvictionEvents, PeerNetwork, Sessions, Shedding, TierEvents, View};
use warmroute_types::{MAX_WORKERS, Micros};

use super::args::{EVENT_REPLAY, SceneArgs, WORKERS};
use super::traffic::Traffic;
use crate::options::quantity::{self, whole};

/// The world of one setting, and its traffic for any seed.
pub struct Scene {
    pub config: Config,
    traffic: Traffic,
    /// Notes about the traffic for the report.
    pub notes: Vec<String>,
}

impl Scene {
    /// Checks the flags and reads the trace for this many seeds.
    pub fn new(args: &SceneArgs, seeds: u64) -> anyhow::Result<Scene> {
        let config = world(args)?;
        let mut traffic = Traffic::new(&args.traffic, seeds)?;
        let mut notes = std::mem::take(&mut traffic.notes);
        if config.fleet.iter().any(|engine| engine.host.is_some() || engine.pool.is_some()) {
            notes.push(
                "bounds of pooled caches count the GPUs' memory alone; routers see more only in the reported view"
                    .to_owned(),
            );
        }
        if let Some(clients) = config.concurrency {
            notes.push(format!(
                "{clients} clients without start and think times: rates are those of the time in which all of them were busy; \
                 bounds need arrival times and are left out"
            ));
        }
        Ok(Scene { config, traffic, notes })
    }

    /// The sessions of a seed.
    pub fn sessions(&self, seed: u64) -> Sessions {
        self.traffic.sessions(seed)
    }

    /// The world of a seed.
    pub fn config_for(&self, seed: u64) -> Config {
        Config { seed, ..self.config.clone() }
    }
}

/// The world that the flags describe, if it is valid.
pub fn world(args: &SceneArgs) -> anyhow::Result<Config> {
    refuse_unused(args)?;
    let events = EventPath {
        lag: Micros::from_millis_f64(args.event_lag_ms),
        refresh: Micros::from_millis_f64(args.refresh_s * 1_000.0),
        loss: args.event_loss,
    };
    let config = Config {
        fleet: fleet(args)?,
        view: args.view,
        events,
        tier_events: TierEvents::Published,
        eviction_events: args.evictions,
        retokenized: 0.0,
        without_view: None,
        history: args.history,
        concurrency: args.concurrency,
        replay_batches: args.event_replay,
        routers: args.routers,
        sharing: args.share_delay_ms.map(|delay_ms| PeerNetwork {
            delay: Micros::from_millis_f64(delay_ms),
            loss: args.share_loss,
            partitions: args.share_cut.clone(),
        }),
        balancer: args.balancer,
        hop: Micros::from_millis_f64(args.network_ms),
        shedding: Shedding::Off,
        incidents: args.incident.clone(),
        seed: args.traffic.seed,
    };
    config.validate()?;
    Ok(config)
}

/// Refuses flags of event streams in views that read none, and `--workers` beside groups.
fn refuse_unused(args: &SceneArgs) -> anyhow::Result<()> {
    let view = args.view;
    for (flag, is_given) in [
        ("--event-replay", args.event_replay != EVENT_REPLAY),
        ("--evictions", args.evictions != EvictionEvents::Published),
    ] {
        anyhow::ensure!(
            view == View::Reported || !is_given,
            "{flag} means nothing in the {view} view, which reads no stream of events: take --view reported"
        );
    }
    anyhow::ensure!(
        args.worker_group.is_empty() || args.workers == WORKERS,
        "--workers means nothing with --worker-group, which has numbers of its own: add a group"
    );
    Ok(())
}

fn fleet(args: &SceneArgs) -> anyhow::Result<Vec<EngineConfig>> {
    let usual = EngineConfig::for_profile(args.profile);
    let engine = EngineConfig {
        kv_tokens: args.kv_tokens.unwrap_or(usual.kv_tokens),
        block_size: args.block_size,
        sequences_max: args.max_num_seqs.unwrap_or(usual.sequences_max),
        speed_percent: args.speed_percent,
        host: host_tier(args.host_kv_tokens, args.host_gbps)?,
        pool: tier(args.pool_kv_tokens, args.pool_gbps, Micros::from_millis_f64(args.pool_latency_ms))?,
        ..usual
    };
    if args.worker_group.is_empty() {
        return Ok(vec![engine; args.workers]);
    }
    let mut fleet = Vec::new();
    for group in &args.worker_group {
        fleet.extend(parse_group(group, &engine).with_context(|| format!("--worker-group {group}"))?);
    }
    Ok(fleet)
}

/// Overhead of starting a copy over PCIe.
const HOST_LATENCY: Micros = Micros(100);

/// The host memory tier, if it has any capacity.
pub fn host_tier(tokens: u64, gigabytes_per_s: f64) -> anyhow::Result<Option<Tier>> {
    tier(tokens, gigabytes_per_s, HOST_LATENCY)
}

/// A memory tier, if it has any capacity.
fn tier(tokens: u64, gigabytes_per_s: f64, latency: Micros) -> anyhow::Result<Option<Tier>> {
    let megabytes_per_s = (gigabytes_per_s * 1_000.0).round();
    anyhow::ensure!(megabytes_per_s >= 1.0, "--host-gbps and --pool-gbps must be at least 0.001");
    let tier = Tier { tokens, megabytes_per_s: megabytes_per_s as u64, latency };
    Ok((tokens > 0).then_some(tier))
}

/// `4:kv-tokens=400000:speed-percent=50`.
fn parse_group(group: &str, engine: &EngineConfig) -> anyhow::Result<Vec<EngineConfig>> {
    let mut parts = group.split(':');
    let count = parts.next().unwrap_or_default();
    let count: usize = whole(1..=MAX_WORKERS as u64)(count)
        .map_err(|expected| anyhow!("`{count}` is no number of engines: {expected}"))?;
    let mut engine = engine.clone();
    for part in parts {
        match part.split_once('=') {
            Some(("kv-tokens", value)) => engine.kv_tokens = quantity::count(value).context("kv-tokens")?,
            Some(("speed-percent", value)) => {
                engine.speed_percent = whole(1..=u64::from(u32::MAX))(value)
                    .map_err(|expected| anyhow!("speed-percent: {expected}"))?;
            }
            Some(("max-num-seqs", value)) => {
                engine.sequences_max = whole(1..=u64::from(u32::MAX))(value)
                    .map_err(|expected| anyhow!("max-num-seqs: {expected}"))?;
            }
            _ => anyhow::bail!("`{part}` is none of kv-tokens=N, speed-percent=N and max-num-seqs=N"),
        }
    }
    Ok(vec![engine; count])
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_engine::Profile;

    #[test]
    fn groups_of_engines_are_read() {
        let usual = EngineConfig::for_profile(Profile::Llama3_1_8b);
        let slow = parse_group("3:kv-tokens=1k:speed-percent=50:max-num-seqs=8", &usual).unwrap();
        let first = &slow[0];
        assert_eq!(
            (slow.len(), first.kv_tokens, first.speed_percent, first.sequences_max),
            (3, 1_000, 50, 8)
        );
        for bad in ["", "x", "2:speed=1", "2:kv-tokens=many", "2:max-num-seqs=0"] {
            assert!(parse_group(bad, &usual).is_err(), "{bad}");
        }
    }
}
