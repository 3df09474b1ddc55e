//! Turns options into the settings of each part.

mod traces;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use anyhow::Context;
use serde_json::Value;
use warmroute_follow::Following;
use warmroute_gateway::WorkerLimit;
use warmroute_policy::{BadPolicy, PolicySettings, Standard};
use warmroute_router::{ModelRuleTable, ModelRules};

use crate::options::{ModelEntry, Options, Settings, most_similar};
use crate::security;

/// The settings of each part.
pub type Plan = warmroute_operate::Plan<Options>;

/// Validates the options, with defaults for those not set.
pub fn plan(options: Options) -> anyhow::Result<Plan> {
    let mut options = options.over(Options::defaults());
    options.discovery.worker_urls = options.discovery.worker_urls.map(split_urls);
    let settings = options.settings()?;
    settings.validate()?;
    let Settings { mut gateway, mut router, mut probe, mut sources, mut follow, policies, tls, .. } =
        settings;
    let policy = policies.policy(&policies.active).map_err(with_hint).context("policy")?;
    let model_rules = model_rules(&options.models, &policies)?;
    let sharing = settings.sharing.plan()?;
    // Digests have a random key, unless routers share them.
    router.index.seed = sharing.as_ref().map_or_else(|| RandomState::new().hash_one(0_u8), |plan| plan.seed);
    router.index.table_seed = RandomState::new().hash_one(1_u8);
    let events_token = security::events_token(&options.events)?;
    probe.dialer = security::dialer(&options.security, tls.workers.clone())?;
    (gateway.dialer, follow.dialer) = (probe.dialer.clone(), probe.dialer.clone());
    gateway.aliases = options.aliases.clone().into_iter().collect();
    gateway.admin_token = security::admin_token(&options.security)?;
    gateway.admission.worker_limit = worker_limit(&router, &model_rules);
    gateway.validate()?;
    follow.takes_reports = events_token.is_some();
    sources.entries = options.workers.clone();
    let picker = settings.picker.plan(&sources)?;
    let plan = Plan {
        process: settings.process,
        shadows: policies.shadow_policies(&policy).map_err(with_hint).context("shadow")?,
        policy,
        model_rules,
        router,
        gateway,
        sources: sources.plan(follow.bind.as_deref())?,
        precise: (follow.following == Following::Auto).then_some(follow),
        probe,
        record: settings.record,
        access_log: settings.access_log,
        collector: traces::collector(&options.tracing)?,
        sharing,
        acceptors: security::acceptors(&tls, picker.as_ref())?,
        picker,
        events_token,
        keys: security::keys(&options.security)?,
        options,
    };
    plan.check_ports()?;
    Ok(plan)
}

/// Whether any worker has a limit, for all models or for one.
fn worker_limit(router: &warmroute_router::Config, rules: &ModelRuleTable<Standard>) -> WorkerLimit {
    let of_models = rules.values().filter_map(|rules| rules.in_flight_max);
    match of_models.chain([router.in_flight_max]).any(|max| max > 0) {
        true => WorkerLimit::On,
        false => WorkerLimit::Off,
    }
}

/// The settings of single models.
fn model_rules(
    models: &BTreeMap<String, ModelEntry>,
    policies: &PolicySettings,
) -> anyhow::Result<ModelRuleTable<Standard>> {
    let rules = |(model, entry): (&String, &ModelEntry)| {
        let named = entry.policy.as_deref().map(|text| policies.policy(text).map_err(with_hint)).transpose();
        let policy = named.with_context(|| format!("models.\"{model}\".policy"))?;
        let in_flight_max = entry.max_concurrent_per_worker.map(|max| max.0);
        Ok((model.clone(), ModelRules { policy, in_flight_max }))
    };
    models.iter().map(rules).collect()
}

/// A policy by name and parameters.
pub fn parse_policy(text: &str) -> anyhow::Result<Standard> {
    text.parse().map_err(with_hint)
}

/// The error, with the policy whose name is most similar to an unknown one.
fn with_hint(bad: BadPolicy) -> anyhow::Error {
    match &bad {
        BadPolicy::Unknown(name) => match most_similar(name, Standard::NAMES) {
            Some(most_similar) => anyhow::anyhow!("{bad}; did you mean `{most_similar}`?"),
            None => anyhow::Error::new(bad),
        },
        _ => anyhow::Error::new(bad),
    }
}

/// Splits lists of URLs. The environment has only one text, and a URL contains neither space nor comma.
fn split_urls(urls: Vec<String>) -> Vec<String> {
    let parts = urls.iter().flat_map(|text| text.split([' ', '\t', '\n', ',']));
    parts.filter(|url| !url.is_empty()).map(str::to_owned).collect()
}

/// Options, and those of which one must be set for the first to have an effect.
const NEEDS: [(&str, &[&str]); 15] = [
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
    ("kv-events-publishers", &["kv-events-bind"]),
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
    let is_following = given.events.kv_events.is_none_or(|events| events.0 == Following::Auto);
    let of_events = FOR_EVENTS.iter().filter(|key| !is_following && is_set(key));
    let of_events = of_events.map(|key| format!("{key} has no effect, because kv-events is off"));
    unused.chain(of_events).chain(traces::warnings(&given.tracing)).collect()
}

