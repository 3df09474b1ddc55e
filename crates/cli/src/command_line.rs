//! Parses the command line, and keeps where each option was written, so that errors name what the user wrote.
//!
//! The help of an option ends with its default, which is that of the part's setting.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory, FromArgMatches};

use crate::args::Cli;
use crate::options::{OnOff, Options, Written, is_service_link};

/// The subcommands that take the options of `serve`.
const WITH_OPTIONS: [&str; 3] = ["serve", "check", "doctor"];

/// The command, with defaults in the help of its options.
pub fn command() -> Command {
    let defaults = Options::shown_defaults();
    mut_options(Cli::command(), |arg| show_default(arg, &defaults))
}

/// Changes the options of all subcommands that take them.
fn mut_options(command: Command, mut change: impl FnMut(Arg) -> Arg) -> Command {
    command.mut_subcommands(|subcommand| match WITH_OPTIONS.contains(&subcommand.get_name()) {
        true => subcommand.mut_args(&mut change),
        false => subcommand,
    })
}

/// Adds the default of an option to the first paragraph of its help.
fn show_default(arg: Arg, defaults: &BTreeMap<String, String>) -> Arg {
    let Some(default) = arg.get_long().and_then(|key| defaults.get(key)) else { return arg };
    let with_default = |help: String| match help.split_once("\n\n") {
        Some((first, rest)) => format!("{first} [default: {default}]\n\n{rest}"),
        None => format!("{help} [default: {default}]"),
    };
    let short = arg.get_help().map(|help| with_default(help.to_string()));
    let long = arg.get_long_help().map(|help| with_default(help.to_string()));
    let arg = short.into_iter().fold(arg, Arg::help);
    long.into_iter().fold(arg, Arg::long_help)
}

/// The parsed command line. Exits with an error message, or after `--help`.
pub fn parse() -> (Cli, Written) {
    parse_from(std::env::args_os().collect()).unwrap_or_else(|error| error.exit())
}

fn parse_from(args: Vec<OsString>) -> Result<(Cli, Written), clap::Error> {
    let command = mut_options(command(), ignore_service_link);
    let args = join_switches(&command, args);
    let matches = command.clone().try_get_matches_from(&args);
    let matches = matches.map_err(|error| name_variable(error, &command, &args))?;
    let written = match matches.subcommand() {
        Some((name, subcommand)) if WITH_OPTIONS.contains(&name) => Written::of(subcommand),
        _ => Written::default(),
    };
    Ok((Cli::from_arg_matches(&matches)?, written))
}

/// Detaches an option from its environment variable if Kubernetes set the variable for a service.
fn ignore_service_link(arg: Arg) -> Arg {
    let is_link = arg.get_env().and_then(OsStr::to_str).is_some_and(|name| {
        let value = std::env::var(name).unwrap_or_default();
        is_service_link(name, &value)
    });
    if is_link { arg.env(None) } else { arg }
}

/// Writes `--switch on` as `--switch=on`. The value of a switch is optional, so that clap would take any word behind it
/// for the value, also a worker's URL.
fn join_switches(command: &Command, args: Vec<OsString>) -> Vec<OsString> {
    let arguments = command.get_subcommands().flat_map(Command::get_arguments);
    let switches: Vec<String> = arguments
        .filter(|arg| arg.is_require_equals_set())
        .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
        .collect();
    let is_switch = |arg: &OsString| switches.iter().any(|switch| arg == switch.as_str());
    // A word that cannot be a URL, another flag or a file belongs to the switch, also if it is wrong.
    let is_value = |arg: &OsString| {
        arg.to_str().is_some_and(|text| text.parse::<OnOff>().is_ok() || !text.contains([':', '.', '/', '-']))
    };
    let mut joined: Vec<OsString> = Vec::with_capacity(args.len());
    for arg in args {
        match joined.last_mut() {
            Some(last) if is_switch(last) && is_value(&arg) => {
                last.push("=");
                last.push(arg);
            }
            _ => joined.push(arg),
        }
    }
    joined
}

