//! Parses the command line, and keeps where each option was written, so that errors name what the user wrote.
//!
//! The help of an option ends with its default, which is that of the part's setting.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use http::Uri;
use warmroute_types::{BadQuantity, form_of, redact_values};

use crate::args::Cli;
use crate::options::quantity::Expected;
use crate::options::{OnOff, Options, Written, is_service_link};

/// The subcommands that take the options of `serve`.
const WITH_OPTIONS: [&str; 3] = ["serve", "check", "doctor"];

/// The command, with defaults in the help of its options.
pub fn command() -> Command {
    let defaults = Options::shown_defaults();
    mut_options(Cli::command(), |arg| allow_negative(show_default(arg, &defaults)))
}

/// Takes `-1` for a value, which the option's parser then explains, and not for an unknown flag.
fn allow_negative(arg: Arg) -> Arg {
    let has_value =
        arg.get_long().is_some() && arg.get_action().takes_values() && !arg.is_require_equals_set();
    if has_value { arg.allow_negative_numbers(true) } else { arg }
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
    let matches = matches.map_err(|error| {
        let form = form_of_value(&error, &command, &args);
        replace_parser_message(name_variable(error, &command, &args), form)
    })?;
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
    let Some(flag) = flag_of(&error) else { return error };
    let mut arguments = command.get_subcommands().flat_map(Command::get_arguments);
    let variable = arguments.find(|arg| arg.get_long() == Some(flag) && arg.get_env().is_some());
    let variable = variable.filter(|arg| !is_flag_in(arg, args));
    let variable = variable.and_then(|arg| arg.get_env()).filter(|name| std::env::var_os(name).is_some());
    if let Some(name) = variable.map(|name| name.to_string_lossy().into_owned()) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
    error
}

/// The name of the flag in an error about a value.
fn flag_of(error: &clap::Error) -> Option<&str> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    shown.strip_prefix("--")?.split([' ', '[', '=']).next()
}

/// What the value of the flag in an error looks like, if its type is one of the standard library.
fn form_of_value(error: &clap::Error, command: &Command, args: &[OsString]) -> Option<&'static str> {
    let flag = flag_of(error)?;
    let given = args.iter().filter_map(|arg| arg.to_str());
    let given = given.fold(command, |command, word| command.find_subcommand(word).unwrap_or(command));
    let arg = given.get_arguments().find(|arg| arg.get_long() == Some(flag))?;
    let parsed = arg.get_value_parser().type_id();
    let types = [
        (TypeId::of::<u8>(), "u8"),
        (TypeId::of::<u16>(), "u16"),
        (TypeId::of::<u32>(), "u32"),
        (TypeId::of::<u64>(), "u64"),
        (TypeId::of::<usize>(), "usize"),
        (TypeId::of::<f64>(), "f64"),
        (TypeId::of::<IpAddr>(), "IpAddr"),
        (TypeId::of::<SocketAddr>(), "SocketAddr"),
        (TypeId::of::<Uri>(), "Uri"),
    ];
    types.iter().find(|(id, _)| parsed == *id).and_then(|(_, name)| form_of(name))
}

/// The error with words in place of what the parsers of the standard library say. Parsers of our own explain themselves.
fn replace_parser_message(error: clap::Error, form: Option<&str>) -> clap::Error {
    let Some(source) = error.source() else { return error };
    if source.is::<BadQuantity>() || source.is::<Expected>() {
        return error;
    }
    let said = source.to_string();
    let words = match form {
        Some(form) => format!("expected {form}"),
        None => redact_values(&said),
    };
    if words == said {
        return error;
    }
    let shown = error.render().to_string();
    let shown = shown.strip_prefix("error: ").unwrap_or(&shown).replacen(&said, &words, 1);
    clap::Error::raw(error.kind(), shown)
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
    fn a_wrong_value_is_told_what_was_expected() {
        for (line, expected) in [
            ("serve --port many", "'many' for '--port <PORT>': expected a whole number from 0 to 65535\n"),
            ("serve --port 70000", "'70000' for '--port <PORT>': expected a whole number from 0 to 65535\n"),
            ("serve --port -1", "'-1' for '--port <PORT>': expected a whole number from 0 to 65535\n"),
            ("serve --idle-timeout-secs -5", "'-5' for '--idle-timeout-secs <TIME>': expected a time"),
            ("serve --threads 1.5", "'--threads <THREADS>': expected a whole number from 0 on\n"),
            ("serve --retry-max-retries 99999999999", "expected a whole number from 0 to 4294967295\n"),
            ("serve --cache-threshold half", "'--cache-threshold <SHARE>': expected a number\n"),
            ("serve --picker-host a.b", "expected an IP address, such as 0.0.0.0 or ::1\n"),
            ("serve --mesh-listen 1.2.3.4", "expected an IP address with a port, such as 0.0.0.0:7946"),
            ("serve --max-payload-size 16M", "ambiguous unit: write MB"),
            (
                "serve --max-payload-size big",
                "expected a size: a number, or a number with a unit such as 16MB",
            ),
            (
                "serve --idle-timeout-secs soon",
                "expected a time: a number of seconds, or a number with a unit",
            ),
            ("serve --queue-size 99999999999999999999", "expected a whole number"),
            ("serve --decision-headers=maybe", "expected on or off"),
            ("lab drive --url :// --workload b2b", "expected a URL, such as http://127.0.0.1:8080\n"),
            ("engine --host nowhere", "expected an IP address"),
            ("engine --speed fast", "'--speed <SPEED>': expected a number\n"),
            ("engine --ranks 0", "expected a whole number from 1 to 65535\n"),
            ("demo --engines 65", "'65' for '--engines <ENGINES>': expected a whole number from 1 to 64\n"),
            ("demo --engines x", "expected a whole number from 1 to 64\n"),
            ("explain --last 0", "expected a whole number from 1 to 65535\n"),
            ("lab simulate --workload b2b --concurrency 0", "expected a whole number from 1 to 4294967295\n"),
            (
                "lab drive --url http://a --workload b2b --token-bytes 1",
                "expected a whole number from 2 to 16\n",
            ),
            ("lab bounds --workload b2b --speed-percent x", "expected a whole number from 0 to 4294967295\n"),
            (
                "lab simulate --workload b2b --rate-scale x",
                "'--rate-scale <RATE_SCALE>': expected a number\n",
            ),
        ] {
            let args = ["x"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let error = parse_from(args).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with("error: invalid value '"), "{line}: {error}");
            assert!(error.contains(expected), "{line}: {error}");
            assert!(error.contains("try '--help'"), "{line}: {error}");
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
