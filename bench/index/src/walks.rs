//! Lookups over 100 KB of bytes: known, in spans of usual and of few bytes, and unknown where many lengths must be tried.

use warmroute_index::{HolderId, NamedSpan, Overlaps, Parent, Prompt, Span};

use crate::clock::timed;
use crate::ours::Ours;
use crate::spread::Spread;
use crate::stream::Random;

const PROMPT_BYTES: usize = 100_000;
const LOOKUPS: usize = 400;

pub fn run(rounds: usize) {
    println!("\n## A lookup over 100 KB of bytes, us\n");
    println!("| | us |");
    println!("|---|---|");
    line("known, spans of 64 bytes", rounds, &|| known(64, 1));
    line("known, spans of 16 bytes", rounds, &|| known(16, 1));
    line("known, spans of 64 bytes, on 512 workers", rounds, &|| known(64, 512));
    line("unknown, one first length", rounds, &|| unknown(1));
    line("unknown, 300 first lengths", rounds, &|| unknown(300));
    line("unknown, 1,000 first lengths", rounds, &|| unknown(1_000));
}

fn line(label: &str, rounds: usize, measure: &dyn Fn() -> f64) {
    println!("| {label} | {} |", Spread::of((0..rounds).map(|_| measure() / 1_000.0)));
}

fn text(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..PROMPT_BYTES).map(|_| b'a' + random.below(26) as u8).collect()
}

/// The spans of a text in pieces of one length.
fn spans(ours: &Ours, text: &[u8], length: usize, name: u64) -> Vec<NamedSpan> {
    let span = |(at, piece): (usize, &[u8])| {
        let digest = ours.index.digester().digest(piece);
        let span = Span { digest, bytes: piece.len() as u32, tokens: 16 };
        NamedSpan { name: Random(name << 20 | at as u64).next(), span }
    };
    text.chunks_exact(length).enumerate().map(span).collect()
}

fn known(length: usize, workers: u16) -> f64 {
    let (ours, text) = (Ours::new(), text(1));
    for worker in 0..workers {
        let spans = spans(&ours, &text, length, 1);
        ours.index
            .store(HolderId(worker), Parent::Root(ours.root), &spans)
            .expect("a holder id within the limit");
    }
    lookups(&ours, &text, text.len() / length * length)
}

fn unknown(lengths: usize) -> f64 {
    let ours = Ours::new();
    for length in 0..lengths {
        let text = text(length as u64 + 10);
        let spans = spans(&ours, &text[..40 + length], 40 + length, length as u64);
        ours.index.store(HolderId(0), Parent::Root(ours.root), &spans).expect("a holder id within the limit");
    }
    lookups(&ours, &text(1), 0)
}

/// CPU nanoseconds of one lookup, which must find so many bytes.
fn lookups(ours: &Ours, text: &[u8], held: usize) -> f64 {
    let mut out = Overlaps::new();
    let ((), ns) = timed(|| {
        for _ in 0..LOOKUPS {
            ours.index.lookup(ours.root, Prompt::Bytes(text), &mut out);
            assert_eq!(out.of(HolderId(0)).bytes as usize, held);
        }
    });
    ns as f64 / LOOKUPS as f64
}
