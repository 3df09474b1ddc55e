//! Incidents of a run: engines fail, recover, join, leave and are reset.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use warmroute_types::{Micros, parse_time};

/// One incident. Written `fail:3@120`: worker 3 fails after 120 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Time since the start of the run.
    pub at: Micros,
    /// Index of the engine.
    pub worker: usize,
    /// Kind of the incident.
    pub kind: IncidentKind,
}

/// Kinds of incidents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncidentKind {
    /// The engine dies and loses its requests and its cache. Routers notice through failed requests.
    Fail,
    /// The engine is up again with an empty cache, and a probe succeeded.
    Recover,
    /// The engine leaves the fleet and finishes its requests.
    Leave,
    /// The engine joins the fleet. It is absent before, if this is its first incident.
    Join,
    /// The engine's prefix cache is reset, as trainers do after a weight update. Running requests finish
    /// first; routers learn of it with the engine's next step.
    Reset,
}

/// Error of text that is no incident.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is no incident: expected fail, recover, leave, join or reset, as in fail:3@120 (worker 3, second 120)"
)]
pub struct BadIncident(String);

impl FromStr for Incident {
    type Err = BadIncident;

    fn from_str(text: &str) -> Result<Incident, BadIncident> {
        parse(text).ok_or_else(|| BadIncident(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Incident> {
    let (kind, rest) = text.split_once(':')?;
    let (worker, at) = rest.split_once('@')?;
    let kind = match kind {
        "fail" => IncidentKind::Fail,
        "recover" => IncidentKind::Recover,
        "leave" => IncidentKind::Leave,
        "join" => IncidentKind::Join,
        "reset" => IncidentKind::Reset,
        _ => return None,
    };
    let at = parse_time(at, Duration::from_secs(1)).map(Micros::from)?;
    Some(Incident { at, worker: worker.parse().ok()?, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_are_parsed_or_refused() {
        let fail = Incident { at: Micros::from_millis(1_500), worker: 3, kind: IncidentKind::Fail };
        assert_eq!("fail:3@1.5".parse(), Ok(fail));
        for bad in ["fail", "fail:3", "burn:3@1", "fail:x@1", "fail:3@-1", "fail:3@NaN"] {
            assert!(bad.parse::<Incident>().is_err(), "{bad}");
        }
    }
}
