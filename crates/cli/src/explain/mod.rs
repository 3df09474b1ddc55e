//! `warmroute explain`: where a request would go now, and why; or where the last ones went.
//!
//! The gateway is asked over its admin listener. It neither sends nor books what it is asked about, so this may be done to a
//! gateway in production.

mod question;
mod table;
mod told;

use std::io::Read;
use std::path::Path;

use anyhow::Context;

use crate::args::ExplainArgs;
use question::Question;
use told::Told;

/// Asks, and prints the answer.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let question = match &args.request {
        Some(file) => Question::what_of(&args.path, read(file)?),
        None => Question::last(args.last),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(question.put_to(&args.admin, args.admin_token.as_ref()))?;
    if args.json {
        println!("{}", answer.trim_end());
        return Ok(());
    }
    let unreadable = || format!("{} does not answer as a warmroute admin listener does", args.admin);
    print!(
        "{}",
        match args.request {
            Some(_) => table::preview(&serde_json::from_str::<Told>(&answer).with_context(unreadable)?),
            None => table::last(&serde_json::from_str::<Vec<Told>>(&answer).with_context(unreadable)?),
        }
    );
    Ok(())
}

/// A file's bytes; `-` is standard input.
fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}
