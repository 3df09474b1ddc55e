//! Outcomes of requests, and what the router learned from them.

use warmroute_types::{Micros, Usage};

use crate::{Feedback, Request};

/// The outcome of a request. Failures and clients that leave are no outcomes: the decision is dropped. The
/// driver reports a failure of the worker as [`Change::Faulted`](crate::Change::Faulted).
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The first token arrived and the prefill is over. The booking stays for decoding.
    FirstToken {
        /// Time of the event.
        at: Micros,
    },
    /// The answer ended: the prompt has been computed.
    Ended {
        /// Token counts of the answer, if the engine reported any for this prompt alone.
        answered: Option<Answered<'a>>,
    },
    /// Another proxy forwards the request, and its answer is never seen. The prompt counts as computed, but nothing is
    /// learned about the worker: neither its speed nor that it answers.
    Unobserved,
    /// The worker refused the request (backpressure, a client error): it is alive and has computed nothing.
    Refused,
}

/// The engine's token counts of an answer. Only for one prompt with one answer: usage does not tell several apart.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The request, as it was routed.
    pub request: &'a Request<'a>,
    /// The engine's usage numbers.
    pub usage: Usage,
    /// Time of the event.
    pub at: Micros,
}

/// What an outcome showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// End of the ejection, if the first token was so late that its worker is ejected as an outlier.
    pub ejected_until: Option<Micros>,
    /// Predicted and reported cached tokens, if the answer had token counts.
    pub feedback: Option<Feedback>,
}
