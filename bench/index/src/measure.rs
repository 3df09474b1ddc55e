//! One index on one stream: what each operation costs, how much memory is live, and whether the answers are right.

use crate::clock::timed;
use crate::heap;
use crate::rival::Rival;
use crate::stream::Stream;

/// What was measured; times in CPU nanoseconds.
#[derive(Clone, Debug)]
pub struct Figures {
    pub who: &'static str,
    pub find: f64,
    pub store: f64,
    pub append: f64,
    pub remove: f64,
    /// Live bytes per (worker, block) pair after the stores.
    pub bytes: f64,
    /// Workers and blocks found, summed over all prompts before and after the evictions.
    pub answers: (u64, u64),
    /// Live bytes after the evictions were stored again, over those before.
    pub churn: f64,
}

const FINDS: usize = 8_000;

pub fn measure(stream: &Stream, make: &dyn Fn() -> Box<dyn Rival>) -> Figures {
    let base = settled(0);
    let mut rival = make();
    let store = apply(&mut *rival, |rival| stream.stores.iter().for_each(|store| rival.store(store)));
    let append = apply(&mut *rival, |rival| stream.appends.iter().for_each(|store| rival.store(store)));
    let bytes = settled(base);
    let mut answers = answer(&mut *rival, stream);
    let find = find(&mut *rival, stream);
    let remove = apply(&mut *rival, |rival| stream.removes.iter().for_each(|remove| rival.remove(remove)));
    let after = answer(&mut *rival, stream);
    answers = (answers.0 + after.0, answers.1 + after.1);
    for _ in 0..3 {
        stream.restores.iter().rev().for_each(|store| rival.store(store));
        rival.drain();
        stream.removes.iter().for_each(|remove| rival.remove(remove));
        rival.drain();
    }
    stream.restores.iter().rev().for_each(|store| rival.store(store));
    rival.drain();
    let churned = settled(base);
    let blocks = stream.stored_blocks();
    Figures {
        who: rival.name(),
        find,
        store: store / blocks as f64,
        append: append / stream.appends.len().max(1) as f64,
        remove: remove / stream.removed_blocks().max(1) as f64,
        bytes: bytes as f64 / (blocks + stream.appends.len()) as f64,
        answers,
        churn: churned as f64 / bytes as f64,
    }
}

/// Live bytes since `base`, once nothing waits to be freed.
fn settled(base: isize) -> isize {
    for _ in 0..64 {
        crossbeam_epoch::pin().flush();
    }
    heap::live_bytes() - base
}

/// CPU time of some changes, wherever they are made.
fn apply(rival: &mut dyn Rival, work: impl FnOnce(&mut dyn Rival)) -> f64 {
    let elsewhere = rival.drain();
    let ((), here) = timed(|| work(rival));
    match rival.drain() - elsewhere {
        0 => here as f64,
        lane => lane as f64,
    }
}

fn answer(rival: &mut dyn Rival, stream: &Stream) -> (u64, u64) {
    let found = stream.prompts.iter().map(|prompt| rival.find(prompt));
    found.fold((0, 0), |sum, (workers, blocks)| (sum.0 + workers as u64, sum.1 + blocks))
}

fn find(rival: &mut dyn Rival, stream: &Stream) -> f64 {
    let rounds = FINDS.div_ceil(stream.prompts.len());
    let ((), ns) = timed(|| {
        for _ in 0..rounds {
            answer(rival, stream);
        }
    });
    ns as f64 / (rounds * stream.prompts.len()) as f64
}
