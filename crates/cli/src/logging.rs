//! Log lines on stderr. Stdout is reserved for output that programs read.

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::log_lines::LogLines;
use crate::log_thread::LogThread;
use crate::options::Options;
use crate::options::groups::LogFormat;

/// Parses a log level or filter. A single word must be a level: the filter would take it for a module and log nothing.
pub fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let is_level = ["off", "error", "warn", "info", "debug", "trace"].contains(&level);
    anyhow::ensure!(
        is_level || level.contains('='),
        "log-level `{level}`: expected error, warn, info, debug or trace"
    );
    EnvFilter::try_new(level).with_context(|| format!("log-level `{level}`"))
}

/// Starts logging.
pub fn start(options: &Options) -> anyhow::Result<()> {
    let defaults = Options::defaults().server;
    let server = options.server.clone().over(defaults);
    let filter = filter(&server.log_level.unwrap_or_default())?;
    let thread = LogThread::of_process().context("cannot start the thread that writes the log")?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogLines(thread))
        .log_internal_errors(false)
        .with_ansi(false);
    match server.log_format {
        Some(LogFormat::Json) => lines.json().init(),
        _ => lines.init(),
    }
    Ok(())
}
