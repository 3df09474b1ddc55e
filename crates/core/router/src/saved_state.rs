//! State that a router saves for the next process: presumed caches and what was learned about workers.
//!
//! ```text
//! "WARMROUT" version | seed hash chunk_bytes saved_at | latency models | token rates | workers | snapshot | stored responses | media | checksum
//! ```
//!
//! Reported caches are not saved: engines report them again. No text is saved either: prompts are keyed
//! digests, models are hashes. The seed of the digests is included, because digests are useless without it. A
//! reader of the file can therefore test whether a guessed prompt was sent: keep the file private.

use warmroute_index::{Hash, Snapshot};
use warmroute_peers::StoredResponse;
use warmroute_prompt::CHUNK_BYTES;
use warmroute_types::{Address, MAX_WORKERS, Packed, PrefixCache};
use xxhash_rust::xxh3::xxh3_64;

use crate::saved_media::{self, SavedMedium};
use crate::stored_responses;

const MAGIC: &[u8; 8] = b"WARMROUT";
const VERSION: u32 = 4;
/// The version without media, and the one without stored responses too. They are read as well.
const VERSION_WITHOUT_MEDIA: u32 = 3;
const VERSION_WITHOUT_STORED: u32 = 2;
const CHECKSUM_BYTES: usize = 8;
/// Tolerated clock difference to the writer, in seconds.
const FUTURE_MAX_S: u64 = 60;
/// Maximum number of models written or read.
const MODELS_MAX: usize = 4_096;

/// The saved state of a router.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedState {
    pub(crate) seed: u64,
    pub(crate) hash: Hash,
    pub(crate) saved_at_s: u64,
    /// Latency model coefficients by hash of the model name.
    pub(crate) latency_models: Vec<(u64, Vec<f64>)>,
    /// Tokens per byte by hash of the model name.
    pub(crate) token_rates: Vec<(u64, f64)>,
    pub(crate) workers: Vec<SavedWorker>,
    pub(crate) snapshot: Snapshot,
    /// Places of stored responses by the hash of their identifier, oldest first.
    pub(crate) stored: Vec<(u128, StoredResponse)>,
    /// What engines make of media, oldest first.
    pub(crate) media: Vec<SavedMedium>,
}

/// The saved state of a worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SavedWorker {
    pub address: Address,
    /// Its worker index when saved.
    pub index: u16,
    pub capacity_tokens: u64,
    pub relative_latency: [f64; 2],
    pub prefix_cache: Option<PrefixCache>,
}

/// Why a saved state cannot be used. The router then starts empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSavedState {
    /// The magic number is wrong.
    #[error("the file is not a saved state")]
    NotOne,
    /// Written by another version of the format.
    #[error("the file has format version {0}; this version reads {VERSION}")]
    OtherVersion(u32),
    /// Truncated or corrupted.
    #[error("the checksum does not match: the file is truncated or damaged")]
    Corrupt,
    /// The checksum is right, but the content is invalid.
    #[error("the content is invalid")]
    Invalid,
    /// Prompts are cut into chunks of another size now.
    #[error("the file uses chunks of {0} bytes, this version {CHUNK_BYTES}")]
    OtherChunks(u32),
    /// Another hash is configured.
    #[error("the file was written with another block-hash")]
    OtherHash,
    /// Everything in it has expired.
    #[error("the file is {0} s old, older than presumed-ttl-secs")]
    TooOld(u64),
    /// Clocks disagree.
    #[error("the file was saved in the future: check the clock")]
    FromTheFuture,
}

impl SavedState {
    /// Seed of the digests: a router must use the same one.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of saved uses, spans and workers.
    pub fn extent(&self) -> (usize, usize, usize) {
        (self.snapshot.uses(), self.snapshot.spans(), self.workers.len())
    }