/// Names the environment variable in an error about its value. Clap names the flag.
fn name_variable(mut error: clap::Error, command: &Command, args: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return error };
    let Some(flag) = shown.strip_prefix("--").and_then(|name| name.split([' ', '[', '=']).next()) else {
        return error;
    };
    let mut arguments = command.get_subcommands().flat_map(Command::get_arguments);
    let variable = arguments.find(|arg| arg.get_long() == Some(flag) && arg.get_env().is_some());
    let variable = variable.filter(|arg| !is_flag_in(arg, args));
    let variable = variable.and_then(|arg| arg.get_env()).filter(|name| std::env::var_os(name).is_some());
    if let Some(name) = variable.map(|name| name.to_string_lossy().into_owned()) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
    error
}

fn is_flag_in(arg: &Arg, args: &[OsString]) -> bool {
    let names = arg.get_long_and_visible_aliases().unwrap_or_default();
    let hidden = arg.get_all_aliases().unwrap_or_default();
    let is_it = |given: &str| names.iter().chain(&hidden).any(|name| given == format!("--{name}"));
    args.iter()
        .filter_map(|given| given.to_str())
        .any(|given| is_it(given.split('=').next().unwrap_or(given)))
}

#[cfg(test)]
mod tests {
    use warmroute_otel::CollectorConfig;
    use warmroute_policy::CacheAware;

    use super::*;

    fn joined(line: &str) -> String {
        let args = join_switches(&Cli::command(), line.split(' ').map(OsString::from).collect());
        let args: Vec<String> = args.into_iter().map(|arg| arg.into_string().unwrap()).collect();
        args.join(" ")
    }

    #[test]
    fn the_value_of_a_switch_may_follow_it() {
        assert_eq!(joined("x serve --decision-headers on"), "x serve --decision-headers=on");
        assert_eq!(
            joined("x serve --allow-worker-choice off http://a"),
            "x serve --allow-worker-choice=off http://a"
        );
        for same in [
            "x serve --decision-headers http://a",
            "x serve --decision-headers --port 1",
            "x serve --decision-headers=on",
            "x serve --dp-size 1",
        ] {
            assert_eq!(joined(same), same);
        }
    }

    #[test]
    fn the_short_help_fits_a_screen_and_the_long_one_has_every_option() {
        let mut command = command();
        for name in WITH_OPTIONS {
            let subcommand = command.find_subcommand_mut(name).unwrap();
            let short = subcommand.render_help().to_string();
            let long = subcommand.render_long_help().to_string();
            assert!(short.lines().count() <= 40, "{name} -h: {} lines\n{short}", short.lines().count());
            let shown = subcommand.get_arguments().filter(|flag| !flag.is_hide_set());
            for flag in shown.filter_map(Arg::get_long) {
                assert!(long.contains(&format!("--{flag}")), "{name} --help lacks --{flag}");
            }
        }
    }

    #[test]
    fn the_help_names_every_default_once() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        let of_cache_aware = CacheAware::default();
        let of_collector = CollectorConfig::new("http://c:4318").unwrap();
        // These options have no default of their own: a policy's preset or a standard variable may give another value.
        let written = [
            ("cache-threshold", of_cache_aware.cache_threshold.to_string()),
            ("balance-abs-threshold", of_cache_aware.balance_abs.to_string()),
            ("balance-rel-threshold", of_cache_aware.balance_rel.to_string()),
            ("otlp-timeout-secs", of_collector.timeout.as_secs().to_string()),
            ("trace-sample-ratio", of_collector.sample_ratio.to_string()),
        ];
        let written = written.map(|(key, default)| (key.to_owned(), default));
        for (key, default) in Options::shown_defaults().into_iter().chain(written) {
            let arg = serve.get_arguments().find(|arg| arg.get_long() == Some(&key)).unwrap();
            let help = arg.get_help().unwrap().to_string();
            assert!(help.ends_with(&format!(" [default: {default}]")), "--{key}, default {default}: {help}");
            let long = arg.get_long_help().map_or(help, ToString::to_string);
            assert_eq!(long.matches("[default: ").count(), 1, "{long}");
        }
    }

    #[test]
    fn a_repeated_flag_counts_last() {
        let args = "x serve --port 1 --port 2 http://a http://b".split(' ').map(OsString::from).collect();
        let (cli, _) = parse_from(args).unwrap();
        let crate::args::Command::Serve(args) = cli.command else { panic!() };
        assert_eq!((args.options.server.port, args.urls.len()), (Some(2), 2));
    }
}
