//! `warmroute lab bounds`: computes bounds that no router can beat.

use warmroute_sim::{EvictionEvents, History, View};

use super::args::{BoundsArgs, EVENT_REPLAY, SceneArgs};
use super::output::{self, Printed};
use super::scene::Scene;

/// Computes and prints the bounds.
pub fn run(args: &BoundsArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.scene.concurrency.is_none(),
        "bounds need the traffic's arrival times; leave out --concurrency"
    );
    refuse_unused(&args.scene)?;
    let scene = Scene::new(&args.scene, 1)?;
    let bounds = warmroute_sim::bounds(&scene.config, scene.sessions(args.scene.traffic.seed))?;
    anyhow::ensure!(bounds.requests > 0, "every request is too long for any engine: raise --kv-tokens");
    let printed = output::write_json(args.json.as_deref(), &serde_json::json!({"bounds": bounds}))?;
    if printed == Printed::All {
        return Ok(());
    }
    let spread = |name: &str, spread: &warmroute_sim::Spread| {
        format!(
            "{name:<34} mean {:>9.1} ms   p50 {:>9.1}   p95 {:>9.1}   p99 {:>9.1}\n",
            spread.mean, spread.p50, spread.p95, spread.p99
        )
    };
    let share =
        |name: &str, share: f64| format!("{name:<34} {:>6.2} % of prompt tokens found\n", 100.0 * share);
    let mut text = format!("{} requests\n", bounds.requests);
    text += &share("infinite cache", bounds.infinite_cache_token_hit_ratio);
    text += &share("pooled Belady", bounds.pooled_belady_token_hit_ratio);
    text += &share("pooled LRU", bounds.pooled_lru_token_hit_ratio);
    text += &spread("zero-queue floor, TTFT", &bounds.zero_queue_ttft_ms);
    text += &spread("zero-queue floor, end to end", &bounds.zero_queue_e2e_ms);
    text += &spread("central queue (reference), TTFT", &bounds.central_queue_ttft_ms);
    if bounds.is_closed_loop {
        text += "note: clients wait for answers, each router's for another while: pooled Belady and LRU are about right, no bounds\n";
    }
    scene.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    output::print(&text)
}

/// Refuses flags about routers: bounds follow from the traffic and the engines.
fn refuse_unused(scene: &SceneArgs) -> anyhow::Result<()> {
    for (flag, is_given) in [
        ("--view", scene.view != View::Presumed),
        ("--event-lag-ms", scene.event_lag_ms > 0.0),
        ("--refresh-s", scene.refresh_s > 0.0),
        ("--event-loss", scene.event_loss > 0.0),
        ("--event-replay", scene.event_replay != EVENT_REPLAY),
        ("--evictions", scene.evictions != EvictionEvents::Published),
        ("--routers", scene.routers != 1),
        ("--share-delay-ms", scene.share_delay_ms.is_some()),
        ("--history", scene.history != History::Fresh),
        ("--incident", !scene.incident.is_empty()),
    ] {
        anyhow::ensure!(
            !is_given,
            "{flag} means nothing for bounds, which hold for every router: leave it out"
        );
    }
    Ok(())
}
