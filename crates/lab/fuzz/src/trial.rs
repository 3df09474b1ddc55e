//! Trial of a fuzz target.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Dice, Mutator};

/// Mutated inputs per plain test; always the same ones.
const INPUTS: u64 = 3_000;
const SEED: u64 = 0x5eed;

/// Environment variable: tries this many inputs instead.
const INPUTS_NAME: &str = "WARMROUTE_FUZZ_INPUTS";
/// Environment variable: tries inputs for this many seconds instead, other ones each time.
const SECS_NAME: &str = "WARMROUTE_FUZZ_SECS";
/// Environment variable: the inputs of this seed.
const SEED_NAME: &str = "GATE_SEED";

/// How long a target is tried, and with which inputs.
struct Extent {
    inputs: u64,
    secs: Option<Duration>,
    seed: u64,
}

impl Extent {
    fn from_environment() -> Extent {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let secs = number(SECS_NAME).map(Duration::from_secs);
        let other_seed = || secs.map(|_| RandomState::new().hash_one(0_u8));
        Extent {
            inputs: number(INPUTS_NAME).unwrap_or(INPUTS),
            secs,
            seed: number(SEED_NAME).or_else(other_seed).unwrap_or(SEED),
        }
    }

    fn is_over(&self, inputs: u64, start: Instant) -> bool {
        self.secs.map_or(inputs >= self.inputs, |secs| start.elapsed() >= secs)
    }
}

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
    let extent = Extent::from_environment();
    let mut mutator = Mutator::new(seeds, Dice::new(extent.seed));
    let (start, mut inputs) = (Instant::now(), 0);
    while !extent.is_over(inputs, start) {
        attempt(name, target, &mutator.mutated());
        inputs += 1;
    }
    eprintln!("{name}: {inputs} inputs of seed {} in {:.1} s", extent.seed, start.elapsed().as_secs_f64());
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
