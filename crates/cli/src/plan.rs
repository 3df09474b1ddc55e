//! Turns options into the settings of each part.

mod kubernetes;
mod picker;
mod sharing;
mod traces;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

use anyhow::Context;
use http::HeaderName;
use serde_json::Value;
use warmroute_discovery::{DnsName, ListedWorker, WorkerEntry};
use warmroute_follow::{Configured, FollowSettings, ModelPaths, SharePlan, Sources, check_endpoints};
use warmroute_gateway::{
    AdmissionConfig, FieldPolicy, FieldRules, SessionKey, SessionKeys, Token, WorkerLimit,
};
use warmroute_operate::PickerPlan;
use warmroute_policy::{BadPolicy, Policy, Standard};
use warmroute_record::{AccessLogConfig, LogTarget};
use warmroute_router::ModelRules;
use warmroute_types::BadUrl;
use warmroute_wire::Dialer;

use crate::options::groups::Following;
use crate::options::quantity::{BYTES_PER_SPAN, Count, Secs};
use crate::options::{self, Cache, ModelEntry, Options, Settings, most_similar};
use crate::security;

/// The settings of each part.
pub type Plan = warmroute_operate::Plan<Options>;

/// Ten years. A longer time is a mistake, and its deadline would overflow the clock.
const SECS_MAX: u64 = 10 * 365 * 86_400;

/// More than any machine has cores.
const THREADS_MAX: usize = 1_024;

/// The value of an option that has a default.
fn value_of<T>(option: Option<T>) -> T {
    option.expect("the defaults fill every option that is read this way")
}

/// Validates the options, with defaults for those not set.
pub fn plan(options: Options) -> anyhow::Result<Plan> {
    let mut options = options.over(Options::defaults());
    options.discovery.worker_urls = options.discovery.worker_urls.map(split_urls);
    let options = options;
    check_thresholds(&options.cache)?;
    let Settings { gateway, router, mut probe, picker, sources, process } = options.settings();
    let server = &options.server;
    probe.dialer = security::dialer(&options.security)?;
    let gateway = gateway_config(gateway, &options, probe.dialer.clone())?;
    crate::logging::filter(value_of(server.log_level.as_deref()))?;
    anyhow::ensure!(value_of(server.threads) <= THREADS_MAX, "threads must be at most {THREADS_MAX}");
    check_numbers(&options)?;
    anyhow::ensure!(probe.health_path.starts_with('/'), "health-check-endpoint must begin with /");
    let sharing = sharing::plan(&options.sharing)?;
    let listen = SocketAddr::new(value_of(server.host).0, value_of(server.port));
    let admin = SocketAddr::new(value_of(server.admin_host).0, value_of(server.admin_port));
    let picker = picker::plan(picker, &options)?;
    check_ports(&listeners(listen, admin, picker.as_ref(), sharing.as_ref()))?;
    Ok(Plan {
        listen,
        admin,
        process,
        policy: policy(&options, value_of(options.routing.policy.as_deref())).context("policy")?,
        shadows: shadows(&options)?,
        model_rules: model_rules(&options)?,
        router: warmroute_router::Config {
            in_flight_max: in_flight_max(&options),
            index: index_config(router.index, &options.cache, sharing.as_ref())?,
            ..router
        },
        gateway,
        precise: precise(&options, probe.dialer.clone()),
        probe,
        sources: self::sources(sources, &options)?,
        record: record(&options)?,
        access_log: access_log(&options.server)?,
        collector: traces::collector(&options.tracing)?,
        sharing,
        picker,
        events_token: options.events.events_token.as_ref().map(|token| Token::new(token.reveal())),
        acceptors: security::acceptors(&options)?,
        admin_token: security::admin_token(&options.security)?,
        keys: security::keys(&options.security)?,
        options,
    })
}

/// A limit for which 0 means unlimited.
fn unlimited_at_zero(Count(max): Count<u32>) -> u32 {
    if max > 0 { max } else { u32::MAX }
}

/// Concurrent requests per worker.
fn in_flight_max(options: &Options) -> u32 {
    unlimited_at_zero(options.admission.max_concurrent_per_worker.unwrap_or(Count(0)))
}

