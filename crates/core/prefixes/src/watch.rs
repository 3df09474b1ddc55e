//! Keeps the last outlines and compares each prompt with the one before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_prompt::{Api, Attribution, Body, Outline};
use warmroute_types::Micros;

use crate::cause::judge;
use crate::report::{ModelReport, PrefixReport, tokens};
use crate::tally::{Place, Tally};
use crate::{Cause, Parting};

/// Memory for outlines, counted once for each key that leads to one.
const OUTLINES_BYTES_MAX: usize = 16 << 20;

/// Models whose breaks are counted apart.
const MODELS_MAX: usize = 32;

/// Name under which further models are counted.
const OTHER_MODELS: &str = "(other models)";

/// Bytes kept of a model's name.
const MODEL_BYTES_MAX: usize = 128;

/// A prompt to compare.
#[derive(Clone, Copy)]
pub struct WatchedPrompt<'a> {
    /// Model that serves it.
    pub model: &'a str,
    /// The API whose fields the body has.
    pub api: Api,
    /// The request's body.
    pub body: &'a Body<'a>,
    /// Number of its session.
    pub session: Option<u64>,
    /// Number of its cache salt: caches are not shared across salts.
    pub salt: u64,
    /// What the model's engines do with Claude Code's attribution line.
    pub attribution: Attribution,
}

/// The outline of a prompt, without any of its text.
pub fn outline(seed: u64, prompt: WatchedPrompt<'_>, digest: fn(&[u8], u64) -> u64) -> Outline {
    Outline::of(prompt.body, prompt.api, prompt.attribution, |text| digest(text, seed))
}

/// Finds out what breaks the prefixes of successive prompts.
pub struct PrefixWatch {
    seed: u64,
    outlines: BTreeMap<u64, KeptOutline>,
    /// Keys by their last use.
    uses: BTreeMap<u64, u64>,
    use_count: u64,
    memory_bytes: usize,
    outlined: u64,
    models: BTreeMap<Box<str>, Tally>,
    /// Breaks and tokens lost since the start, by cause.
    totals: [(u64, u64); Cause::ALL.len()],
    compared: u64,
}

struct KeptOutline {
    outline: Arc<Outline>,
    last_use: u64,
}

impl PrefixWatch {
    /// A watch without outlines. The seed keys their digests.
    pub fn new(seed: u64) -> PrefixWatch {
        PrefixWatch {
            seed,
            outlines: BTreeMap::new(),
            uses: BTreeMap::new(),
            use_count: 0,
            memory_bytes: 0,
            outlined: 0,
            models: BTreeMap::new(),
            totals: Default::default(),
            compared: 0,
        }
    }

    /// Outlines a prompt, compares it with the one before it, and keeps the outline. `digest` takes the seed and a text.
    pub fn see(&mut self, prompt: WatchedPrompt<'_>, digest: fn(&[u8], u64) -> u64, now: Micros) {
        let outline = outline(self.seed, prompt, digest);
        self.see_outlined(prompt, outline, digest, now);
    }

    /// The same with an outline that [`outline`] made with the watch's seed. It takes the larger part of the time.
    pub fn see_outlined(
        &mut self,
        prompt: WatchedPrompt<'_>,
        outline: Outline,
        digest: fn(&[u8], u64) -> u64,
        now: Micros,
    ) {
        let outline = Arc::new(outline);
        if outline.parts().is_empty() {
            return;
        }
        self.outlined += 1;
        let keys = self.keys(prompt, &outline, digest);
        if let Some(earlier) = keys.iter().flatten().find_map(|key| self.outlines.get(key)) {
            let earlier = Arc::clone(&earlier.outline);
            let broke = broken_place(prompt, &earlier, &outline, |text| digest(text, self.seed));
            self.count(prompt.model, outline.text_bytes(), broke, now);
        }
        keys.into_iter().flatten().for_each(|key| self.keep(key, &outline));
        self.forget_oldest();
    }

