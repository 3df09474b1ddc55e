//! Log lines, on stderr: stdout belongs to what programs read.

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::options::Options;
use crate::options::groups::LogFormat;

/// Starts logging as the options say.
pub fn start(options: &Options) -> anyhow::Result<()> {
    let defaults = Options::defaults().server;
    let server = options.server.clone().over(defaults);
    let level = server.log_level.unwrap_or_default();
    let filter = EnvFilter::try_new(&level).with_context(|| format!("log-level `{level}`"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match server.log_format {
        Some(LogFormat::Json) => lines.json().init(),
        _ => lines.init(),
    }
    Ok(())
}