/// Options that must not be zero.
const POSITIVE: [&str; 16] = [
    "health-failure-threshold",
    "health-check-interval-secs",
    "health-check-timeout-secs",
    "load-interval-ms",
    "max-client-connections",
    "handover-timeout-secs",
    "client-head-timeout-secs",
    "client-body-timeout-secs",
    "connect-timeout-secs",
    "first-byte-timeout-secs",
    "idle-timeout-secs",
    "dns-refresh-secs",
    "otlp-timeout-secs",
    "eviction-interval-secs",
    "worker-kv-tokens",
    "prefix-token-count",
];

/// Checks the bounds of numbers. A name that ends with its unit of time is a time.
fn check_numbers(options: &Options) -> anyhow::Result<()> {
    let tables = serde_json::to_value(options)?;
    let tables = tables.as_object().into_iter().flat_map(serde_json::Map::values);
    for (name, value) in tables.filter_map(Value::as_object).flatten() {
        let is_time = name.ends_with("-secs") || name.ends_with("-ms");
        // A time that is not a whole number is written with its unit.
        let with_unit = value.as_str().filter(|_| is_time).and_then(|text| text.parse::<Secs>().ok());
        let Some(number) = value.as_u64().or(with_unit.map(|time| time.0.as_secs() + 1)) else { continue };
        anyhow::ensure!(number > 0 || !POSITIVE.contains(&name.as_str()), "{name} must be at least 1");
        anyhow::ensure!(number <= SECS_MAX || !is_time, "{name} must be at most {SECS_MAX}");
    }
    Ok(())
}

/// The settings of single models.
fn model_rules(options: &Options) -> anyhow::Result<warmroute_router::ModelRuleTable<Standard>> {
    let rules = |(model, entry): (&String, &ModelEntry)| {
        let named = entry.policy.as_deref().map(|text| policy(options, text)).transpose();
        let policy = named.with_context(|| format!("models.\"{model}\".policy"))?;
        let in_flight_max = entry.max_concurrent_per_worker.map(unlimited_at_zero);
        Ok((model.clone(), ModelRules { policy, in_flight_max }))
    };
    options.models.iter().map(rules).collect()
}

/// A policy by name and parameters.
pub fn parse_policy(text: &str) -> anyhow::Result<Standard> {
    text.parse().map_err(|bad| match &bad {
        BadPolicy::Unknown(name) => match most_similar(name, Standard::NAMES) {
            Some(most_similar) => anyhow::anyhow!("{bad}; did you mean `{most_similar}`?"),
            None => anyhow::Error::new(bad),
        },
        BadPolicy::Parameter { .. } => anyhow::Error::new(bad),
    })
}

/// The shadow policies. They must differ from the active one and from each other.
fn shadows(options: &Options) -> anyhow::Result<Vec<Standard>> {
    let mut taken = vec![parse_policy(value_of(options.routing.policy.as_deref()))?.name()];
    let mut shadows = Vec::new();
    for name in value_of(options.routing.shadow.as_ref()) {
        let shadow = policy(options, name).context("shadow")?;
        anyhow::ensure!(
            !taken.contains(&shadow.name()),
            "shadow: `{name}` is listed twice or is the active policy; remove it"
        );
        taken.push(shadow.name());
        shadows.push(shadow);
    }
    Ok(shadows)
}

/// A policy by name and parameters. The thresholds of cache_aware are options too, as in other routers, and win.
fn policy(options: &Options, text: &str) -> anyhow::Result<Standard> {
    let mut policy = parse_policy(text)?;
    if let Standard::CacheAware(rule) = &mut policy {
        let cache = &options.cache;
        rule.cache_threshold = cache.cache_threshold.unwrap_or(rule.cache_threshold);
        rule.balance_abs = cache.balance_abs_threshold.map_or(rule.balance_abs, |max| max.0);
        rule.balance_rel = cache.balance_rel_threshold.unwrap_or(rule.balance_rel);
    }
    Ok(policy)
}