    /// Keys of the prompts to compare with, the best first: of its session, of its conversation, of its application.
    fn keys(
        &self,
        prompt: WatchedPrompt<'_>,
        outline: &Outline,
        digest: fn(&[u8], u64) -> u64,
    ) -> [Option<u64>; 5] {
        let like = outline.likeness;
        let model = digest(prompt.model.as_bytes(), prompt.salt) ^ prompt.api as u64;
        let key = |kind: u64, parts: [u64; 3]| {
            let mut bytes = [0; 40];
            let words = [kind, model, parts[0], parts[1], parts[2]];
            bytes
                .chunks_exact_mut(8)
                .zip(words)
                .for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
            digest(&bytes, self.seed)
        };
        [
            prompt.session.map(|session| key(0, [session, like.front, like.opening])),
            prompt.session.map(|session| key(1, [session, like.front, 0])),
            Some(key(2, [like.front, like.opening, 0])),
            Some(key(3, [like.front, 0, 0])),
            Some(key(4, [like.back, 0, 0])),
        ]
    }

    fn count(&mut self, model: &str, bytes: u64, broke: Option<(Place, u64)>, now: Micros) {
        self.compared += 1;
        if let Some((place, lost)) = broke {
            let (breaks, lost_tokens) = &mut self.totals[place.cause as usize];
            (*breaks, *lost_tokens) = (*breaks + 1, *lost_tokens + tokens(lost));
        }
        let name = &model[..model.floor_char_boundary(MODEL_BYTES_MAX)];
        let is_known = self.models.contains_key(name) || self.models.len() < MODELS_MAX;
        let name = if is_known { name } else { OTHER_MODELS };
        let tally = self.models.entry(name.into()).or_insert_with(|| Tally::new(now));
        tally.count(bytes, broke, now);
    }

    fn keep(&mut self, key: u64, outline: &Arc<Outline>) {
        self.use_count += 1;
        let kept = KeptOutline { outline: Arc::clone(outline), last_use: self.use_count };
        self.memory_bytes += outline.memory_bytes();
        if let Some(former) = self.outlines.insert(key, kept) {
            self.memory_bytes -= former.outline.memory_bytes();
            self.uses.remove(&former.last_use);
        }
        self.uses.insert(self.use_count, key);
    }

    fn forget_oldest(&mut self) {
        while self.memory_bytes > OUTLINES_BYTES_MAX
            && let Some((_, key)) = self.uses.pop_first()
        {
            let former = self.outlines.remove(&key);
            self.memory_bytes -= former.map_or(0, |former| former.outline.memory_bytes());
        }
    }

    /// What was found out.
    pub fn report(&self, now: Micros) -> PrefixReport {
        let mut models: Vec<ModelReport> =
            self.models.iter().map(|(name, tally)| ModelReport::of(name, tally, now)).collect();
        models.sort_by_key(|model| std::cmp::Reverse(model.lost_tokens));
        PrefixReport { outlined: self.outlined, models }
    }

    /// Prompts compared since the start.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Breaks and tokens lost since the start, by cause.
    pub fn totals(&self) -> impl Iterator<Item = (Cause, u64, u64)> + '_ {
        Cause::ALL.iter().zip(&self.totals).map(|(&cause, &(breaks, lost))| (cause, breaks, lost))
    }
}

/// The place where the prompt parts from the earlier one, and the bytes that are computed again for it.
fn broken_place(
    prompt: WatchedPrompt<'_>,
    earlier: &Outline,
    later: &Outline,
    digest: impl Fn(&[u8]) -> u64,
) -> Option<(Place, u64)> {
    let parting = Parting::between(earlier, later)?;
    let text = Outline::text_of(prompt.body, prompt.api, prompt.attribution, parting.part)?;
    let found = judge(earlier, later, &parting, &text, digest);
    let mut path = later.parts()[parting.part].path;
    if path.field != parting.field {
        // The later prompt lacks the field.
        path = earlier.parts()[parting.part].path;
    }
    Some((Place::new(found.cause, path, found.byte), parting.repeated_bytes))
}

#[cfg(test)]
mod tests;
