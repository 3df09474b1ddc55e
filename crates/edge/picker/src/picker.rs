//! State that all streams share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, StatusCode};
use warmroute_gateway::{Drain, Gateway, Pick};

use crate::parked::ParkedPicks;
use crate::reply::LB_NAMESPACE;
use crate::request::{Head, Metadata};
use crate::{Config, ConformanceHeaders};

/// The metadata key that names the endpoint which answered.
const SERVED: &str = "x-gateway-destination-endpoint-served";

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

    /// Passes the head of a response to its pick. `None` if the response is not the chosen worker's: its pick has ended.
    pub(crate) fn begin_response(
        &self,
        mut pick: Box<Pick>,
        head: &Head,
        metadata: &Metadata,
    ) -> Option<Box<Pick>> {
        let served = self.served(metadata).and_then(|served| served.parse().ok());
        if served.is_some() {
            self.reports_served.store(true, Ordering::Relaxed);
        }
        if !self.is_from(&pick, served) {
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

    fn is_from(&self, pick: &Pick, served: Option<SocketAddr>) -> bool {
        match served {
            Some(served) => pick.endpoints(0).contains(&served),
            None => !self.reports_served.load(Ordering::Relaxed),
        }
    }
}

/// Headers of a request as the gateway reads them: a client's own choice of an endpoint is not among them.
pub(crate) fn without_destination(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(crate::reply::DESTINATION);
    headers
}
