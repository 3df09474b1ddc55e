//! `warmroute engine`: one simulated engine as a process.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use warmroute_operate::{StopSignals, listen_error};
use warmroute_replica::{Config, EventsConfig, PublisherMode, Tokenizer, serve, write_model};

use crate::args::EngineArgs;
use crate::lab::host_tier;
use crate::options::quantity::Millis;
use crate::output::print_line;
use crate::runtime::runtime;

/// How long answers may continue after SIGTERM.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or a fault that kills the engine.
pub fn run(args: EngineArgs) -> anyhow::Result<()> {
    let config = config(&args)?;
    if let Some(folder) = &args.write_model {
        write_model(folder).with_context(|| format!("cannot write the model into {}", folder.display()))?;
    }
    let address = SocketAddr::from((args.host, args.port));
    let listener = TcpListener::bind(address).map_err(|error| listen_error(address, "--port", error))?;
    runtime(0)?.block_on(async {
        let mut stop = StopSignals::listen()?;
        let replica = serve(config, listener).await?;
        print_line(json!({"listening": replica.url()}))?;
        _ = writeln!(std::io::stderr(), "a simulated engine: the timing is an H200's, the text is filler");
        tokio::select! {
            () = replica.died() => anyhow::bail!("died, as it was told to by POST /fault"),
            () = stop.received() => {}
        }
        _ = tokio::time::timeout(FINISH_WITHIN, replica.shutdown()).await;
        Ok(())
    })
}

fn config(args: &EngineArgs) -> anyhow::Result<Config> {
    let mut config = Config::for_profile(args.profile);
    config.engine.block_size = args.block_size;
    config.engine.kv_tokens = args.kv_tokens.unwrap_or(config.engine.kv_tokens);
    config.engine.sequences_max = args.max_num_seqs.unwrap_or(config.engine.sequences_max);
    config.engine.sliding_window = (args.sliding_window > 0).then_some(args.sliding_window);
    config.engine.recomputes_last_block = args.recompute_last_block;
    config.engine.host = host_tier(args.host_kv_tokens, args.host_gbps)?;
    config.model = args.model.clone().unwrap_or(config.model);
    config.adapters = args.adapters.clone();
    let Millis(adapter_load) = args.adapter_load_ms;
    config.adapter_load_ms = u64::try_from(adapter_load.as_millis()).unwrap_or(u64::MAX);
    config.adapter_slots = args.adapter_slots;
    config.speed = args.speed;
    config.ranks = args.ranks;
    config.usage_details = args.prompt_tokens_details;
    config.events = events(args);
    if config.events.is_some() || args.write_model.is_some() {
        config.tokenizer = Tokenizer::Pairs;
    }
    Ok(config)
}

fn events(args: &EngineArgs) -> Option<EventsConfig> {
    let events = EventsConfig::bind(args.events.clone()?, args.replay.clone());
    Some(EventsConfig {
        topic: args.events_topic.clone(),
        encoding: args.event_encoding,
        publisher: if args.events_connect { PublisherMode::Connect } else { PublisherMode::Bind },
        ..events
    })
}
