//! `warmroute serve`.

use std::time::Duration;

use warmroute_operate::Fingerprints;

use crate::args::ServeArgs;
use crate::config_reader::{Origin, named_files};
use crate::given::{Given, refuse_files};
use crate::large_blocks::return_large_blocks;
use crate::logging;
use crate::options::Written;
use crate::plan::Plan;
use crate::runtime::runtime;

/// How long the last lines of logs and traces, and threads that hang, may delay the end of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the gateway until SIGTERM, SIGINT or a handover to another process. SIGHUP reloads its files.
pub fn run(args: ServeArgs, written: &Written) -> anyhow::Result<()> {
    return_large_blocks();
    refuse_files(&args.urls)?;
    let fingerprints = Fingerprints::of(args.config.as_deref());
    let given = Given::read(args.options, args.urls, args.config, written)?;
    let fingerprints = fingerprints.and_files(&named_files(&given.options));
    let settings = given.options.settings();
    settings.and_then(|settings| logging::start(&settings.log)).map_err(|error| given.explain(&error))?;
    let plan = given.plan()?;
    given.check_start(&plan)?;
    given.start_warnings(&plan).iter().for_each(|warning| tracing::warn!("{warning}"));
    warn_of_missing_models(&plan);
    let origin = Origin { flags: given.flags.clone(), file: given.file.clone() };
    let runtime = runtime(plan.process.threads)?;
    let served = runtime.block_on(warmroute_operate::serve(plan, origin, fingerprints));
    // Lines of the access log and of the trace are still being written. A thread may hang in a write, in a read of a pipe, or on
    // a dead network file system: the process ends without it.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    served.map_err(|error| given.explain(&error))
}

/// Warns of a `model-path` without tokenizer files. A thread of its own reads, because a network file system may hang.
fn warn_of_missing_models(plan: &Plan) {
    let Some(paths) = plan.precise.as_ref().map(|precise| precise.paths.clone()) else { return };
    let warn = move || {
        for problem in paths.missing() {
            tracing::warn!("{problem}; until it is there, the engines' own paths are tried");
        }
    };
    // Without a thread nothing is lost but the warning.
    drop(std::thread::Builder::new().name("model-path".to_owned()).spawn(warn));
}
