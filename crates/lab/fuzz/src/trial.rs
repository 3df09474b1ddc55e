//! Trial of a fuzz target.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Dice, Mutator};

/// Mutated inputs per plain test; always the same ones.
const ROUNDS: usize = 3_000;

/// Environment variable: runs for this many seconds instead, with new inputs each time.
const SECS: &str = "WARMROUTE_FUZZ_SECS";

fn folder(kind: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz").join(kind).join(name)
}

/// Corpus of a target, sorted by name.
///
/// # Panics
/// If the corpus is empty, because the target would be tested with next to nothing.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = folder("corpus", name);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    let read =
        |path: &PathBuf| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    paths.iter().map(read).collect()
}

/// Runs a target on its corpus and on mutations of it.
///
/// # Panics
/// If the target panics. The input is saved, and its file named.
pub fn try_out(name: &str, target: fn(&[u8])) {
    let seeds = corpus(name);
    seeds.iter().for_each(|input| attempt(name, target, input));
    let secs = std::env::var(SECS).ok().and_then(|secs| secs.parse().ok()).map(Duration::from_secs);
    let seed = secs.map_or(0x5eed, |_| RandomState::new().hash_one(0_u8));
    let mut mutator = Mutator::new(seeds, Dice::new(seed));
    let (start, mut rounds) = (Instant::now(), 0);
    while secs.map_or(rounds < ROUNDS, |secs| start.elapsed() < secs) {
        attempt(name, target, &mutator.mutated());
        rounds += 1;
    }
    eprintln!("{name}: {rounds} inputs in {:.1} s", start.elapsed().as_secs_f64());
}

fn attempt(name: &str, target: fn(&[u8]), input: &[u8]) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) else { return };
    match keep(name, input) {
        Ok(file) => eprintln!("{name}: the input is in {}", file.display()),
        Err(error) => eprintln!("{name}: the input could not be kept ({error}): {input:?}"),
    }
    resume_unwind(panic);
}

fn keep(name: &str, input: &[u8]) -> std::io::Result<PathBuf> {
    let folder = folder("artifacts", name);
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("{:016x}", Dice::of(input).roll()));
    std::fs::write(&file, input)?;
    Ok(file)
}
