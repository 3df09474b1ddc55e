//! Environment variables that look like ours but are not: a slip of the finger there is as bad as in the file.

use clap::CommandFactory;

use super::likest;
use crate::args::Cli;

const OURS: &str = "WARMROUTE_";

/// Fails when a variable begins with our prefix and means nothing.
pub fn check_environment() -> anyhow::Result<()> {
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    match unknown(set.filter(|name| name.starts_with(OURS))) {
        Some(problem) => anyhow::bail!(problem),
        None => Ok(()),
    }
}

fn unknown(mut set: impl Iterator<Item = String>) -> Option<String> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("it is one of the verbs");
    let known: Vec<&str> = serve.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let name = set.find(|name| !known.contains(&name.as_str()))?;
    let hint = likest(&name, known).map_or(String::new(), |likest| format!("; did you mean {likest}?"));
    Some(format!("the environment variable {name} means nothing to warmroute{hint}"))
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn a_slip_of_the_finger_is_named() {
        assert_eq!(unknown(["WARMROUTE_PORT".to_owned()].into_iter()), None);
        let problem = unknown(["WARMROUTE_POLCY".to_owned()].into_iter()).unwrap();
        assert!(problem.contains("did you mean WARMROUTE_POLICY?"), "{problem}");
    }
}
