//! `warmroute explain`: shows where a request would go now and why, where the last requests went, or what breaks the
//! prefixes of prompts.
//!
//! The gateway answers on its admin listener. It neither sends nor books the request, so this is safe in production.

pub mod decision;
pub mod prefixes;
pub mod query;
pub mod table;

use std::io::Read;
use std::path::Path;

use anyhow::Context;

use crate::args::ExplainArgs;
use crate::output::{print, print_line};
use crate::text_table::terminal_width;
use decision::Decision;
use prefixes::PrefixPage;
use query::ExplainQuery;

/// Columns of a table that goes to a file or another program.
const PIPE_WIDTH: usize = 120;

/// Queries the gateway and prints the answer.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let query = match &args.request {
        Some(file) => ExplainQuery::preview(&args.path, read(file)?),
        None if args.prefixes => ExplainQuery::prefixes(),
        None => ExplainQuery::last(args.last),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(query.send(&args.gateway))?;
    if args.json {
        return print_line(answer.trim_end());
    }
    let unreadable = || format!("{} does not answer as a warmroute admin listener does", args.gateway.admin);
    let width = terminal_width().unwrap_or(PIPE_WIDTH);
    print(match args.request {
        Some(_) => {
            table::preview(&serde_json::from_str::<Decision>(&answer).with_context(unreadable)?, width)
        }
        None if args.prefixes => serde_json::from_str::<PrefixPage>(&answer).with_context(unreadable)?.text(),
        None => table::last(&serde_json::from_str::<Vec<Decision>>(&answer).with_context(unreadable)?, width),
    })
}

/// Reads a file; `-` is standard input.
fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}