/// Checks the thresholds whether or not the policy uses them, so that a later change of policy finds no mistake.
fn check_thresholds(cache: &Cache) -> anyhow::Result<()> {
    let share = cache.cache_threshold.unwrap_or(0.0);
    anyhow::ensure!((0.0..=1.0).contains(&share), "cache-threshold must be between 0 and 1");
    let factor = cache.balance_rel_threshold.unwrap_or(1.0);
    let is_factor = factor.is_finite() && factor >= 1.0;
    anyhow::ensure!(is_factor, "balance-rel-threshold must be a number of at least 1");
    Ok(())
}

/// Adds what is no option of its own. Digests have a random key, unless routers share them.
fn index_config(
    index: warmroute_index::Config,
    cache: &Cache,
    sharing: Option<&SharePlan>,
) -> anyhow::Result<warmroute_index::Config> {
    let spans_min = warmroute_index::BUDGET_BYTES_MIN / BYTES_PER_SPAN;
    let spans = value_of(cache.max_tree_size).0;
    anyhow::ensure!(spans >= spans_min, "max-tree-size must be at least {spans_min}");
    let config = warmroute_index::Config {
        hash: value_of(cache.block_hash.as_ref()).parse().context("block-hash")?,
        seed: sharing.map_or_else(|| RandomState::new().hash_one(0_u8), |sharing| sharing.seed),
        table_seed: RandomState::new().hash_one(1_u8),
        ..index
    };
    config.validate().context("[cache]")?;
    Ok(config)
}

/// Adds what is no option of its own, or is written in another form.
fn gateway_config(
    gateway: warmroute_gateway::Config,
    options: &Options,
    dialer: Dialer,
) -> anyhow::Result<warmroute_gateway::Config> {
    let session_keys = value_of(options.routing.session_keys.as_ref()).iter();
    let session_keys: Result<Vec<_>, _> = session_keys.map(|key| key.parse::<SessionKey>()).collect();
    let config = warmroute_gateway::Config {
        aliases: options.aliases.clone().into_iter().collect(),
        session_keys: SessionKeys::new(session_keys.map_err(anyhow::Error::msg).context("session-keys")?),
        admission: admission_config(gateway.admission, options)?,
        worker_api: security::worker_api(&options.security)?,
        engine_fields: engine_fields(&options.security)?,
        dialer,
        ..gateway
    };
    config.validate()?;
    Ok(config)
}

fn engine_fields(options: &options::Security) -> anyhow::Result<FieldPolicy> {
    let rules = value_of(options.engine_fields.as_ref()).join(",").parse::<FieldRules>();
    let rules = rules.map_err(anyhow::Error::msg).context("engine-fields")?;
    Ok(rules.over(FieldPolicy::default()))
}

fn admission_config(admission: AdmissionConfig, options: &Options) -> anyhow::Result<AdmissionConfig> {
    let header = |name: &str, none: &str| -> anyhow::Result<Option<HeaderName>> {
        let name = Some(name).filter(|name| *name != none).map(str::parse::<HeaderName>);
        name.transpose().with_context(|| format!("expected a header name or `{none}`"))
    };
    let of_models = options.models.values().filter_map(|model| model.max_concurrent_per_worker);
    let mut worker_limits = of_models.chain(options.admission.max_concurrent_per_worker);
    let (priority, tenant) = (&options.admission.priority_header, &options.admission.tenant_header);
    Ok(AdmissionConfig {
        worker_limit: match worker_limits.any(|Count(max)| max > 0) {
            true => WorkerLimit::On,
            false => WorkerLimit::Off,
        },
        priority_header: header(value_of(priority.as_deref()), "off").context("priority-header")?,
        tenant_header: header(value_of(tenant.as_deref()), "api-key").context("tenant-header")?,
        ..admission
    })
}

fn precise(options: &Options, dialer: Dialer) -> Option<FollowSettings> {
    let events = &options.events;
    (value_of(events.kv_events) == Following::Auto).then(|| FollowSettings {
        paths: ModelPaths::new(events.model_path.as_deref().unwrap_or_default()),
        matching: value_of(events.matching),
        bind: events.kv_events_bind.clone(),
        publishers: value_of(events.kv_events_publishers),
        takes_reports: events.events_token.is_some(),
        configured: Configured::default(),
        dialer,
    })
}

