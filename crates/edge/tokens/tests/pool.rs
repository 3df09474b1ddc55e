//! Tokenizing on a pool: the same ids, a bounded queue, and no work for callers that left.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::path::Path;
use std::sync::Arc;

use warmroute_prompt::{Around, Reading};
use warmroute_tokens::{Busy, Config, ConfigError, Encoder, EncoderPool, HubCache, Model};

fn encoder() -> Arc<Encoder> {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny");
    let model = Model::find(tiny.to_str().unwrap(), &HubCache::at("/nowhere")).unwrap();
    Arc::new(model.encoder(Reading::AsFiled).unwrap())
}

/// A text that takes the tokenizer far longer than a test takes to queue a few prompts.
fn long_text() -> String {
    "The quick brown fox jumps over the lazy dog. ".repeat(20_000)
}

#[tokio::test]
async fn a_pool_gives_the_tokenizer_s_ids() {
    let encoder = encoder();
    let pool = EncoderPool::new(encoder.clone(), Config { workers: 3, queue: 100 }).unwrap();
    let texts: Vec<String> = (0..50).map(|n| format!("Request {n} asks about caching")).collect();
    let encodings: Vec<_> =
        texts.iter().map(|text| pool.encode(text.clone(), Around::SpecialTokens).unwrap()).collect();
    for (text, encoding) in texts.iter().zip(encodings) {
        let ids = encoding.await.unwrap();
        assert_eq!(ids, encoder.encode(text, Around::SpecialTokens).unwrap());
        assert_eq!(
            ids[1..],
            encoder.encode(text, Around::Nothing).unwrap(),
            "the first is the token for a beginning"
        );
    }
    assert_eq!(pool.stats().encoded, 50);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let pool = EncoderPool::new(encoder(), Config { workers: 1, queue: 1 }).unwrap();
    let text = long_text();
    let taken: Vec<_> = (0..10).map(|_| pool.encode(text.clone(), Around::Nothing)).collect();
    let refused = taken.iter().filter(|taken| matches!(taken, Err(Busy))).count();
    assert!((8..=9).contains(&refused), "one at work, one in the queue: {refused} refused");
    assert_eq!(pool.stats().refused as usize, refused);
}

#[tokio::test]
async fn abandoned_prompts_are_not_tokenized() {
    let pool = EncoderPool::new(encoder(), Config { workers: 1, queue: 8 }).unwrap();
    let long = pool.encode(long_text(), Around::Nothing).unwrap();
    drop(pool.encode(long_text(), Around::Nothing).unwrap());
    let last = pool.encode("fox".to_owned(), Around::Nothing).unwrap();
    assert!(long.await.unwrap().len() > 1_000);
    assert!(!last.await.unwrap().is_empty());
    assert_eq!((pool.stats().abandoned, pool.stats().encoded), (1, 2));
}

#[test]
fn an_invalid_pool_is_refused() {
    let config = |workers, queue| Config { workers, queue }.validate();
    assert_eq!(config(0, 1), Err(ConfigError::NoWorkers));
    assert_eq!(config(1, 0), Err(ConfigError::NoQueue));
    assert_eq!(Config::default().validate(), Ok(()));
}
