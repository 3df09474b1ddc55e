//! Objects → workers. Pure: the same objects always give the same workers.
//!
//! | a pod that | is |
//! |---|---|
//! | is ready | a worker for each of its ports, or for each rank of each port |
//! | is not ready | the same workers, unready: they keep what was learned about them |
//! | terminates (`deletionTimestamp`), has ended, was evicted, has no address yet | no worker |
//!
//! The pod's UID is the identity of its workers: another pod that gets the same address is another worker.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use warmroute_types::{Address, SourceReadiness};

use super::objects::{ContainerPort, Endpoint, EndpointSlice, Metadata, Pod};
use crate::{EventsEntry, ListedWorker, WorkerEntry};

/// Ports of the pod, as numbers or names, separated by commas.
const PORTS: &str = "warmroute/ports";
/// Names of the models, separated by commas.
const MODELS: &str = "warmroute/models";
/// Number of data-parallel ranks behind each port.
const RANKS: &str = "warmroute/ranks";
/// `http` or `https`.
const SCHEME: &str = "warmroute/scheme";
/// The KV events endpoint, as in the configuration.
const KV_EVENTS: &str = "warmroute/kv-events";
/// Its replay endpoint.
const KV_EVENTS_REPLAY: &str = "warmroute/kv-events-replay";
/// The same as [`PORTS`] in another router.
const PORTS_ELSEWHERE: &str = "smg.ai/worker-ports";
/// Ports in use, among those of the pool.
const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];
/// The port that is used if a pod or a Service has several and none is configured.
const USUAL_PORT: &str = "http";

/// Where a worker listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerPort {
    /// A number.
    Number(u16),
    /// The name of a container's or a Service's port.
    Name(String),
}

/// The text is not a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a port; expected a number from 1 to 65535, or the name of a container port")]
pub struct BadPort(String);

impl FromStr for WorkerPort {
    type Err = BadPort;

    fn from_str(text: &str) -> Result<WorkerPort, BadPort> {
        let bad = || BadPort(text.to_owned());
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = text.parse().ok().filter(|&number| number > 0);
            return number.map(WorkerPort::Number).ok_or_else(bad);
        }
        // The API server allows lower case, digits and hyphens, at most 15 of them.
        let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = text.len() <= 15 && text.bytes().all(is_valid);
        if is_name { Ok(WorkerPort::Name(text.to_owned())) } else { Err(bad()) }
    }
}

impl fmt::Display for WorkerPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerPort::Number(number) => number.fmt(f),
            WorkerPort::Name(name) => name.fmt(f),
        }
    }
}

/// What applies to all objects of a source. Annotations override it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerDefaults {
    /// The ports; if empty, the one named `http`, or the only one.
    pub ports: Vec<WorkerPort>,
    /// Data-parallel ranks behind each port, if it has ranks.
    pub ranks: Option<u16>,
    /// The pool to which the workers belong.
    pub pool: Option<String>,
}

/// Why an object that should be a worker is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{namespace}/{name}: {why}")]
pub(super) struct UnusableObject {
    pub namespace: String,
    pub name: String,
    pub why: String,
}

/// Objects that list workers.
pub(super) trait ListsWorkers {
    fn workers(&self, defaults: &WorkerDefaults) -> Result<Vec<ListedWorker>, String>;

    /// UIDs of pods that terminate, whatever other objects say about them.
    fn leaving(&self) -> impl Iterator<Item = &str>;
}

/// The workers of all objects, each address once and of each pod one address, and the objects that cannot be used.
pub(super) fn worker_set<'a, T>(
    objects: impl Iterator<Item = &'a T>,
    defaults: &WorkerDefaults,
) -> (Vec<ListedWorker>, Vec<UnusableObject>)
where
    T: ListsWorkers + super::objects::ApiObject + 'a,
{
    let mut workers: BTreeMap<Address, ListedWorker> = BTreeMap::new();
    let (mut unusable, mut leaving) = (Vec::new(), HashSet::new());
    for object in objects {
        leaving.extend(object.leaving());
        match object.workers(defaults) {
            Ok(listed) => listed.into_iter().for_each(|worker| add(&mut workers, worker)),
            Err(why) => {
                let Metadata { namespace, name, .. } = object.metadata().clone();
                unusable.push(UnusableObject { namespace, name, why });
            }
        }
    }
    let mut workers: Vec<ListedWorker> = workers.into_values().collect();
    workers.retain(|worker| worker.incarnation.as_deref().is_none_or(|uid| !leaving.contains(uid)));
    keep_one_family(&mut workers);
    (workers, unusable)
}

