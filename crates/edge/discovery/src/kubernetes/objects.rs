//! The objects of the Kubernetes API, reduced to the fields that discovery reads.
//!
//! Other fields are skipped while an object is parsed, so a cached pod takes a few hundred bytes and not the ten
//! kilobytes of its JSON. The API server writes empty lists as `null`; both mean the same here.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// A kind of object that can be listed and watched.
pub(super) trait ApiObject: DeserializeOwned + PartialEq + Send + Sync {
    /// Its path up to the namespace, as in `/api/v1`.
    const GROUP: &'static str;
    /// Its name in paths and in roles.
    const PLURAL: &'static str;

    fn metadata(&self) -> &Metadata;

    /// The path of the collection in one namespace, or in all of them.
    fn collection(namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", Self::GROUP, Self::PLURAL),
            None => format!("{}/{}", Self::GROUP, Self::PLURAL),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    #[serde(deserialize_with = "null_as_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Set when the object is being deleted: a pod then terminates.
    pub deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    #[serde(deserialize_with = "null_as_empty")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "null_as_empty")]
    pub init_containers: Vec<Container>,
}

impl PodSpec {
    /// The containers that run beside each other: a sidecar is an init container that is restarted.
    pub fn running(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.init_containers.iter().filter(|container| container.restart_policy == "Always");
        self.containers.iter().chain(sidecars)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container {
    /// Of init containers only.
    #[serde(deserialize_with = "null_as_empty")]
    pub restart_policy: String,
    #[serde(deserialize_with = "null_as_empty")]
    pub ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerPort {
    pub name: String,
    pub container_port: u16,
    /// `TCP` if empty.
    pub protocol: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    pub phase: String,
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    #[serde(deserialize_with = "null_as_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct EndpointSlice {
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_empty")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_as_empty")]
    pub ports: Vec<EndpointPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Endpoint {
    #[serde(deserialize_with = "null_as_empty")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "null_as_empty")]
    pub conditions: EndpointConditions,
    pub target_ref: Option<TargetRef>,
}

impl Endpoint {
    pub(super) fn is_terminating(&self) -> bool {
        self.conditions.terminating == Some(true)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct EndpointConditions {
    /// Missing means ready.
    pub ready: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct TargetRef {
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct EndpointPort {
    #[serde(deserialize_with = "null_as_empty")]
    pub name: String,
    pub port: Option<u16>,
    #[serde(deserialize_with = "null_as_empty")]
    pub protocol: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct InferencePool {
    pub metadata: Metadata,
    pub spec: PoolSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PoolSpec {
    pub selector: PoolSelector,
    #[serde(deserialize_with = "null_as_empty")]
    pub target_ports: Vec<TargetPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PoolSelector {
    #[serde(deserialize_with = "null_as_empty")]
    pub match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) struct TargetPort {
    pub number: u16,
}

/// The error document of the API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub code: u16,
    pub message: String,
}

impl ApiObject for Pod {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "pods";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl ApiObject for EndpointSlice {
    const GROUP: &'static str = "/apis/discovery.k8s.io/v1";
    const PLURAL: &'static str = "endpointslices";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl ApiObject for InferencePool {
    const GROUP: &'static str = "/apis/inference.networking.k8s.io/v1";
    const PLURAL: &'static str = "inferencepools";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

pub(super) fn null_as_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
