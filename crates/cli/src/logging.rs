//! Log lines on stderr. Stdout is reserved for output that programs read.

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use warmroute_types::OptionValue;

use crate::log_lines::LogLines;
use crate::log_thread::LogThread;

/// Which lines are logged, and how they look.
pub struct LogConfig {
    /// A level, or a filter such as `warmroute_gateway=debug`.
    pub level: String,
    /// The form of a line.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { level: "info".to_owned(), format: LogFormat::Text }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl OptionValue for LogFormat {
    const VALUES: &'static [(LogFormat, &'static str, &'static str)] =
        &[(LogFormat::Text, "text", "For people"), (LogFormat::Json, "json", "One JSON object per line")];
}

impl LogConfig {
    /// Parses the level. A single word must be a level: the filter would take it for a module and log nothing.
    pub fn filter(&self) -> anyhow::Result<EnvFilter> {
        let level = self.level.as_str();
        let is_level = ["off", "error", "warn", "info", "debug", "trace"].contains(&level);
        anyhow::ensure!(
            is_level || level.contains('='),
            "log-level `{level}`: expected error, warn, info, debug or trace"
        );
        EnvFilter::try_new(level).with_context(|| format!("log-level `{level}`"))
    }
}

/// Starts logging.
pub fn start(config: &LogConfig) -> anyhow::Result<()> {
    let filter = config.filter()?;
    let thread = LogThread::of_process().context("cannot start the thread that writes the log")?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogLines(thread))
        .log_internal_errors(false)
        .with_ansi(false);
    match config.format {
        LogFormat::Json => lines.json().init(),
        LogFormat::Text => lines.init(),
    }
    Ok(())
}