/// Options by which engines' KV events are followed.
const FOR_EVENTS: [&str; 3] = ["model-path", "matching", "kv-events-bind"];

/// What other machines can read on an admin listener without a token, and the options that prevent it.
pub fn exposure(plan: &Plan) -> Option<(String, &'static str)> {
    let security = &plan.options.security;
    let admin = plan.process.admin;
    let is_open = plan.gateway.admin_token.is_none() && security.admin_tls_client_ca.is_none();
    let says = format!(
        "other machines can read metrics, workers, decisions and the configuration on {admin} without a token; changes \
         are accepted from this machine only"
    );
    (!admin.ip().is_loopback() && is_open)
        .then_some((says, "set --admin-token-file or WARMROUTE_ADMIN_TOKEN, or --admin-host 127.0.0.1"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::options::parse;

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
        assert_eq!(
            unused("[events]\nkv-events = \"off\"\nmodel-path = \"/m\"\nmatching = \"bytes\""),
            ["model-path", "matching"].map(|key| format!("{key} has no effect, because kv-events is off"))
        );
        assert_eq!(unused("[events]\nkv-events = \"auto\"\nmodel-path = \"/m\""), [""; 0]);
        assert_eq!(unused("[picker]\npicker-port = 0\npicker-feedback = \"stream\""), [""; 0]);
        assert_eq!(
            unused("[discovery]\ndp-size = 2"),
            ["dp-size has no effect without worker-urls or service-discovery"]
        );
    }

    #[test]
    fn an_admin_listener_that_others_can_read_is_reported() {
        let exposure = |text: &str| super::exposure(&planned(text).unwrap());
        let open = "[server]\nadmin-host = \"0.0.0.0\"";
        let (says, remedy) = exposure(open).unwrap();
        assert!(says.starts_with("other machines can read metrics"), "{says}");
        assert!(remedy.starts_with("set --admin-token-file"), "{remedy}");
        assert_eq!(exposure(""), None, "loopback");
        assert_eq!(exposure(&format!("{open}\n[security]\nadmin-token = \"hush\"")), None);
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
        assert!(plan.process.listen.ip().is_loopback());
        assert_eq!(plan.gateway.decision_headers, warmroute_gateway::DecisionHeaders::On);
    }

    #[test]
    fn urls_are_separated_by_spaces_or_commas_and_may_end_with_v1() {
        let plan = planned("[discovery]\nworker-urls = [\"http://a:1/v1 http://b:1, http://c:1/\"]").unwrap();
        let urls: Vec<&str> = plan.sources.listed.iter().map(|listed| listed.address.url.as_str()).collect();
        assert_eq!(urls, ["http://a:1", "http://b:1", "http://c:1"]);
    }

    fn planned(text: &str) -> anyhow::Result<Plan> {
        plan(parse(text)?)
    }

    #[test]
    fn the_defaults_are_valid() {
        let plan = planned("").unwrap();
        assert_eq!(plan.process.listen.to_string(), "0.0.0.0:30000");
        assert!(plan.process.admin.ip().is_loopback());
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
            ("[cache]\nblock-hash = \"md5\"", "cache.block-hash: unknown value, expected one of `xxh3`"),
            ("[routing]\nsession-keys = [\"user\"]", "expected header:NAME"),
            ("[[workers]]\nurl = \"ftp://a\"", "`ftp://a` is not a valid worker URL"),
            ("[[workers]]\nurl = \"http://a\"\nranks = 0", "line 3, workers.ranks: 0 ranks: give at least 1"),
            ("[discovery]\ndp-size = 0\nworker-urls = \"http://a\"", "dp-size must be at least 1"),
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
            ("[health]\nload-interval-ms = \"9999d\"", "load-interval-ms must be at most"),
            ("[health]\nhealth-check-endpoint = \"health\"", "begin with /"),
            ("[cache]\ncache-threshold = 1.5", "cache-threshold"),
            ("[cache]\nbalance-rel-threshold = 0.5", "balance-rel-threshold"),
            ("[cache]\nmax-tree-size = 1", "max-tree-size"),
            ("[cache]\nworker-kv-tokens = 0", "worker-kv-tokens"),
            ("[routing]\npolicy = \"weighted_score:queue=nan\"", "queue takes a number from 0 on"),
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
            ("[tracing]\notlp-timeout-secs = \"9999d\"", "otlp-timeout-secs must be at most"),
            (
                "[tracing]\notlp-endpoint = \"https://c\"\notlp-tls-ca = \"/nowhere\"",
                "otlp-tls-ca: cannot read",
            ),
            ("[recording]\nrecord = \"trace\"\nrecord-max-bytes = 10", "record-max-bytes"),
            ("[events]\nkv-events-bind = \"5557\"", "`5557` is not a valid endpoint"),
            (
                "[events]\nkv-events-bind = \"tcp://127.0.0.1:29000\"",
                "kv-events-bind 29000 is also the port of the admin listener",
            ),
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
