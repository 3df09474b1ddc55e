//! `warmroute serve`.

use warmroute_operate::Fingerprints;

use crate::args::ServeArgs;
use crate::config_reader::{Origin, named_files};
use crate::given::{Given, refuse_files};
use crate::logging;
use crate::options::Written;
use crate::runtime::runtime;

/// Runs the gateway until SIGTERM, SIGINT or a handover to another process. SIGHUP reloads its files.
pub fn run(args: ServeArgs, written: &Written) -> anyhow::Result<()> {
    refuse_files(&args.urls)?;
    let fingerprints = Fingerprints::of(args.config.as_deref());
    let given = Given::read(args.options, args.urls, args.config, written)?;
    let fingerprints = fingerprints.and_files(&named_files(&given.options));
    logging::start(&given.options).map_err(|error| given.explain(&error))?;
    let threads = given.options.server.threads.unwrap_or(0);
    let plan = given.plan()?;
    given.check_start(&plan)?;
    given.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let origin = Origin { flags: given.flags, file: given.file };
    runtime(threads)?.block_on(warmroute_operate::serve(plan, origin, fingerprints))
}
