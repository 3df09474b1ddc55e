//! `warmroute serve`.

use warmroute_operate::{Fingerprints, check_paths};

use crate::args::ServeArgs;
use crate::config_reader::{Origin, named_files};
use crate::logging;
use crate::options::{check_environment, read_file};
use crate::plan::plan;
use crate::runtime::runtime;

/// Runs the gateway until SIGTERM, SIGINT or a handover to another process. SIGHUP reloads its files.
pub fn run(args: Box<ServeArgs>) -> anyhow::Result<()> {
    check_environment()?;
    let fingerprints = Fingerprints::of(args.config.as_deref());
    let file = args.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
    let options = args.options.clone().over(file);
    let fingerprints = fingerprints.and_files(&named_files(&options));
    let origin = Origin { flags: args.options, file: args.config };
    logging::start(&options)?;
    let threads = options.server.threads.unwrap_or(0);
    let plan = plan(options)?;
    check_paths(&plan)?;
    runtime(threads)?.block_on(warmroute_operate::serve(plan, origin, fingerprints))
}
