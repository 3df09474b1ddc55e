//! Output of results.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use warmroute_report::{Report, html, markdown, table};
use warmroute_sim::{Balancer, Record, View};

use super::args::{OutputArgs, SceneArgs, TrafficArgs};

/// Writes a report in every requested format. The table is printed unless another format goes to stdout.
pub fn write(args: &OutputArgs, report: &Report, json: &Value) -> anyhow::Result<()> {
    let files = [&args.html, &args.markdown, &args.json].into_iter().flatten();
    anyhow::ensure!(
        files.filter(|file| is_stdout(file)).count() < 2,
        "only one of --html, --markdown and --json can be -"
    );
    let html = args.html.as_deref().map(|file| write_text(file, &html(report))).transpose()?;
    let markdown = args.markdown.as_deref().map(|file| write_text(file, &markdown(report))).transpose()?;
    let json = write_json(args.json.as_deref(), json)?;
    let is_used = [html, markdown, Some(json)].contains(&Some(Printed::All));
    if is_used { Ok(()) } else { print(&table(report)) }
}

/// Whether stdout is in use.
#[derive(PartialEq, Eq)]
pub enum Printed {
    Nothing,
    /// Formats that stdout was requested for.
    All,
}

fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// Writes JSON if requested.
pub fn write_json(file: Option<&Path>, json: &Value) -> anyhow::Result<Printed> {
    file.map_or(Ok(Printed::Nothing), |file| write_text(file, &format!("{json}\n")))
}

/// Writes a file; `-` is stdout.
fn write_text(file: &Path, text: &str) -> anyhow::Result<Printed> {
    if is_stdout(file) {
        return print(text).map(|()| Printed::All);
    }
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    Ok(Printed::Nothing)
}

/// Writes one row per request.
pub fn write_rows(file: &Path, runs: &[(String, u64, Vec<Record>)]) -> anyhow::Result<()> {
    let out = File::create(file).with_context(|| format!("writing {}", file.display()))?;
    let mut out = BufWriter::new(out);
    writeln!(
        out,
        "policy,seed,asked_us,ttft_us,e2e_us,queued_us,worker,turn,prompt_tokens,output_tokens,cached_tokens,predicted_tokens,\
         restorable_tokens,stale_tokens,missed_tokens"
    )?;
    for (policy, seed, records) in runs {
        for r in records {
            let predicted = r.predicted_tokens.map_or(String::new(), |tokens| tokens.to_string());
            writeln!(
                out,
                "{policy},{seed},{},{},{},{},{},{},{},{},{},{predicted},{},{},{}",
                r.asked_us,
                r.ttft_us,
                r.e2e_us,
                r.queued_us,
                r.worker,
                r.turn,
                r.prompt_tokens,
                r.output_tokens,
                r.cached_tokens,
                r.restorable_tokens,
                r.stale_tokens,
                r.missed_tokens
            )?;
        }
    }
    Ok(out.flush()?)
}

/// Prints. A closed pipe is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    match write!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// The traffic's name: the workload's, or the trace file's.
pub fn traffic(args: &TrafficArgs) -> String {
    let file = args.trace.as_deref().and_then(Path::file_name);
    let file = file.map(|name| name.to_string_lossy().into_owned());
    args.workload.map(|workload| workload.as_str().to_owned()).or(file).unwrap_or_default()
}

