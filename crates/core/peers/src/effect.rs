//! What hearing a peer changes here.

use warmroute_types::{Micros, RouterId};

use crate::{Booked, Over, Prompt, Reach, Report, Wanted};

/// To be done by whoever keeps the desks and the index, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A peer has sent a request to a worker.
    Booked {
        /// Who.
        router: RouterId,
        /// Its number for it.
        trip: u64,
        /// What.
        booked: Booked,
    },
    /// Its prompt has been computed.
    Computed {
        /// Whose.
        router: RouterId,
        /// Which.
        trip: u64,
    },
    /// It is over. Every `Booked` is followed by exactly one of these, if only because its router has fallen silent. Should that one speak
    /// again, what it has open is booked again.
    Over {
        /// Whose.
        router: RouterId,
        /// Which.
        trip: u64,
        /// How.
        over: Over,
        /// What was sent, where its engine was found to lack some of it and that may be taken for what it lacks now.
        prompt: Option<Prompt>,
    },
    /// A peer lacks news that is not kept any more: all that is open is to be told by
    /// [`Peers::tell_state`](crate::Peers::tell_state).
    StateAsked {
        /// Who.
        router: RouterId,
        /// It will stand for all batches up to this one.
        up_to: u64,
        /// Every trip below this number was over by then.
        open_from: u64,
    },
    /// Some peer wants to know what is presumed here of all caches: to be told by [`Peers::tell_view`](crate::Peers::tell_view).
    ViewAsked,
    /// What a peer presumes of all caches, as it was written there.
    View {
        /// All of it.
        bytes: Vec<u8>,
        /// How old it is at most.
        age: Micros,
    },
    /// A peer has found a worker's cache empty.
    Emptied {
        /// Its identity.
        worker: u64,
    },
    /// A peer has heard something of an engine.
    Reported {
        /// Who.
        router: RouterId,
        /// What.
        report: Report,
    },
    /// How far a peer has heard a stream.
    Reached {
        /// Who.
        router: RouterId,
        /// Which, and how far.
        reach: Reach,
    },
    /// A peer lacks something: to be told by [`Peers::tell_replay`](crate::Peers::tell_replay).
    ReplayAsked {
        /// Who.
        router: RouterId,
        /// What.
        wanted: Wanted,
    },
    /// What was wanted of a stream has come.
    Replayed {
        /// Whose.
        worker: u64,
        /// Nothing: nobody had it.
        reports: Vec<Report>,
    },
}