fn record(options: &Options) -> anyhow::Result<Option<warmroute_record::Config>> {
    let recording = &options.recording;
    let Some(file) = recording.record.clone() else { return Ok(None) };
    let config = warmroute_record::Config {
        file,
        bytes_max: value_of(recording.record_max_bytes).0 as u64,
        names: value_of(recording.record_models),
    };
    config.validate()?;
    Ok(Some(config))
}

fn access_log(server: &options::Server) -> anyhow::Result<Option<AccessLogConfig>> {
    let Some(path) = server.access_log.clone() else { return Ok(None) };
    let config = AccessLogConfig {
        target: if path.as_os_str() == "stderr" { LogTarget::Stderr } else { LogTarget::File(path) },
        format: value_of(server.access_log_format),
        bytes_max: value_of(server.access_log_max_bytes).0 as u64,
    };
    config.validate()?;
    Ok(Some(config))
}

fn sources(sources: Sources, options: &Options) -> anyhow::Result<Sources> {
    let discovery = &options.discovery;
    let from_flag = discovery.worker_urls.iter().flatten();
    let from_flag = from_flag.map(|url| WorkerEntry::new(url.clone(), discovery.dp_size));
    let from_flag: Vec<WorkerEntry> = from_flag.collect();
    // Validates URLs first: later errors repeat them, and a URL may contain a password.
    let mut listed = listed(&from_flag).context("worker-urls")?;
    listed.extend(self::listed(&options.workers).context("workers")?);
    let entries = [from_flag, options.workers.clone()].concat();
    check_endpoints(&entries, options.events.kv_events_bind.as_deref())?;
    let events_token = options.events.events_token.as_ref();
    events_token.map_or(Ok(()), |token| security::check_secret(token.reveal())).context("events-token")?;
    let dns = discovery.worker_dns.iter().flatten().map(|name| name.parse::<DnsName>());
    Ok(Sources {
        listed,
        dns: dns.collect::<Result<_, _>>().context("worker-dns")?,
        kubernetes: kubernetes::sources(discovery)?,
        ..sources
    })
}

fn listed(entries: &[WorkerEntry]) -> Result<Vec<ListedWorker>, BadUrl> {
    let listed = entries.iter().map(WorkerEntry::listed).collect::<Result<Vec<_>, _>>()?;
    Ok(listed.concat())
}

/// Splits lists of URLs. The environment has only one text, and a URL contains neither space nor comma.
fn split_urls(urls: Vec<String>) -> Vec<String> {
    let parts = urls.iter().flat_map(|text| text.split([' ', '\t', '\n', ',']));
    parts.filter(|url| !url.is_empty()).map(str::to_owned).collect()
}

/// Two listeners cannot share a port, unless they are on different addresses. Each has the option that sets its port, and a
/// name.
fn check_ports(listeners: &[(&str, &str, SocketAddr)]) -> anyhow::Result<()> {
    let overlap =
        |a: SocketAddr, b: SocketAddr| a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    let is_same = |a: SocketAddr, b: SocketAddr| a.port() == b.port() && a.port() != 0 && overlap(a, b);
    for (i, &(option, _, address)) in listeners.iter().enumerate() {
        let other = listeners[..i].iter().find(|(_, _, other)| is_same(address, *other));
        if let Some((_, name, _)) = other {
            anyhow::bail!("{option} {} is also the port of {name}: choose another one", address.port());
        }
    }
    Ok(())
}

/// The addresses on which the process listens.
fn listeners(
    listen: SocketAddr,
    admin: SocketAddr,
    picker: Option<&PickerPlan>,
    sharing: Option<&SharePlan>,
) -> Vec<(&'static str, &'static str, SocketAddr)> {
    let mut listeners =
        vec![("port", "the client listener", listen), ("admin-port", "the admin listener", admin)];
    listeners.extend(sharing.and_then(SharePlan::listen).map(|at| ("mesh-listen", "the mesh", at)));
    if let Some(PickerPlan { listen, pools, .. }) = picker {
        listeners.extend(listen.map(|at| ("picker-port", "the endpoint picker", at)));
        listeners.extend(pools.iter().map(|(_, at)| ("picker-pools: port", "a pool of the picker", *at)));
    }
    listeners
}

