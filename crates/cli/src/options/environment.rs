//! Rejects unknown environment variables with our prefix: a typo there is as bad as in the file.

use clap::CommandFactory;

use super::groups::ENVIRONMENT_PREFIX;
use super::most_similar;
use crate::args::Cli;

/// Fails if a variable has our prefix but sets no option.
pub fn check_environment() -> anyhow::Result<()> {
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    match unknown(set.filter(|name| name.starts_with(ENVIRONMENT_PREFIX))) {
        Some(problem) => anyhow::bail!(problem),
        None => Ok(()),
    }
}

fn unknown(mut set: impl Iterator<Item = String>) -> Option<String> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("serve is a subcommand");
    let known: Vec<&str> = serve.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let name = set.find(|name| !known.contains(&name.as_str()))?;
    let hint = most_similar(&name, known)
        .map_or(String::new(), |most_similar| format!("; did you mean {most_similar}?"));
    Some(format!("unknown environment variable {name}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn an_unknown_variable_is_reported_with_a_suggestion() {
        assert_eq!(unknown(["WARMROUTE_PORT".to_owned()].into_iter()), None);
        let problem = unknown(["WARMROUTE_POLCY".to_owned()].into_iter()).unwrap();
        assert!(problem.contains("did you mean WARMROUTE_POLICY?"), "{problem}");
    }
}
