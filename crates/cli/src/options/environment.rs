//! Rejects unknown environment variables with our prefix: a typo there is as bad as in the file.
//!
//! Kubernetes sets variables for every service of a namespace, in the form of Docker's links. If a service is called
//! `warmroute` or `warmroute-admin`, they have our prefix, or even the name of an option. They are ignored.

use clap::CommandFactory;

use super::groups::ENVIRONMENT_PREFIX;
use super::most_similar;
use crate::args::Cli;

/// Fails if a variable has our prefix but sets no option.
pub fn check_environment() -> anyhow::Result<()> {
    let set = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(ENVIRONMENT_PREFIX))?;
        Some((name, value.to_string_lossy().into_owned()))
    });
    match unknown(set) {
        Some(problem) => anyhow::bail!(problem),
        None => Ok(()),
    }
}

/// Whether Kubernetes sets such a variable for a service.
pub fn is_service_link(name: &str, value: &str) -> bool {
    let has_address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let is_numbered = name.split_once("_PORT_").is_some_and(|(_, rest)| {
        let (number, protocol) = rest.split_once('_').unwrap_or_default();
        let is_port = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_port && ["TCP", "UDP", "SCTP"].iter().any(|known| protocol.starts_with(known))
    });
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && has_address)
        || is_numbered
}

fn unknown(set: impl Iterator<Item = (String, String)>) -> Option<String> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("serve is a subcommand");
    let known: Vec<&str> = serve.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let mut strange =
        set.filter(|(name, value)| !known.contains(&name.as_str()) && !is_service_link(name, value));
    let (name, _) = strange.next()?;
    let hint = most_similar(&name, known)
        .map_or(String::new(), |most_similar| format!("; did you mean {most_similar}?"));
    Some(format!("unknown environment variable {name}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::{is_service_link, unknown};

    fn found(name: &str, value: &str) -> Option<String> {
        unknown([(name.to_owned(), value.to_owned())].into_iter())
    }

    #[test]
    fn an_unknown_variable_is_reported_with_a_suggestion() {
        assert_eq!(found("WARMROUTE_PORT", "80"), None);
        let problem = found("WARMROUTE_POLCY", "random").unwrap();
        assert!(problem.contains("did you mean WARMROUTE_POLICY?"), "{problem}");
    }

    #[test]
    fn variables_of_kubernetes_services_are_ignored() {
        for (name, value) in [
            ("WARMROUTE_SERVICE_HOST", "10.0.0.1"),
            ("WARMROUTE_SERVICE_PORT", "30000"),
            ("WARMROUTE_SERVICE_PORT_HTTP", "30000"),
            ("WARMROUTE_PORT", "tcp://10.0.0.1:30000"),
            ("WARMROUTE_PORT_30000_TCP", "tcp://10.0.0.1:30000"),
            ("WARMROUTE_PORT_30000_TCP_PROTO", "tcp"),
            ("WARMROUTE_PORT_30000_UDP_ADDR", "10.0.0.1"),
            ("WARMROUTE_ADMIN_PORT", "tcp://10.0.0.1:29000"),
            ("WARMROUTE_MESH_SERVICE_HOST", "10.0.0.1"),
        ] {
            assert!(is_service_link(name, value), "{name}");
            assert_eq!(found(name, value), None);
        }
        for (name, value) in
            [("WARMROUTE_PORT", "30000"), ("WARMROUTE_PORT_X", "1"), ("WARMROUTE_HOST", "tcp://a")]
        {
            assert!(!is_service_link(name, value), "{name}");
        }
    }
}
