//! What a router does with requests beyond the fleet's capacity.

use warmroute_admission::{Class, ExpectedWait, TtftBudget};
use warmroute_types::Micros;

/// Which requests a router refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shedding {
    /// None: requests wait in the engines.
    #[default]
    Off,
    /// Those that find this many requests in flight per engine: a queue of fixed length.
    InFlight(u32),
    /// Those whose first token is expected after this time, as the gateway decides.
    Budget(Micros),
}

impl Shedding {
    /// Whether a request is accepted that finds this many requests in flight per engine, and whose first token is
    /// expected after this time.
    pub(crate) fn accepts(self, in_flight: f64, expected_ttft: ExpectedWait, now: Micros) -> bool {
        match self {
            Shedding::Off => true,
            Shedding::InFlight(max) => in_flight < f64::from(max),
            Shedding::Budget(budget) => {
                TtftBudget::new(Class::Normal, budget, now).check(expected_ttft, now).is_ok()
            }
        }
    }
}