/// A Service with IPv4 and IPv6 has slices for both, and so each pod twice. The IPv4 one stays, ready or not: a pod that
/// changed its address would be another worker.
fn keep_one_family(workers: &mut Vec<ListedWorker>) {
    let is_ipv6 = |worker: &ListedWorker| worker.address.url.contains('[');
    // The same pod, port and rank.
    let place = |worker: &ListedWorker| {
        let port = worker.address.url.rsplit(':').next().map(str::to_owned);
        worker.incarnation.clone().map(|uid| (uid, port, worker.address.rank))
    };
    let with_ipv4: HashSet<_> = workers.iter().filter(|worker| !is_ipv6(worker)).filter_map(place).collect();
    workers
        .retain(|worker| !is_ipv6(worker) || place(worker).is_none_or(|place| !with_ipv4.contains(&place)));
}

/// An endpoint may be in two slices for a moment, and two pods on one host may claim one port: the ready one counts.
fn add(workers: &mut BTreeMap<Address, ListedWorker>, worker: ListedWorker) {
    let known = workers.get(&worker.address);
    if known.is_none_or(|known| known.readiness == SourceReadiness::NotReady) {
        workers.insert(worker.address.clone(), worker);
    }
}

impl ListsWorkers for Pod {
    fn workers(&self, defaults: &WorkerDefaults) -> Result<Vec<ListedWorker>, String> {
        let has_ended = matches!(self.status.phase.as_str(), "Succeeded" | "Failed");
        if self.metadata.deletion_timestamp.is_some() || has_ended || self.status.pod_ip.is_empty() {
            return Ok(Vec::new());
        }
        let is_ready = |pod: &Pod| {
            pod.status
                .conditions
                .iter()
                .any(|condition| condition.kind == "Ready" && condition.status == "True")
        };
        let readiness = if is_ready(self) { SourceReadiness::Ready } else { SourceReadiness::NotReady };
        let declared = self.spec.running().flat_map(|container| &container.ports).map(NamedPort::from);
        let ports = ports_of(&self.metadata, &declared.collect::<Vec<_>>(), defaults)?;
        listed(&self.status.pod_ip, &ports, &self.metadata, defaults, readiness, &self.metadata.uid)
    }

    fn leaving(&self) -> impl Iterator<Item = &str> {
        // No other object has the same pod.
        std::iter::empty()
    }
}

impl ListsWorkers for EndpointSlice {
    fn workers(&self, defaults: &WorkerDefaults) -> Result<Vec<ListedWorker>, String> {
        let present: Vec<&Endpoint> =
            self.endpoints.iter().filter(|endpoint| !endpoint.is_terminating()).collect();
        if present.is_empty() {
            // A Service without pods has a slice without ports.
            return Ok(Vec::new());
        }
        let declared = self.ports.iter().filter_map(|port| {
            let number = port.port?;
            is_tcp(&port.protocol).then(|| NamedPort { name: &port.name, number })
        });
        let ports = ports_of(&self.metadata, &declared.collect::<Vec<_>>(), defaults)?;
        let mut workers = Vec::new();
        for endpoint in present {
            // All addresses of an endpoint are the same pod; consumers use the first.
            let Some(address) = endpoint.addresses.first() else { continue };
            let is_ready = endpoint.conditions.ready != Some(false);
            let readiness = if is_ready { SourceReadiness::Ready } else { SourceReadiness::NotReady };
            let uid = endpoint.target_ref.as_ref().map_or("", |target| &target.uid);
            workers.extend(listed(address, &ports, &self.metadata, defaults, readiness, uid)?);
        }
        Ok(workers)
    }

    fn leaving(&self) -> impl Iterator<Item = &str> {
        let terminating = self.endpoints.iter().filter(|endpoint| endpoint.is_terminating());
        terminating.filter_map(|endpoint| Some(endpoint.target_ref.as_ref()?.uid.as_str()))
    }
}

/// A declared port. The name may be empty.
#[derive(Clone, Copy, Debug)]
struct NamedPort<'a> {
    name: &'a str,
    number: u16,
}

impl<'a> From<&'a ContainerPort> for NamedPort<'a> {
    fn from(port: &'a ContainerPort) -> NamedPort<'a> {
        // Ports of other protocols have no place in the list; number 0 is never declared.
        let number = if is_tcp(&port.protocol) { port.container_port } else { 0 };
        NamedPort { name: &port.name, number }
    }
}

