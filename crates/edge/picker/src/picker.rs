//! State that the streams of all listeners share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, StatusCode};
use warmroute_gateway::{Drain, Gateway, Pick, WorkerGroup};
use warmroute_types::RouterId;

use crate::parked::{ParkedPicks, PickName};
use crate::reply::{DESTINATION, LB_NAMESPACE, PICK_ID};
use crate::request::{Head, Metadata};
use crate::{Config, ConformanceHeaders};

/// The metadata key that names the endpoint which answered.
const SERVED: &str = "x-gateway-destination-endpoint-served";

/// A listener's part: the picker, and the workers that its requests may use.
#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) picker: Arc<Picker>,
    /// The workers of the listener's pool; `None`: all workers.
    pub(crate) group: Option<Arc<WorkerGroup>>,
}

/// The picker.
pub(crate) struct Picker {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) config: Config,
    pub(crate) parked: Arc<ParkedPicks>,
    pub(crate) drain: Drain,
    /// Whether the proxy says which endpoint answered. Then a response without one is the proxy's own.
    reports_served: AtomicBool,
}

impl Picker {
    pub(crate) fn new(gateway: Arc<Gateway>, config: Config, drain: Drain) -> Arc<Picker> {
        let (parked, reports_served) = Default::default();
        Arc::new(Picker { gateway, config, parked, drain, reports_served })
    }

    /// This picker's id among those that share state; `None` if it shares nothing.
    pub(crate) fn router_id(&self) -> Option<RouterId> {
        self.gateway.router().peering().own_id()
    }

    /// The pick that an observing filter's metadata names.
    pub(crate) fn pick_name(&self, metadata: &Metadata) -> Option<PickName> {
        metadata.strings(LB_NAMESPACE, PICK_ID)?.first()?.parse().ok()
    }

    /// Whether a response that another picker chose the worker for is that worker's.
    pub(crate) fn is_of_chosen(&self, metadata: &Metadata) -> bool {
        let chosen = metadata.strings(LB_NAMESPACE, DESTINATION);
        let chosen = chosen.and_then(|list| list.first()?.parse::<SocketAddr>().ok());
        self.is_from(|served| chosen.is_none_or(|chosen| chosen == served), self.note_served(metadata))
    }

    /// Passes the head of a response to its pick. `None` if the response is not the chosen worker's: its pick has ended.
    pub(crate) fn begin_response(
        &self,
        mut pick: Box<Pick>,
        head: &Head,
        metadata: &Metadata,
    ) -> Option<Box<Pick>> {
        if !self.is_from(|served| pick.endpoints(0).contains(&served), self.note_served(metadata)) {
            pick.end_elsewhere();
            return None;
        }
        let status = head.status.unwrap_or(StatusCode::OK);
        pick.begin_response(status, &head.headers);
        Some(pick)
    }

    /// The endpoint that answered, if the proxy says so.
    pub(crate) fn served(&self, metadata: &Metadata) -> Option<String> {
        metadata.strings(LB_NAMESPACE, SERVED)?.into_iter().next()
    }

    pub(crate) fn obeys_test_headers(&self) -> bool {
        self.config.conformance_headers == ConformanceHeaders::On
    }

    /// The address that answered, if the proxy says so.
    fn note_served(&self, metadata: &Metadata) -> Option<SocketAddr> {
        let served = self.served(metadata).and_then(|served| served.parse().ok());
        if served.is_some() {
            self.reports_served.store(true, Ordering::Relaxed);
        }
        served
    }

    fn is_from(&self, is_chosen: impl FnOnce(SocketAddr) -> bool, served: Option<SocketAddr>) -> bool {
        match served {
            Some(served) => is_chosen(served),
            None => !self.reports_served.load(Ordering::Relaxed),
        }
    }
}

/// Headers of a request as the gateway reads them: a client's own choice of an endpoint is not among them.
pub(crate) fn without_destination(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(crate::reply::DESTINATION);
    headers
}
