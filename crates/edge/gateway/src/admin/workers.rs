//! `/workers`: lists, adds and removes workers.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use warmroute_fleet::{FleetFull, Models, WorkerView};
use warmroute_prompt::Api;
use warmroute_router::{Change, FeedReport};
use warmroute_tokens::parity::PresumedApi;
use warmroute_types::{Address, CacheView, MAX_WORKERS, NO_RANKS, base_url, mask_url, redact_values};
use warmroute_wire::percent_decoded;
use xxhash_rust::xxh3::xxh3_64;

use super::{AdminError, AdminResult, as_json};
use crate::gateway::Gateway;

/// The body of `POST /workers`. Clients of other routers send fields that mean nothing here; the answer names them.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object with the key `url`")]
pub(super) struct WorkerSpec {
    pub url: String,
    /// Data-parallel ranks behind the URL; each becomes a worker.
    ranks: Option<u16>,
    /// Model names. Without them the engine is asked.
    models: Option<Vec<String>>,
    /// Whether to answer only when the worker is routable.
    pub wait: Option<bool>,
    /// Sent by clients of SMG. Workers of other types than `regular` are for disaggregated serving.
    worker_type: Option<String>,
    #[serde(flatten)]
    ignored: BTreeMap<String, IgnoredAny>,
}

impl WorkerSpec {
    pub fn read(body: &[u8]) -> Result<WorkerSpec, AdminError> {
        let bad = |message: String| AdminError(StatusCode::BAD_REQUEST, message);
        let spec: WorkerSpec =
            serde_json::from_slice(body).map_err(|error| bad(redact_values(&error.to_string())))?;
        match spec.worker_type.as_deref() {
            None | Some("regular") => Ok(spec),
            Some(_) => Err(bad("worker_type must be regular: other types are not supported".to_owned())),
        }
    }

    pub fn of_url(url: String) -> WorkerSpec {
        WorkerSpec { url, ..WorkerSpec::default() }
    }
}

/// Shown for a worker that has never reported cached tokens.
const CACHED_TOKENS_HINT: &str = "unknown: no response has reported cached tokens; if that persists, start vLLM with \
                                  --enable-prompt-tokens-details, SGLang with --enable-cache-report";

/// Shown for a worker whose engine has not been checked for KV events.
const NOT_QUERIED: &str =
    "KV events not checked yet: the check is under way, kv-events is off, or the worker is not ready";

pub(super) fn list(gateway: &Gateway) -> Value {
    let workers: Value =
        gateway.router.inspect().workers().iter().map(|view| describe(gateway, view)).collect();
    json!({ "workers": workers })
}

/// The list, and what became of a worker that was added.
pub(super) fn list_with_added(gateway: &Gateway, spec: &WorkerSpec) -> Value {
    let mut list = list(gateway);
    list["worker_id"] = id_of(base_url(&spec.url)).into();
    list["ignored"] = spec.ignored.keys().cloned().collect();
    list
}

/// The identifier of the engine at a URL, which all its ranks share. It stays the same over restarts and is the same at
/// every router.
fn id_of(url: &str) -> String {
    format!("{:016x}", xxh3_64(url.as_bytes()))
}

fn describe(gateway: &Gateway, view: &WorkerView) -> Value {
    let models: Vec<&str> = match &view.models {
        Models::Named(names) => names.iter().map(AsRef::as_ref).collect(),
        Models::Any | Models::Unknown => Vec::new(),
    };
    let report = view.load.report.map(|report| {
        json!({
            "waiting": report.waiting, "running": report.running, "kv_use": report.kv_use.map(rounded),
            "age_ms": gateway.now().since(report.at).as_millis_f64().round(),
        })
    });
    let feed = gateway.router.inspect().feed_report(view.worker.id);
    let latency = gateway.router.inspect().latency(view.worker.id, gateway.now());
    json!({
        "id": id_of(&view.worker.address.url),
        "url": view.worker.address.url,
        "rank": view.worker.address.rank,
        "model": models.first(),
        "models": models,
        "pools": gateway.router.inspect().groups_of(view.worker.id),
        "state": view.load.state.as_str(),
        "trouble": gateway.fleet_notes.probe_problems.get(&view.worker.address),
        "breaker": view.breaker.state().as_str(),
        // The worker asked for a pause, or is avoided because it is far slower than predicted.
        "rests_ms": view.load.paused_until.since(gateway.now()).as_millis_f64().round(),
        "view": view.load.view.as_str(),
        "matching": feed.map_or("none", |feed| feed.unit.as_str()),
        "apis": describe_apis(gateway, &view.worker.address.url),
        "why": why(gateway, view),
        // Without reported events there is nothing to trust.
        "trust": (view.load.view != CacheView::Presumed).then(|| rounded(view.load.trust)),
        "events": feed.map(|report| describe_feed(&report)),
        // Learned from answers: drafts by EAGLE or MTP need it.
        "recomputes_last_block": view.load.recomputes_last_block,
        "cached_tokens": if view.load.reports_cached_tokens { "reported" } else { CACHED_TOKENS_HINT },
        "in_flight": view.load.in_flight,
        "prefill_tokens": view.load.prefill_tokens,
        "decode_tokens": view.load.decode_tokens,
        "report": report,
        // Requests that the engine computes at once.
        "places": latency.places,
        "expected_queue_ms": rounded(latency.queue_ms),
        "latency": {
            "ms_per_1k_tokens": rounded(latency.ms_per_1k_tokens),
            "ms_before_first": rounded(latency.ms_before_first),
            "relative": rounded(latency.relative_latency),
        },
    })
}