    /// Age in seconds, or why the state is unusable now.
    pub fn age_s(&self, config: &warmroute_index::Config, unix_s: u64) -> Result<u64, BadSavedState> {
        if self.hash != config.hash {
            return Err(BadSavedState::OtherHash);
        }
        if self.saved_at_s > unix_s.saturating_add(FUTURE_MAX_S) {
            return Err(BadSavedState::FromTheFuture);
        }
        let age_s = unix_s.saturating_sub(self.saved_at_s);
        let is_old = age_s.saturating_mul(1_000_000) >= config.presumed_ttl.0;
        if is_old { Err(BadSavedState::TooOld(age_s)) } else { Ok(age_s) }
    }

    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(9 * self.snapshot.spans() + 16 * self.snapshot.uses() + 4_096);
        out.extend_from_slice(MAGIC);
        // A file without the later parts can be read by earlier builds too.
        let version = match (self.stored.is_empty(), self.media.is_empty()) {
            (true, true) => VERSION_WITHOUT_STORED,
            (false, true) => VERSION_WITHOUT_MEDIA,
            (_, false) => VERSION,
        };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.push(self.hash as u8);
        out.extend_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&self.saved_at_s.to_le_bytes());
        out.extend_from_slice(&(self.latency_models.len() as u32).to_le_bytes());
        for (model, numbers) in &self.latency_models {
            out.extend_from_slice(&model.to_le_bytes());
            out.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
            numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        }
        out.extend_from_slice(&(self.token_rates.len() as u32).to_le_bytes());
        for (model, rate) in &self.token_rates {
            out.extend_from_slice(&model.to_le_bytes());
            out.extend_from_slice(&rate.to_le_bytes());
        }
        out.extend_from_slice(&(self.workers.len() as u32).to_le_bytes());
        self.workers.iter().for_each(|worker| worker.encode(&mut out));
        self.snapshot.encode(&mut out);
        if version != VERSION_WITHOUT_STORED {
            stored_responses::encode(&self.stored, &mut out);
        }
        if version == VERSION {
            saved_media::encode(&self.media, &mut out);
        }
        out.extend_from_slice(&xxh3_64(&out).to_le_bytes());
        out
    }

    /// Decodes the output of [`SavedState::encode`] and refuses everything else. Uses at most a few times the
    /// memory of the input.
    pub fn decode(bytes: &[u8]) -> Result<SavedState, BadSavedState> {
        let mut packed = Packed(bytes);
        if packed.bytes(MAGIC.len()) != Some(MAGIC) {
            return Err(BadSavedState::NotOne);
        }
        let version = match packed.u32() {
            Some(version @ (VERSION_WITHOUT_STORED | VERSION_WITHOUT_MEDIA | VERSION)) => version,
            Some(other) => return Err(BadSavedState::OtherVersion(other)),
            None => return Err(BadSavedState::Corrupt),
        };
        let written = bytes.len().saturating_sub(CHECKSUM_BYTES);
        let checksum = Packed(&bytes[written..]).u64();
        if checksum != Some(xxh3_64(&bytes[..written])) {
            return Err(BadSavedState::Corrupt);
        }
        SavedState::read(Packed(&bytes[MAGIC.len() + size_of_val(&VERSION)..written]), version)
    }

    fn read(mut packed: Packed<'_>, version: u32) -> Result<SavedState, BadSavedState> {
        let head = read_head(&mut packed).ok_or(BadSavedState::Invalid)?;
        let (seed, hash, chunk_bytes, saved_at_s) = head;
        if chunk_bytes != CHUNK_BYTES as u32 {
            return Err(BadSavedState::OtherChunks(chunk_bytes));
        }
        let learned = read_learned(&mut packed).ok_or(BadSavedState::Invalid)?;
        let (latency_models, token_rates, workers) = learned;
        let snapshot = Snapshot::decode(&mut packed).map_err(|_| BadSavedState::Invalid)?;
        let (stored, media) = read_later_parts(&mut packed, version).ok_or(BadSavedState::Invalid)?;
        if !packed.0.is_empty() {
            return Err(BadSavedState::Invalid);
        }
        Ok(SavedState {
            seed,
            hash,
            saved_at_s,
            latency_models,
            token_rates,
            workers,
            snapshot,
            stored,
            media,
        })
    }
}

fn read_head(packed: &mut Packed<'_>) -> Option<(u64, Hash, u32, u64)> {
    let (seed, hash) = (packed.u64()?, packed.u8()?);
    let hash = [Hash::Xxh3, Hash::Sha256, Hash::Blake2b].into_iter().find(|known| *known as u8 == hash)?;
    Some((seed, hash, packed.u32()?, packed.u64()?))
}