/// Options, and those of which one must be set for the first to have an effect.
const NEEDS: [(&str, &[&str]); 14] = [
    ("queue-size", &["max-concurrent-requests", "max-concurrent-per-worker", "wake-timeout-secs"]),
    ("queue-timeout-secs", &["max-concurrent-requests", "max-concurrent-per-worker"]),
    ("dns-refresh-secs", &["worker-dns"]),
    ("dp-size", &["worker-urls", "service-discovery"]),
    ("handover-timeout-secs", &["handover"]),
    ("record-max-bytes", &["record"]),
    ("record-models", &["record"]),
    ("access-log-format", &["access-log"]),
    ("access-log-max-bytes", &["access-log"]),
    ("cache-salt", &["api-keys-file"]),
    ("max-continuations", &["continue-streams"]),
    ("picker-host", &["picker-port", "picker-pools"]),
    ("picker-feedback", &["picker-port", "picker-pools"]),
    ("picker-fallbacks", &["picker-port", "picker-pools"]),
];

/// Options that are set and have no effect, each with what it needs.
pub fn unused(given: &Options) -> Vec<String> {
    let tables = serde_json::to_value(given).unwrap_or_default();
    let tables = tables.as_object().into_iter().flat_map(serde_json::Map::values);
    let set: BTreeMap<&String, &Value> = tables.filter_map(Value::as_object).flatten().collect();
    // Zero turns the others off; as a port it is a free one.
    let is_off = |key: &str, value: &Value| value.as_u64() == Some(0) && key != "picker-port";
    let is_set = |key: &&str| set.iter().any(|(name, value)| name == key && !is_off(key, value));
    let is_unused = |(key, needs): &&(&str, &[&str])| is_set(key) && !needs.iter().any(is_set);
    let tell = |(key, needs): &(&str, &[&str])| format!("{key} has no effect without {}", needs.join(" or "));
    let unused = NEEDS.iter().filter(is_unused).map(tell);
    unused.chain(traces::warnings(&given.tracing)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn options_without_effect_are_reported() {
        let unused = |text: &str| super::unused(&toml::from_str(text).unwrap());
        assert_eq!(unused(""), [""; 0]);
        let alone = unused("[admission]\nqueue-size = 10\nmax-concurrent-requests = 0");
        assert_eq!(
            alone,
            [
                "queue-size has no effect without max-concurrent-requests or max-concurrent-per-worker or wake-timeout-secs"
            ]
        );
        assert_eq!(unused("[admission]\nqueue-size = 10\nmax-concurrent-per-worker = 1"), [""; 0]);
        assert_eq!(unused("[picker]\npicker-port = 0\npicker-feedback = \"stream\""), [""; 0]);
        assert_eq!(
            unused("[discovery]\ndp-size = 2"),
            ["dp-size has no effect without worker-urls or service-discovery"]
        );
    }

    #[test]
    fn units_mean_the_same_in_a_file() {
        let text = "[timeouts]\nidle-timeout-secs = \"5m\"\nconnect-timeout-secs = \"1500ms\"\n\
                    [requests]\nmax-payload-size = \"16MiB\"\n[cache]\nmax-tree-size = \"1GiB\"\n\
                    [server]\nhost = \"localhost\"\n[routing]\ndecision-headers = \"on\"";
        let plan = planned(text).unwrap();
        assert_eq!(plan.gateway.timeouts.idle, Duration::from_secs(300));
        assert_eq!(plan.gateway.timeouts.connect, Duration::from_millis(1_500));
        assert_eq!(plan.gateway.body_bytes_max, 16 << 20);
        assert_eq!(plan.router.index.budget_bytes, 1 << 30);
        assert!(plan.listen.ip().is_loopback());
        assert_eq!(plan.gateway.decision_headers, warmroute_gateway::DecisionHeaders::On);
    }

    #[test]
    fn urls_are_separated_by_spaces_or_commas_and_may_end_with_v1() {
        let plan = planned("[discovery]\nworker-urls = [\"http://a:1/v1 http://b:1, http://c:1/\"]").unwrap();
        let urls: Vec<&str> = plan.sources.listed.iter().map(|listed| listed.address.url.as_str()).collect();
        assert_eq!(urls, ["http://a:1", "http://b:1", "http://c:1"]);
    }

    fn planned(text: &str) -> anyhow::Result<Plan> {
        plan(toml::from_str(text).unwrap())
    }

    #[test]
    fn the_defaults_are_valid() {
        let plan = planned("").unwrap();
        assert_eq!(plan.listen.to_string(), "0.0.0.0:30000");
        assert!(plan.admin.ip().is_loopback());
    }

    #[test]
    fn single_thresholds_override_the_preset() {
        let rule = |preset: &str, text: &str| {
            let text = format!("{text}\n[routing]\npolicy = \"cache_aware{preset}\"");
            match planned(&text).unwrap().policy {
                Standard::CacheAware(rule) => (rule.cache_threshold, rule.balance_abs, rule.balance_rel),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(rule("", ""), (0.3, 64, 1.5));
        assert_eq!(rule(":preset=high_affinity", ""), (0.2, 128, 2.0));
        assert_eq!(rule(":preset=load_focused", "[cache]\nbalance-abs-threshold = 7"), (0.5, 7, 1.2));
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn invalid_settings_are_refused_with_a_reason() {
        for (text, reason) in [
            ("[routing]\npolicy = \"best\"", "unknown policy `best`"),
            ("[routing]\npolicy = \"prefix_affnity\"", "did you mean `prefix_affinity`?"),
            ("[routing]\nshadow = [\"round_robn\"]", "did you mean `round_robin`?"),
            ("[routing]\nshadow = [\"random\", \"random\"]", "`random` is listed twice"),
            ("[routing]\npolicy = \"product\"\nshadow = [\"lmetric\"]", "`lmetric` is listed twice"),
            ("[server]\nlog-level = \"verbose\"", "log-level `verbose`"),
            ("[server]\nthreads = 999999999", "threads"),
            ("[server]\nport = 29000", "admin-port 29000 is also the port of the client listener"),
            ("[timeouts]\nidle-timeout-secs = \"0ms\"", "idle-timeout-secs must be at least 1"),
            ("[timeouts]\nidle-timeout-secs = \"400000000500ms\"", "idle-timeout-secs must be at most"),
            ("[discovery]\nworker-urls = [\"ftp://a\"]", "worker-urls: `ftp://a` is not a valid worker URL"),
            ("[cache]\nblock-hash = \"md5\"", "unknown hash `md5`"),
            ("[routing]\nsession-keys = [\"user\"]", "expected header:NAME"),
            ("[[workers]]\nurl = \"ftp://a\"", "`ftp://a` is not a valid worker URL"),
            ("[[workers]]\nurl = \"http://a\"\nranks = 0", "0 ranks"),
            ("[discovery]\nworker-dns = [\"engines\"]", "expected http://NAME:PORT"),
            ("[discovery]\nselector = \"app=x\"", "selector has no effect without service-discovery"),
            ("[discovery]\nservice-discovery = true", "set selector, service-discovery-service or"),
            (
                "[discovery]\nservice-discovery = true\nselector = \"app=x\"\nservice-discovery-pool = \"p\"",
                "set only one of selector, service-discovery-service and service-discovery-pool",
            ),
            (
                "[discovery]\nservice-discovery = true\nselector = \"app=x\"\nservice-discovery-port = 0",
                "service-discovery-port: `0` is not a port",
            ),
            (
                "[discovery]\nservice-discovery = true\nselector = \"app=x\"\nservice-discovery-namespace = \"A/b\"",
                "service-discovery-namespace: `A/b` is not a name in Kubernetes",
            ),
            (
                "[discovery]\nservice-discovery = true\nservice-discovery-pool = [\"a/q\", \"p\"]\nservice-discovery-namespace = \"*\"",
                "service-discovery-pool: `p` may be in several namespaces with service-discovery-namespace `*`; write \
                 NAMESPACE/p",
            ),
            (
                "[discovery]\nservice-discovery = true\nservice-discovery-pool = [\"a/q\", \"p\"]\nservice-discovery-namespace = \"a,b\"",
                "service-discovery-pool: `p` may be in several namespaces with service-discovery-namespace `a,b`; write \
                 NAMESPACE/p",
            ),
            (
                "[discovery]\nservice-discovery = true\nselector = \" \"",
                "selector: an empty selector would match every pod",
            ),
            (
                "[discovery]\nservice-discovery = true\nselector = \"app=x\"\nkubeconfig = \"/nowhere\"",
                "kubeconfig: cannot read /nowhere",
            ),
            ("[requests]\nmax-payload-size = 0", "max-payload-size"),
            ("[health]\nhealth-failure-threshold = 0", "health-failure-threshold"),
            ("[timeouts]\nfirst-byte-timeout-secs = 0", "first-byte-timeout-secs must be at least 1"),
            ("[timeouts]\nidle-timeout-secs = 9223372036854775807", "idle-timeout-secs must be at most"),
            ("[admission]\nqueue-timeout-secs = 400000000", "queue-timeout-secs must be at most"),
            ("[cache]\npresumed-ttl-secs = 9223372036854775807", "presumed-ttl-secs must be at most"),
            ("[admission]\npriority-header = \"no header\"", "priority-header"),
            ("[health]\nload-interval-ms = 0", "load-interval-ms must be at least 1"),
            ("[health]\nhealth-check-endpoint = \"health\"", "begin with /"),
            ("[cache]\ncache-threshold = 1.5", "cache-threshold"),
            ("[cache]\nbalance-rel-threshold = 0.5", "balance-rel-threshold"),
            ("[cache]\nmax-tree-size = 1", "max-tree-size"),
            ("[cache]\nworker-kv-tokens = 0", "worker-kv-tokens"),
            ("[routing]\npolicy = \"weighted_score:queue=nan\"", "`nan` is no number"),
            ("[routing]\nshadow = [\"random:x=1\"]", "no parameters"),
            ("[server]\naccess-log = \"log\"\naccess-log-max-bytes = 10", "access-log-max-bytes"),
            (
                "[tracing]\notlp-endpoint = \"collector:4318\"",
                "otlp-endpoint: `collector:4318` is not the URL",
            ),
            (
                "[tracing]\notlp-endpoint = \"http://c:4317\"",
                "otlp-endpoint: port 4317 is for OTLP over gRPC",
            ),
            (
                "[tracing]\notlp-endpoint = \"http://c:4318\"\notlp-headers = \"hush\"",
                "otlp-headers: entry 1",
            ),
            ("[tracing]\ntrace-sample-ratio = 1.5", "trace-sample-ratio must be a number between 0 and 1"),
            ("[tracing]\ntrace-attributes = \"a\"", "trace-attributes: `a` is not NAME=VALUE"),
            ("[tracing]\notlp-timeout-secs = 0", "otlp-timeout-secs must be at least 1"),
            (
                "[tracing]\notlp-endpoint = \"https://c\"\notlp-tls-ca = \"/nowhere\"",
                "otlp-tls-ca: cannot read",
            ),
            ("[recording]\nrecord = \"trace\"\nrecord-max-bytes = 10", "record-max-bytes"),
            ("[events]\nkv-events-bind = \"5557\"", "`5557` is not a valid endpoint"),
            (
                "[[workers]]\nurl = \"http://a\"\nkv-events = { endpoint = \"tcp://*\" }",
                "kv-events of http://a",
            ),
            ("[[workers]]\nurl = \"http://a\"\nkv-events = { topic = \"kv\" }", "`` is not a valid endpoint"),
            (
                "[[workers]]\nurl = \"http://a\"\nkv-events = { endpoint = \"bind\", topic = \"t\" }",
                "kv-events-bind",
            ),
            (
                "[events]\nkv-events-bind = \"tcp://*:5557\"\n\
                 [[workers]]\nurl = \"http://a\"\nkv-events = { endpoint = \"bind\", topic = \"t\" }\n\
                 [[workers]]\nurl = \"http://b\"\nkv-events = { endpoint = \"bind\", topic = \"t\" }",
                "topic `t` is used by another engine",
            ),
            (
                "[[workers]]\nurl = \"http://a:1\"\nkv-events = { endpoint = \"tcp://*:5557\" }\n\
                 [[workers]]\nurl = \"http://a:2\"\nkv-events = { endpoint = \"tcp://*:5557\" }",
                "tcp://a:5557 is already used",
            ),
            (
                "[[workers]]\nurl = \"http://a\"\nranks = 2\n\
                 kv-events = { endpoint = \"tcp://*:5557\", replay = \"tcp://*:5558\" }",
                "tcp://a:5558 is already used",
            ),
            ("[events]\nevents-token = \"\"", "events-token: the secret is empty"),
            ("[security]\nclient-worker-api = \"token\"", "client-worker-api: token needs an admin-token"),
            ("[security]\nadmin-token = \"\"", "admin-token: the secret is empty"),
            (
                "[security]\nadmin-token = \"a\"\nadmin-token-file = \"b\"",
                "admin-token: set either the value or the file",
            ),
            (
                "[security]\nworker-api-key = \"a\\nb\"",
                "worker-api-key: the secret contains control characters",
            ),
            (
                "[security]\nadmin-token = \"a\\u0000b\"",
                "admin-token: the secret contains control characters",
            ),
            ("[events]\nevents-token = \"a\\tb\"", "events-token: the secret contains control characters"),
            ("[security]\napi-keys-file = \"/nowhere\"", "cannot read /nowhere"),
            ("[security]\ntls-cert = \"/nowhere\"", "tls: set both the certificate and its key"),
            ("[security]\nadmin-tls-client-ca = \"/nowhere\"", "admin-tls: a CA bundle for clients requires"),
            ("[security]\ntls-cert = \"/nowhere\"\ntls-key = \"/nowhere\"", "cannot read /nowhere"),
            ("[security]\nworker-tls-ca = \"/nowhere\"", "worker-tls: cannot read /nowhere"),
            ("[aliases]\na = \"b\"\nb = \"c\"", "alias"),
            ("[picker]\npicker-fallbacks = 4", "picker-fallbacks must be at most 3"),
            ("[picker]\npicker-port = 30000", "picker-port 30000 is also the port of the client listener"),
            ("[picker]\npicker-port = 29000", "picker-port 29000 is also the port of the admin listener"),
            (
                "[picker]\npicker-pools = \"a=30000\"\n[[workers]]\nurl = \"http://10.0.0.1:1\"\npool = \"a\"",
                "picker-pools: port 30000 is also the port of the client listener",
            ),
            ("[sharing]\nshare = [\"mesh\"]", "share-secret-file"),
            ("[sharing]\nshare = \"foo\"", "share: `foo`: expected mesh, redis://HOST:PORT"),
            ("[sharing]\nshare = \"mesh\"", "share-secret-file"),
            ("[sharing]\nmesh-listen = \"127.0.0.1:7\"", "mesh-listen has no effect without share"),
            (
                "[sharing]\nshare = \"mesh\"\nshare-redis-prefix = \"b\"",
                "share-redis-prefix applies to Redis, but share is mesh",
            ),
            (
                "[sharing]\nshare = \"redis://a:1\"\nmesh-peers = \"b:1,c:1\"",
                "mesh-peers applies to the mesh, but share is a Redis URL",
            ),
            ("[sharing]\nshare-secret-file = \"/nowhere\"", "share-secret-file has no effect without share"),
            ("[sharing]\nmesh-peers = [\"a:1\"]", "mesh-peers has no effect without share"),
            ("[sharing]\nshare = [\"mesh\"]\nshare-secret-file = \"/nowhere\"", "cannot read /nowhere"),
        ] {
            let error = planned(text).err().map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