/// Whether the requests of each API are compared with the engine's KV events; null for an engine that is not aligned.
fn describe_apis(gateway: &Gateway, url: &str) -> Value {
    let Some(presumed) = gateway.reader.alignments.presumed_apis(url) else { return Value::Null };
    let describe = |api: Api| match presumed.iter().find(|one| one.api == api) {
        Some(PresumedApi { why, .. }) => format!("presumed: {why}"),
        None => "precise".to_owned(),
    };
    Api::COMPARED.iter().map(|&api| (api.path(), describe(api))).collect()
}

/// Why the view of a worker's cache is not better than it is.
fn why(gateway: &Gateway, view: &WorkerView) -> Option<String> {
    let is_presumed = view.load.view == CacheView::Presumed;
    let reason = gateway.fleet_notes.view_reasons.get(&view.worker.address);
    reason.or_else(|| is_presumed.then(|| NOT_QUERIED.to_owned()))
}

/// Rounds to three digits: more would be noise.
fn rounded(number: f32) -> f64 {
    (f64::from(number) * 1e3).round() / 1e3
}

fn describe_feed(report: &FeedReport) -> Value {
    let FeedReport { stream, ingested, .. } = report;
    let stream = stream.map(|stream| {
        json!({
            "lag_ms": (stream.lag_s * 1e3).round(), "batches": stream.batches, "gaps": stream.gaps,
            "lost": stream.lost, "replays": stream.replays, "restarts": stream.restarts,
            "duplicates": stream.duplicates, "unreadable": stream.unreadable, "missed_live": stream.missed_live, "next": stream.next_seq,
        })
    });
    json!({
        "stream": stream,
        "blocks": {
            "stored": ingested.stored, "removed": ingested.removed, "offloaded": ingested.offloaded, "unknown": ingested.unknown,
            "parked": ingested.parked, "refused": ingested.refused, "foreign": ingested.foreign,
        },
    })
}

/// Adds workers. Returns their addresses: one for each rank.
pub(super) fn add(gateway: &Gateway, spec: &WorkerSpec) -> Result<Vec<Address>, AdminError> {
    let bad = |message: String| AdminError(StatusCode::BAD_REQUEST, message);
    if spec.ranks == Some(0) {
        return Err(bad(NO_RANKS.to_owned()));
    }
    let addresses = Address::parse(&spec.url, spec.ranks).map_err(|error| bad(error.to_string()))?;
    let models = spec.models.as_ref().map_or(Models::Unknown, |names| Models::named(names));
    join_all(gateway, &addresses, &models)
        .map_err(|full| AdminError(StatusCode::CONFLICT, full.to_string()))?;
    addresses.iter().for_each(|address| tracing::info!(worker = %address, "worker added by the admin API"));
    Ok(addresses)
}

/// Lets all ranks join, or none.
fn join_all(gateway: &Gateway, addresses: &[Address], models: &Models) -> Result<(), FleetFull> {
    let members: BTreeSet<Address> =
        gateway.router.inspect().workers().iter().map(|view| view.worker.address.clone()).collect();
    let new: Vec<&Address> = addresses.iter().filter(|address| !members.contains(address)).collect();
    if members.len() + new.len() > MAX_WORKERS {
        return Err(FleetFull);
    }
    for address in addresses {
        if let Err(full) = gateway.router.join(address.clone(), models.clone()) {
            // Slots of workers that still drain are not free.
            new.iter().for_each(|&address| {
                gateway.router.apply(Change::Leave { address: address.clone() });
            });
            return Err(full);
        }
    }
    Ok(())
}

/// `DELETE /workers?url=…[&rank=…]`: drains and removes one rank or all ranks of the URL.
pub(super) fn remove(gateway: &Gateway, query: &str) -> AdminResult {
    let missing =
        || AdminError(StatusCode::BAD_REQUEST, "missing parameter: DELETE /workers?url=URL".to_owned());
    let url = parameter(query, "url").ok_or_else(missing)?;
    let rank = parameter(query, "rank").map(|rank| rank.parse::<u16>());
    let rank =
        rank.transpose().map_err(|error| AdminError(StatusCode::BAD_REQUEST, format!("rank: {error}")))?;
    remove_url(gateway, &url, rank)
}

/// `DELETE /workers/…`, followed by the engine's identifier or its URL: drains and removes all its ranks.
pub(super) fn remove_named(gateway: &Gateway, name: &str) -> AdminResult {
    let workers = gateway.router.inspect().workers();
    let mut urls = workers.iter().map(|view| &*view.worker.address.url);
    remove_url(gateway, urls.find(|url| id_of(url) == name).unwrap_or(name), None)
}

/// Drains and removes one rank or all ranks of a URL.
pub(super) fn remove_url(gateway: &Gateway, url: &str, rank: Option<u16>) -> AdminResult {
    let url = base_url(url);
    let leaving: Vec<Address> = gateway
        .router
        .inspect()
        .workers()
        .into_iter()
        .map(|view| view.worker.address.clone())
        .filter(|address| address.url == url && (rank.is_none() || address.rank == rank))
        .collect();
    if leaving.is_empty() {
        return Err(AdminError(StatusCode::NOT_FOUND, format!("no such worker: {}", mask_url(url))));
    }
    for address in leaving {
        tracing::info!(worker = %address, "worker removed by the admin API; draining");
        gateway.router.apply(Change::Leave { address });
    }
    Ok(as_json(&list(gateway)))
}

/// A query parameter.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| percent_decoded(value))
}