type LaterParts = (Vec<(u128, StoredResponse)>, Vec<SavedMedium>);

/// The parts that a version has. Its last one is not empty, else it would be the version before.
fn read_later_parts(packed: &mut Packed<'_>, version: u32) -> Option<LaterParts> {
    if version == VERSION_WITHOUT_STORED {
        return Some(Default::default());
    }
    let stored = stored_responses::decode(packed)?;
    if version == VERSION_WITHOUT_MEDIA {
        return (!stored.is_empty()).then_some((stored, Vec::new()));
    }
    let media = saved_media::decode(packed)?;
    (!media.is_empty()).then_some((stored, media))
}

type Learned = (Vec<(u64, Vec<f64>)>, Vec<(u64, f64)>, Vec<SavedWorker>);

fn read_learned(packed: &mut Packed<'_>) -> Option<Learned> {
    let latency_models = packed.count(12).filter(|&models| models <= MODELS_MAX)?;
    let latency_models = (0..latency_models).map(|_| latency_model(packed)).collect::<Option<_>>()?;
    let models = packed.count(16).filter(|&models| models <= MODELS_MAX)?;
    let rates = (0..models).map(|_| Some((packed.u64()?, packed.amount()?))).collect::<Option<_>>()?;
    let workers = packed.count(32).filter(|&workers| workers <= MAX_WORKERS)?;
    let workers: Vec<SavedWorker> = (0..workers).map(|_| SavedWorker::read(packed)).collect::<Option<_>>()?;
    have_distinct_indices(&workers).then_some((latency_models, rates, workers))
}

/// Uses are filed under worker indices: two workers with one index would both get its uses.
fn have_distinct_indices(workers: &[SavedWorker]) -> bool {
    let mut indices: Vec<u16> = workers.iter().map(|worker| worker.index).collect();
    indices.sort_unstable();
    indices.windows(2).all(|pair| pair[0] != pair[1])
}

/// A model's hash and the numbers of its latency model.
fn latency_model(packed: &mut Packed<'_>) -> Option<(u64, Vec<f64>)> {
    let model = packed.u64()?;
    let numbers = (0..packed.count(8)?).map(|_| packed.amount()).collect::<Option<_>>()?;
    Some((model, numbers))
}

/// The hash of a model name in a saved state.
pub(crate) fn model_key(model: &str) -> u64 {
    xxh3_64(model.as_bytes())
}

impl SavedWorker {
    fn encode(&self, out: &mut Vec<u8>) {
        let url = self.address.url.as_bytes();
        out.extend_from_slice(&(url.len() as u32).to_le_bytes());
        out.extend_from_slice(url);
        out.push(u8::from(self.address.rank.is_some()));
        out.extend_from_slice(&self.address.rank.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&self.capacity_tokens.to_le_bytes());
        self.relative_latency.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.push(u8::from(self.prefix_cache.is_some()));
        let PrefixCache { queries, hits } = self.prefix_cache.unwrap_or_default();
        [queries, hits].iter().for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
    }

    fn read(packed: &mut Packed<'_>) -> Option<SavedWorker> {
        let length = packed.count(1)?;
        let url = std::str::from_utf8(packed.bytes(length)?).ok()?.to_owned();
        let rank = optional(packed.u8()?, packed.u16()?)?;
        let (index, capacity_tokens) = (packed.u16()?, packed.u64()?);
        let relative_latency = [packed.amount()?, packed.amount()?];
        let has_counters = packed.u8()?;
        let counters = PrefixCache { queries: packed.u64()?, hits: packed.u64()? };
        let prefix_cache = optional(has_counters, counters)?;
        Some(SavedWorker {
            address: Address { url, rank },
            index,
            capacity_tokens,
            relative_latency,
            prefix_cache,
        })
    }
}

/// Decodes an optional value; an absent value must be zero.
fn optional<T: Default + PartialEq>(is_there: u8, value: T) -> Option<Option<T>> {
    match is_there {
        0 => (value == T::default()).then_some(None),
        1 => Some(Some(value)),
        _ => None,
    }
}
