//! Where traces go. The options win over OpenTelemetry's standard variables (`OTEL_...`), which many clusters set for
//! every process: a standard variable that cannot be used is reported, and does not keep the gateway from starting.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use anyhow::Context;
use warmroute_otel::{CollectorConfig, ConfigError};
use warmroute_types::AT_LEAST_1;
use warmroute_wire::{Dialer, TlsFiles};

use crate::options::quantity::Secs;
use crate::options::{Secret, Tracing, bounded};
use crate::security;

/// The collector, if traces are on.
pub fn collector(options: &Tracing) -> anyhow::Result<Option<CollectorConfig>> {
    check(options)?;
    let standard = standard_options(&from_environment, options.otlp_endpoint.is_some()).unwrap_or_default();
    config(&options.clone().over(standard, |_| true))
}

/// Options without effect, and standard variables that cannot be used.
pub fn warnings(options: &Tracing) -> Vec<String> {
    let standard = standard_options(&from_environment, options.otlp_endpoint.is_some());
    let is_off = options.otlp_endpoint.is_none()
        && matches!(&standard, Ok(standard) if standard.otlp_endpoint.is_none());
    let unused = options.set().first().filter(|_| is_off).map(|(key, _)| *key);
    let unused = unused.map(|key| format!("{key} has no effect without otlp-endpoint"));
    standard.err().into_iter().chain(unused).collect()
}

/// Checks the options whether or not there is a collector.
fn check(options: &Tracing) -> anyhow::Result<()> {
    let ratio = options.trace_sample_ratio.unwrap_or(1.0);
    anyhow::ensure!((0.0..=1.0).contains(&ratio), "trace-sample-ratio {}", ConfigError::Ratio);
    if let Some(timeout) = &options.otlp_timeout_secs {
        bounded(timeout.0).map_err(|why| anyhow::anyhow!("otlp-timeout-secs{why}"))?;
        anyhow::ensure!(!timeout.0.is_zero(), "otlp-timeout-secs {AT_LEAST_1}");
    }
    for pair in options.trace_attributes.iter().flatten() {
        anyhow::ensure!(attribute(pair).is_some(), "trace-attributes: `{pair}` is not NAME=VALUE");
    }
    Ok(())
}

fn config(options: &Tracing) -> anyhow::Result<Option<CollectorConfig>> {
    let Some(endpoint) = &options.otlp_endpoint else { return Ok(None) };
    let mut config = CollectorConfig::new(endpoint).context("otlp-endpoint")?;
    let headers = security::secret("otlp-headers", &options.otlp_headers, &options.otlp_headers_file)?;
    config.add_headers(headers.as_deref().unwrap_or_default()).context("otlp-headers")?;
    config.timeout = options.otlp_timeout_secs.map_or(config.timeout, |timeout| timeout.0);
    config.sample_ratio = options.trace_sample_ratio.unwrap_or(config.sample_ratio);
    config.dialer = Dialer::new(None, TlsFiles { ca: options.otlp_tls_ca.clone(), ..TlsFiles::default() })
        .context("otlp-tls-ca")?;
    config.resource = resource(options);
    Ok(Some(config))
}

