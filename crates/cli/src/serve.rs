//! `warmroute serve`.

use std::time::Duration;

use warmroute_operate::{Fingerprints, check_paths};

use crate::args::ServeArgs;
use crate::config_reader::{Origin, named_files};
use crate::logging;
use crate::options::{check_environment, read_file};
use crate::plan::plan;
use crate::runtime::runtime;

/// How long blocking work may delay the end of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

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
    let runtime = runtime(threads)?;
    let ended = runtime.block_on(warmroute_operate::serve(plan, origin, fingerprints));
    // A thread may hang in a read of a pipe or of a dead network file system. The process ends without it.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}
