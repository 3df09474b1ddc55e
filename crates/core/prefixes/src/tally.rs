//! Counts of breaks by place, in bounded memory.

use std::collections::BTreeMap;

use warmroute_prompt::{Field, FieldPath};
use warmroute_types::Micros;

use crate::Cause;

/// Places kept for a model. The one with the least loss gives way to a new one.
const PLACES_MAX: usize = 64;

/// Counts are halved, together with the time that they cover, after this time: old traffic fades.
const COVERED_MAX: Micros = Micros::from_secs(24 * 3_600);

/// Shortest time that counts are said to cover.
const COVERED_MIN: Micros = Micros::from_secs(60);

/// A place where prompts part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub cause: Cause,
    pub path: FieldPath,
    /// `None` where the position says nothing, as in a list of tools.
    pub byte: Option<u32>,
}

impl Place {
    /// Groups places of one cause: tools are one place, and so are all turns after the first two.
    pub(crate) fn new(cause: Cause, path: FieldPath, byte: u32) -> Place {
        let is_late_turn = path.field == Field::Turns && path.item.is_some_and(|item| item > 1);
        let is_history = matches!(cause, Cause::HistoryTrimmed | Cause::HistoryRewritten);
        let is_group = path.field <= Field::Tools || is_late_turn || is_history;
        let is_value = matches!(cause, Cause::Timestamp | Cause::RandomId | Cause::Number);
        match is_group && (!is_value || is_late_turn) {
            true => Place { cause, path: path.whole(), byte: None },
            false => Place { cause, path, byte: Some(byte) },
        }
    }
}

/// Requests that parted at a place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    pub requests: u64,
    pub bytes: u64,
}

/// Counts of one model.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Prompts that were compared with an earlier one.
    pub compared: u64,
    /// Bytes of their text.
    pub bytes: u64,
    /// All breaks.
    pub lost: Loss,
    pub places: BTreeMap<Place, Loss>,
    since: Micros,
}

impl Tally {
    pub(crate) fn new(now: Micros) -> Tally {
        Tally { compared: 0, bytes: 0, lost: Loss::default(), places: BTreeMap::new(), since: now }
    }

    /// Counts a prompt of this many bytes, and its break.
    pub(crate) fn count(&mut self, bytes: u64, broke: Option<(Place, u64)>, now: Micros) {
        self.fade(now);
        self.compared += 1;
        self.bytes += bytes;
        let Some((place, lost)) = broke else { return };
        self.lost.add(lost);
        if self.places.len() == PLACES_MAX && !self.places.contains_key(&place) {
            let least = self.places.iter().min_by_key(|(_, loss)| loss.bytes).map(|(place, _)| *place);
            least.iter().for_each(|least| _ = self.places.remove(least));
        }
        self.places.entry(place).or_default().add(lost);
    }

    /// The time that the counts cover.
    pub(crate) fn covered(&self, now: Micros) -> Micros {
        now.since(self.since).max(COVERED_MIN)
    }

    fn fade(&mut self, now: Micros) {
        let covered = now.since(self.since);
        if covered < COVERED_MAX {
            return;
        }
        self.since = Micros(now.0 - covered.0 / 2);
        (self.compared, self.bytes) = (self.compared / 2, self.bytes / 2);
        self.lost.halve();
        self.places.values_mut().for_each(Loss::halve);
        self.places.retain(|_, loss| loss.requests > 0);
    }
}

impl Loss {
    fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn halve(&mut self) {
        (self.requests, self.bytes) = (self.requests / 2, self.bytes / 2);
    }
}