/// What is said about this process. Given attributes replace ours.
fn resource(options: &Tracing) -> Vec<(String, String)> {
    let mut attributes: Vec<(String, String)> =
        options.trace_attributes.iter().flatten().filter_map(|pair| attribute(pair)).collect();
    let ours = [
        ("service.name", "warmroute".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", instance_id()),
    ];
    for (name, value) in ours {
        if !attributes.iter().any(|(given, _)| given == name) {
            attributes.push((name.to_owned(), value));
        }
    }
    attributes
}

fn attribute(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

/// A random UUID (version 4), new for each process.
fn instance_id() -> String {
    let random = |n: u8| RandomState::new().hash_one(n);
    let (high, low) = (random(0) & !0xf000 | 0x4000, random(1) >> 2 | 1 << 63);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The options that the standard variables stand for, or why they cannot be used. They are not read without a collector.
fn standard_options(read: &dyn Fn(&str) -> Option<String>, has_endpoint: bool) -> Result<Tracing, String> {
    let is_off = read("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || read("OTEL_TRACES_EXPORTER")
            .is_some_and(|value| !value.split(',').any(|name| name.trim() == "otlp"));
    let endpoint = otlp(read, "ENDPOINT").filter(|_| !is_off);
    if endpoint.is_none() && !has_endpoint {
        return Ok(Tracing::default());
    }
    if let Some(protocol) =
        otlp(read, "PROTOCOL").filter(|protocol| protocol != "http/protobuf" && !has_endpoint)
    {
        return Err(format!(
            "OTEL_EXPORTER_OTLP_PROTOCOL is {protocol:?}, but traces are sent as http/protobuf only: none are sent; set \
             --otlp-endpoint"
        ));
    }
    let timeout = otlp(read, "TIMEOUT").and_then(|millis| millis.parse().ok());
    let service = read("OTEL_SERVICE_NAME").map(|name| format!("service.name={name}"));
    let attributes = read("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let attributes = attributes.split(',').filter(|pair| attribute(pair).is_some()).map(str::to_owned);
    // A name of its own variable wins over one among the attributes.
    let attributes = attributes.filter(|pair| service.is_none() || !pair.trim().starts_with("service.name="));
    let attributes: Vec<String> = service.clone().into_iter().chain(attributes).collect();
    let standard = Tracing {
        otlp_endpoint: endpoint,
        // Headers of one collector are not for another.
        otlp_headers: otlp(read, "HEADERS").filter(|_| !has_endpoint).map(Secret::from),
        otlp_timeout_secs: timeout.map(|millis| Secs(Duration::from_millis(millis))),
        otlp_tls_ca: otlp(read, "CERTIFICATE").map(Into::into),
        trace_sample_ratio: standard_ratio(read),
        trace_attributes: (!attributes.is_empty()).then_some(attributes),
        otlp_headers_file: None,
    };
    match check(&standard).and_then(|()| config(&standard)) {
        Ok(_) => Ok(standard),
        Err(error) => Err(format!("OTEL_... variables: {error:#}: they are not used")),
    }
}

/// A variable of the exporter: the one for traces, or else the one for all signals.
fn otlp(read: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    let general = format!("OTEL_EXPORTER_OTLP_{name}");
    read(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}")).or_else(|| read(&general))
}

/// The share of traces that the standard sampler samples.
fn standard_ratio(read: &dyn Fn(&str) -> Option<String>) -> Option<f64> {
    match read("OTEL_TRACES_SAMPLER")?.trim_start_matches("parentbased_") {
        "always_off" => Some(0.0),
        "traceidratio" => read("OTEL_TRACES_SAMPLER_ARG")?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standard(set: &[(&str, &str)], has_endpoint: bool) -> Result<Tracing, String> {
        let read =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        standard_options(&read, has_endpoint)
    }

    #[test]
    fn standard_variables_stand_for_options() {
        assert_eq!(standard(&[("OTEL_SERVICE_NAME", "x")], false), Ok(Tracing::default()), "no collector");
        let options = standard(
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318"),
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/v1/traces"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hush"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_SERVICE_NAME", "router-a"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment.name=test"),
            ],
            false,
        );
        let options = options.unwrap();
        assert_eq!(options.otlp_endpoint.as_deref(), Some("http://traces:4318/v1/traces"));
        assert_eq!(options.otlp_headers.as_ref().map(Secret::reveal), Some("authorization=hush"));
        assert_eq!(options.otlp_timeout_secs, Some(Secs(Duration::from_millis(2_500))));
        assert_eq!(options.trace_sample_ratio, Some(0.25));
        let config = config(&options).unwrap().unwrap();
        let value = |name: &str| {
            config.resource.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
        };
        assert_eq!(value("service.name"), Some("router-a"));
        assert_eq!(value("deployment.environment.name"), Some("test"));
        assert_eq!(value("service.version"), Some(env!("CARGO_PKG_VERSION")));
        let id = value("service.instance.id").unwrap();
        assert!(id.len() == 36 && id.as_bytes()[14] == b'4' && b"89ab".contains(&id.as_bytes()[19]), "{id}");
    }

    #[test]
    fn standard_variables_that_cannot_be_used_are_reported_and_do_no_harm() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        for (set, expected) in [
            (
                &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")][..],
                "OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\"",
            ),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")], "port 4317"),
            (&[endpoint, ("OTEL_EXPORTER_OTLP_HEADERS", "hush")], "otlp-headers: entry 1"),
            (
                &[endpoint, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")],
                "trace-sample-ratio",
            ),
        ] {
            let error = standard(set, false).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hush"), "{error}");
        }
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(standard(&[endpoint, off], false), Ok(Tracing::default()));
        }
        let ours = standard(&[("OTEL_EXPORTER_OTLP_HEADERS", "a=hush")], true).unwrap();
        assert_eq!(ours.otlp_headers, None, "a secret for another collector");
    }

    #[test]
    fn options_without_a_collector_have_no_effect() {
        let options = Tracing { trace_sample_ratio: Some(0.5), ..Tracing::default() };
        assert_eq!(warnings(&options), ["trace-sample-ratio has no effect without otlp-endpoint"]);
        assert_eq!(warnings(&Tracing::default()), [""; 0]);
    }
}