/// The set-up in words.
pub fn setup(args: &SceneArgs, seeds: u64) -> Vec<(String, String)> {
    let asked = &args.traffic;
    let kv_tokens = args.kv_tokens.map_or("the profile's".to_owned(), |tokens| tokens.to_string());
    let places =
        args.max_num_seqs.map_or(String::new(), |places| format!(", {places} requests at once at most"));
    let workers = match &args.worker_group[..] {
        [] => args.workers.to_string(),
        groups => groups.join(" + "),
    };
    [
        ("traffic", paced_traffic(args)),
        ("workers", workers),
        (
            "engine",
            format!(
                "{} at {} % speed, KV tokens: {kv_tokens}, blocks of {}{places}",
                args.profile, args.speed_percent, args.block_size
            ),
        ),
        ("memory behind the GPU", behind(args)),
        ("view", view(args)),
        ("routers", routers(args)),
        ("made by", version()),
        ("network", format!("{} ms each way", args.network_ms)),
        (
            "seeds",
            match seeds {
                1 => asked.seed.to_string(),
                _ => format!("{} to {}", asked.seed, asked.seed + seeds - 1),
            },
        ),
    ]
    .map(|(word, value)| (word.to_owned(), value))
    .to_vec()
}

/// The traffic with its rate, or with the requests in flight of a closed loop.
fn paced_traffic(args: &SceneArgs) -> String {
    let asked = &args.traffic;
    let copies = if asked.copies == 1 { String::new() } else { format!(", {} copies", asked.copies) };
    match args.concurrency {
        Some(clients) => format!("{} with {clients} requests in flight{copies}", traffic(asked)),
        None => format!("{} at {} times its rate{copies}", traffic(asked), asked.rate_scale),
    }
}

/// The number of routers and how they share state.
fn routers(args: &SceneArgs) -> String {
    let met = if args.balancer == Balancer::Session { ", one for each session" } else { "" };
    match args.share_delay_ms {
        _ if args.routers == 1 => "1".to_owned(),
        None => format!("{} that know nothing of each other{met}", args.routers),
        Some(delay_ms) => format!("{} that tell each other within {delay_ms} ms{met}", args.routers),
    }
}

/// The version that made the report, with its commit if the build knows it. Figures may differ between versions.
fn version() -> String {
    let version = concat!("warmroute ", env!("CARGO_PKG_VERSION"));
    option_env!("WARMROUTE_COMMIT").map_or(version.to_owned(), |commit| format!("{version}, commit {commit}"))
}

/// How caches are known, in words.
fn view(args: &SceneArgs) -> String {
    let path = format!(
        "{}; lag {} ms, refresh {} s, loss {}",
        args.view, args.event_lag_ms, args.refresh_s, args.event_loss
    );
    match (args.view, args.event_replay) {
        (View::Presumed, _) => args.view.to_string(),
        (View::Exact, _) => path,
        (View::Reported, 0) => format!("{path}, no replays"),
        (View::Reported, batches) => format!("{path}, replays of {batches} batches"),
    }
}

/// Host memory and pool in words.
fn behind(args: &SceneArgs) -> String {
    let host = format!("host {} tokens at {} GB/s", args.host_kv_tokens, args.host_gbps);
    let (tokens, gbps, ms) = (args.pool_kv_tokens, args.pool_gbps, args.pool_latency_ms);
    let pool = format!("pool {tokens} tokens at {gbps} GB/s after {ms} ms");
    let given = [(args.host_kv_tokens, host), (tokens, pool)].into_iter().filter(|(tokens, _)| *tokens > 0);
    let words: Vec<String> = given.map(|(_, words)| words).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// The command line, to run again. Traces are named without their folder.
pub fn command() -> String {
    let words = std::env::args().enumerate().map(|(index, word)| {
        let path = Path::new(&word);
        let is_path = index == 0 || path.exists() && word.contains('/');
        let name = path.file_name().filter(|_| is_path).map(|name| name.to_string_lossy().into_owned());
        let word = name.unwrap_or(word);
        if word.contains([' ', '*', '$']) { format!("'{word}'") } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The results of one point, in the format that other programs read.
pub fn results(report: &Report) -> Value {
    let point = report.points.first();
    json!({
        "command": report.command,
        "setup": setup_object(report),
        "results": point.map(|point| &point.summaries),
        "bounds": point.map(|point| &point.bounds),
    })
}

/// The set-up as an object.
pub fn setup_object(report: &Report) -> Value {
    report.setup.iter().map(|(word, value)| (word.clone(), json!(value))).collect()
}
