//! Cache changes in transit from engines: to the directory, or into the next published batch.

use std::ops::Range;

use warmroute_engine::{BlockName, Happened, SequenceId};
use warmroute_types::Micros;

use crate::directory::{CacheChange, Stored};
use crate::prompt::Excerpt;

/// Deliveries in transit. Changes that leave one engine for the same arrival time travel together.
#[derive(Debug)]
pub struct EventTransit {
    deliveries: Vec<Delivery>,
    vacant: Vec<u32>,
    /// Newest delivery per engine, with its arrival time.
    open: Vec<Option<(Micros, u32)>>,
}

#[derive(Debug, Default)]
struct Delivery {
    node: usize,
    changes: Vec<CacheChange>,
}

impl EventTransit {
    /// Empty, for this many engines.
    pub fn new(nodes: usize) -> EventTransit {
        EventTransit { deliveries: Vec::new(), vacant: Vec::new(), open: vec![None; nodes] }
    }

    /// Sends cache changes; `stored` resolves a sequence's blocks. Returns the number of a delivery that this
    /// call opened, which the caller must receive at its arrival time.
    pub fn send(
        &mut self,
        node: usize,
        arrival: Micros,
        happened: &[Happened],
        stored: impl Fn(SequenceId, Range<usize>) -> Option<Stored>,
    ) -> Option<u32> {
        let mut changes = happened.iter().filter_map(|one| change_of(*one, &stored)).peekable();
        changes.peek()?;
        if let Some((_, open)) = self.open[node].filter(|(at, _)| *at == arrival) {
            self.deliveries[open as usize].changes.extend(changes);
            return None;
        }
        let delivery = Delivery { node, changes: changes.collect() };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.deliveries[number as usize] = delivery;
                number
            }
            None => {
                self.deliveries.push(delivery);
                (self.deliveries.len() - 1) as u32
            }
        };
        self.open[node] = Some((arrival, number));
        Some(number)
    }

    /// Drops the changes that an engine has not sent yet.
    pub fn forget(&mut self, node: usize) {
        if let Some((_, open)) = self.open[node] {
            self.deliveries[open as usize].changes.clear();
        }
    }

    /// Takes a delivery that arrived: its engine and its changes.
    pub fn receive(&mut self, number: u32) -> (usize, Vec<CacheChange>) {
        let Delivery { node, changes } = std::mem::take(&mut self.deliveries[number as usize]);
        self.vacant.push(number);
        if self.open[node].is_some_and(|(_, open)| open == number) {
            self.open[node] = None;
        }
        (node, changes)
    }
}

fn change_of(
    happened: Happened,
    stored: impl Fn(SequenceId, Range<usize>) -> Option<Stored>,
) -> Option<CacheChange> {
    match happened {
        Happened::Stored { id, first_block, blocks } => {
            let blocks = first_block as usize..(first_block + blocks) as usize;
            stored(id, blocks).map(CacheChange::Stored)
        }
        Happened::Removed { name } => Some(CacheChange::Removed(name)),
        Happened::Kept { name, memory } => Some(CacheChange::Kept(name, memory)),
        Happened::Dropped { name, memory } => Some(CacheChange::Dropped(name, memory)),
        Happened::Cleared => Some(CacheChange::Cleared),
        _ => None,
    }
}

/// The blocks of a chain in a range, without their content.
pub fn stored(chain: &[BlockName], blocks: Range<usize>) -> Option<Stored> {
    let parent = blocks.start.checked_sub(1).and_then(|before| chain.get(before).copied());
    Some(Stored { names: chain.get(blocks)?.to_vec(), parent, content: Excerpt::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_with_one_arrival_time_travel_together() {
        let mut transit = EventTransit::new(2);
        let chain = [BlockName(1), BlockName(2), BlockName(3)];
        let filled = [Happened::Stored { id: SequenceId(0), first_block: 1, blocks: 2 }];
        let removed = [Happened::Removed { name: BlockName(9) }];
        let first = transit.send(1, Micros(10), &filled, |_, blocks| stored(&chain, blocks)).unwrap();
        assert_eq!(transit.send(1, Micros(10), &removed, |_, blocks| stored(&chain, blocks)), None);
        let second = transit.send(1, Micros(20), &removed, |_, blocks| stored(&chain, blocks)).unwrap();
        assert_eq!(
            transit.send(0, Micros(20), &[], |_, blocks| stored(&chain, blocks)),
            None,
            "nothing to deliver"
        );
        let both =
            vec![CacheChange::Stored(stored(&chain, 1..3).unwrap()), CacheChange::Removed(BlockName(9))];
        assert!(matches!(&both[0], CacheChange::Stored(stored) if stored.parent == Some(chain[0])));
        assert_eq!(transit.receive(first), (1, both));
        transit.forget(0);
        assert_eq!(transit.receive(second), (1, vec![CacheChange::Removed(BlockName(9))]));
        let third = transit.send(1, Micros(30), &removed, |_, blocks| stored(&chain, blocks)).unwrap();
        transit.forget(1);
        assert_eq!(transit.receive(third), (1, Vec::new()), "it died with its engine");
    }
}
