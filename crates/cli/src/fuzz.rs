//! Fuzz target: any configuration is either refused with a reason or becomes a valid plan.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::config_reader::read_sent;
use crate::options::{Options, Secret};
use crate::plan::{Plan, plan};

/// Reads a configuration as TOML and as JSON.
pub fn config(input: &[u8]) {
    for content_type in ["application/toml", "application/json"] {
        match read_sent(content_type, input) {
            Ok(put) => options_are_planned_or_refused(without_files(put.options)),
            Err(why) => assert!(!format!("{why:#}").trim().is_empty()),
        }
    }
}

/// Options that name files are cleared: their content is not part of the input, and some paths never end.
fn without_files(mut options: Options) -> Options {
    options.of_type::<PathBuf>().for_each(|(_, file)| *file = None);
    options
}

fn options_are_planned_or_refused(options: Options) {
    let secrets = secrets(&options);
    let hides = |text: &str| secrets.iter().all(|secret| !text.contains(secret.as_str()));
    match plan(options) {
        Ok(plan) => {
            times_can_be_added_up(&plan);
            assert!(hides(&what_is_in_force_can_be_put_again(&plan)), "a secret is shown");
        }
        Err(why) => {
            let why = format!("{why:#}");
            assert!(!why.trim().is_empty() && hides(&why), "{why}");
        }
    }
}

/// Secrets long enough not to appear in the output by chance, and not repeated in a public option.
fn secrets(options: &Options) -> Vec<String> {
    let open = serde_json::to_string(options).expect("options can be written");
    let revealed = options.set().filter_map(|(_, _, value)| value.downcast_ref().map(Secret::reveal));
    let is_one = |secret: &&str| secret.starts_with("secret-") && !open.contains(*secret);
    revealed.filter(is_one).map(str::to_owned).collect()
}

/// Durations must be valid for deadlines, where a panic would lose a request.
fn times_can_be_added_up(plan: &Plan) {
    let times = &plan.gateway.timeouts;
    let probes = [plan.probe.health_interval, plan.probe.load_interval, plan.probe.timeout];
    let others = [
        plan.process.drain_timeout,
        plan.process.eviction_interval,
        plan.sources.dns_refresh,
        plan.gateway.admission.wait_max,
        plan.collector.as_ref().map_or(Duration::ZERO, |collector| collector.timeout),
    ];
    let requests = [
        times.head,
        times.body,
        times.connect,
        times.first_byte,
        times.idle,
        times.total.unwrap_or_default(),
    ];
    let all: Vec<Duration> = probes.into_iter().chain(others).chain(requests).collect();
    let now = Instant::now();
    assert!(all.iter().all(|time| now.checked_add(time.saturating_mul(2)).is_some()), "{all:?}");
}

/// The output of `GET /config` reads back as the same configuration.
fn what_is_in_force_can_be_put_again(plan: &Plan) -> String {
    let shown = serde_json::to_string(&plan.options).expect("options can be written");
    let again = read_sent("application/json", shown.as_bytes()).expect("what is shown can be put").options;
    let again = crate::plan::plan(again).unwrap_or_else(|why| panic!("{why:#}: {shown}"));
    assert_eq!(serde_json::to_string(&again.options).expect("they still can"), shown);
    shown
}

#[cfg(test)]
mod tests {
    #[test]
    fn configurations_are_plans_or_refused_with_a_reason() {
        warmroute_fuzz::try_out("config", super::config);
    }
}