fn is_tcp(protocol: &str) -> bool {
    protocol.is_empty() || protocol == "TCP"
}

/// The numbers of the ports that workers listen on.
fn ports_of(
    metadata: &Metadata,
    declared: &[NamedPort<'_>],
    defaults: &WorkerDefaults,
) -> Result<Vec<u16>, String> {
    let annotated = annotation(metadata, PORTS).or_else(|| annotation(metadata, PORTS_ELSEWHERE));
    let chosen = match annotated {
        Some((key, value)) => parse_ports(key, value)?,
        None => defaults.ports.clone(),
    };
    let declared: Vec<&NamedPort<'_>> = declared.iter().filter(|port| port.number > 0).collect();
    let number_of = |name: &str| declared.iter().find(|port| port.name == name).map(|port| port.number);
    let mut numbers = match (chosen.is_empty(), declared.as_slice()) {
        (true, [only]) => vec![only.number],
        (true, several) => {
            let count = several.len();
            let none = || format!("{count} ports are declared and none is named {USUAL_PORT}: {SET_PORT}");
            vec![number_of(USUAL_PORT).ok_or_else(none)?]
        }
        (false, _) => {
            let number = |port: &WorkerPort| match port {
                WorkerPort::Number(number) => Ok(*number),
                WorkerPort::Name(name) => {
                    number_of(name).ok_or_else(|| format!("no port is named {name}: {SET_PORT}"))
                }
            };
            chosen.iter().map(number).collect::<Result<_, _>>()?
        }
    };
    if let Some((key, value)) = ACTIVE_PORTS.iter().find_map(|key| annotation(metadata, key)) {
        let active = parse_ports(key, value)?;
        numbers.retain(|&number| active.contains(&WorkerPort::Number(number)));
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

const SET_PORT: &str = "set service-discovery-port, or the annotation warmroute/ports";

fn parse_ports(key: &str, value: &str) -> Result<Vec<WorkerPort>, String> {
    let ports = value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::parse);
    ports.collect::<Result<_, BadPort>>().map_err(|bad| format!("annotation {key}: {bad}"))
}

fn annotation<'a>(metadata: &'a Metadata, key: &'a str) -> Option<(&'a str, &'a str)> {
    metadata.annotations.get(key).map(|value| (key, value.trim()))
}

/// The workers at an address: one for each port and rank.
fn listed(
    host: &str,
    ports: &[u16],
    metadata: &Metadata,
    defaults: &WorkerDefaults,
    readiness: SourceReadiness,
    uid: &str,
) -> Result<Vec<ListedWorker>, String> {
    let host: IpAddr = host.parse().map_err(|_| format!("`{host}` is not an IP address"))?;
    let scheme = match annotation(metadata, SCHEME) {
        None | Some((_, "http")) => "http",
        Some((_, "https")) => "https",
        Some((key, other)) => return Err(format!("annotation {key}: `{other}`; expected http or https")),
    };
    let ranks =
        match annotation(metadata, RANKS) {
            None => defaults.ranks,
            Some((key, text)) => {
                let ranks = text.parse().ok().filter(|ranks| *ranks > 0);
                Some(ranks.ok_or_else(|| {
                    format!("annotation {key}: `{text}` is not a number of ranks from 1 on")
                })?)
            }
        };
    let models = annotation(metadata, MODELS).map(|(_, names)| {
        names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    });
    let kv_events = annotation(metadata, KV_EVENTS).map(|(_, endpoint)| EventsEntry {
        endpoint: endpoint.to_owned(),
        replay: annotation(metadata, KV_EVENTS_REPLAY).map(|(_, replay)| replay.to_owned()),
        topic: String::new(),
    });
    let mut workers = Vec::new();
    for &port in ports {
        // SocketAddr writes IPv6 addresses in brackets, as URLs need them.
        let url = format!("{scheme}://{}", SocketAddr::new(host, port));
        let entry = WorkerEntry {
            url,
            ranks,
            models: models.clone(),
            pool: defaults.pool.clone(),
            kv_events: kv_events.clone(),
        };
        let of_entry = entry.listed().map_err(|bad| bad.to_string())?;
        let incarnation = Some(uid).filter(|uid| !uid.is_empty()).map(Into::into);
        let of_pod = |worker| ListedWorker { readiness, incarnation: incarnation.clone(), ..worker };
        workers.extend(of_entry.into_iter().map(of_pod));
    }
    Ok(workers)
}

#[cfg(test)]
mod tests;
