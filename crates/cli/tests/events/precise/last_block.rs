//! Engines that compute the last cached block of each prompt again, as vLLM does with EAGLE and MTP drafts.

use super::{BLOCK, Cluster, conversation};

#[test]
fn an_engine_that_computes_the_last_block_again_is_learned_and_predicted_exactly() {
    let mut cluster = Cluster::new("model-last-block", 1, &["--recompute-last-block"], &[]);
    let mut asked = Vec::new();
    for number in 0..6 {
        for turns in [1, 3, 5] {
            asked.push(cluster.ask(&conversation(number, turns)));
            cluster.settle();
        }
    }
    let cached: Vec<_> = asked.iter().filter(|asked| asked.cached > 0).collect();
    let (first, later) = cached.split_at(4);
    for asked in first {
        assert_eq!(asked.predicted, asked.cached + BLOCK, "nothing tells it beforehand: {asked:?}");
    }
    assert!(later.len() >= 8, "{asked:?}");
    for asked in later {
        assert_eq!(asked.predicted, asked.cached, "{asked:?}");
    }
    let worker = &cluster.gateway.workers()[0];
    assert_eq!(worker["recomputes_last_block"], true, "{worker}");
    assert_eq!((&worker["trust"], &worker["view"]), (&1.0.into(), &"reported".into()), "{worker}");
}
