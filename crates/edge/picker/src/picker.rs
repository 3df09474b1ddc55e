//! State that the streams of all listeners share.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use parking_lot::RwLock;
use warmroute_gateway::{Drain, Gateway, Pick, WorkerGroup};
use warmroute_types::RouterId;

use crate::parked::{ParkedPicks, PickName};
use crate::reply::{DESTINATION, LB_NAMESPACE, PICK_ID};
use crate::request::{Head, Metadata};
use crate::{Config, ConformanceHeaders};

/// The metadata key that names the endpoint which answered.
const SERVED: &str = "x-gateway-destination-endpoint-served";

/// Most proxies of which it is remembered that they say which endpoint answered.
const PROXIES_MAX: usize = 4_096;

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
    /// Proxies that say which endpoint answered. Of these, a response without one is the proxy's own. Others may stand
    /// before the same picker and be configured differently.
    reports_served: RwLock<HashSet<IpAddr>>,
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
    pub(crate) fn is_of_chosen(&self, proxy: IpAddr, metadata: &Metadata) -> bool {
        let chosen = metadata.strings(LB_NAMESPACE, DESTINATION);
        let chosen = chosen.and_then(|list| list.first()?.parse::<SocketAddr>().ok());
        self.is_from(proxy, |served| chosen.is_none_or(|chosen| chosen == served), metadata)
    }

    /// Passes the head of a response to its pick. `None` if the response is not the chosen worker's: its pick has ended.
    pub(crate) fn begin_response(
        &self,
        proxy: IpAddr,
        mut pick: Box<Pick>,
        head: &Head,
        metadata: &Metadata,
    ) -> Option<Box<Pick>> {
        if !self.is_from(proxy, |served| pick.endpoints(0).contains(&served), metadata) {
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

    /// Whether a response is the chosen worker's, as far as the proxy says.
    fn is_from(
        &self,
        proxy: IpAddr,
        is_chosen: impl FnOnce(SocketAddr) -> bool,
        metadata: &Metadata,
    ) -> bool {
        let served = self.served(metadata).and_then(|served| served.parse().ok());
        let reports_served = self.reports_served.read().contains(&proxy);
        if served.is_some() && !reports_served {
            let mut proxies = self.reports_served.write();
            if proxies.len() == PROXIES_MAX {
                proxies.clear();
            }
            proxies.insert(proxy);
        }
        served.map_or(!reports_served, is_chosen)
    }
}

/// Headers of a request as the gateway reads them: a client's own choice of an endpoint is not among them.
pub(crate) fn without_destination(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(crate::reply::DESTINATION);
    headers
}
