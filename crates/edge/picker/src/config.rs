//! The picker's settings.

use warmroute_types::OptionValue;

/// How the picker answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// How responses are seen.
    pub feedback: Feedback,
    /// Further endpoints after the chosen one, for proxies that take a list.
    pub fallbacks: usize,
    /// Whether headers of conformance tests are obeyed.
    pub conformance_headers: ConformanceHeaders,
}

/// Whether the picker takes part in the conformance tests of the Gateway API inference extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConformanceHeaders {
    /// It does not.
    #[default]
    Off,
    /// The request header `test-epp-endpoint-selection` restricts the choice, and the response header
    /// `x-conformance-test-served-endpoint` names the endpoint that answered. A client then chooses its engine.
    On,
}

/// How the picker sees responses, from which the router learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feedback {
    /// Not at all. The end of a request is estimated.
    #[default]
    Off,
    /// By a second filter in observability mode, which reports and never waits.
    Observer,
    /// In the stream that asked for the worker. A picker that ends then cuts the responses.
    Stream,
}

impl OptionValue for Feedback {
    const VALUES: &'static [(Feedback, &'static str, &'static str)] = &[
        (Feedback::Off, "off", "Leave the stream after the choice; estimate when requests end"),
        (
            Feedback::Observer,
            "observer",
            "Leave it, and read what a second filter in observability mode reports",
        ),
        (Feedback::Stream, "stream", "Stay in the stream and read the response, if the filter sends it"),
    ];
}
