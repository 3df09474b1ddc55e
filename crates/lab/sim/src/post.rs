//! News of caches on their way from engines: to whoever keeps a directory, or into the next batch that is published.

use std::ops::Range;

use warmroute_engine::{BlockName, Happened, SequenceId};
use warmroute_types::Micros;

use crate::directory::{News, Stored};
use crate::prompt::Excerpt;

/// Everything under way. What leaves an engine for the same time travels together.
#[derive(Debug)]
pub struct Post {
    deliveries: Vec<Delivery>,
    vacant: Vec<u32>,
    /// By engine: the newest delivery and when it arrives.
    open: Vec<Option<(Micros, u32)>>,
}

#[derive(Debug, Default)]
struct Delivery {
    node: usize,
    news: Vec<News>,
}

impl Post {
    /// Nothing is under way from so many engines.
    pub fn new(nodes: usize) -> Post {
        Post { deliveries: Vec::new(), vacant: Vec::new(), open: vec![None; nodes] }
    }

    /// Sends what happened to a cache; `stored` knows what a sequence's blocks are. A number is returned for a delivery
    /// that has just been opened: it must be received when it arrives.
    pub fn send(
        &mut self,
        node: usize,
        arrival: Micros,
        happened: &[Happened],
        stored: impl Fn(SequenceId, Range<usize>) -> Option<Stored>,
    ) -> Option<u32> {
        let mut news = happened.iter().filter_map(|one| news_of(*one, &stored)).peekable();
        news.peek()?;
        if let Some((_, open)) = self.open[node].filter(|(at, _)| *at == arrival) {
            self.deliveries[open as usize].news.extend(news);
            return None;
        }
        let delivery = Delivery { node, news: news.collect() };
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

    /// What an engine has not sent yet will never be.
    pub fn forget(&mut self, node: usize) {
        if let Some((_, open)) = self.open[node] {
            self.deliveries[open as usize].news.clear();
        }
    }

    /// A delivery has arrived: whose news, and which.
    pub fn receive(&mut self, number: u32) -> (usize, Vec<News>) {
        let Delivery { node, news } = std::mem::take(&mut self.deliveries[number as usize]);
        self.vacant.push(number);
        if self.open[node].is_some_and(|(_, open)| open == number) {
            self.open[node] = None;
        }
        (node, news)
    }
}

fn news_of(happened: Happened, stored: impl Fn(SequenceId, Range<usize>) -> Option<Stored>) -> Option<News> {
    match happened {
        Happened::Stored { id, first_block, blocks } => {
            let blocks = first_block as usize..(first_block + blocks) as usize;
            stored(id, blocks).map(News::Stored)
        }
        Happened::Removed { name } => Some(News::Removed(name)),
        Happened::Kept { name, memory } => Some(News::Kept(name, memory)),
        Happened::Dropped { name, memory } => Some(News::Dropped(name, memory)),
        Happened::Cleared => Some(News::Cleared),
        _ => None,
    }
}

/// Blocks of a chain, without their content.
pub fn stored(chain: &[BlockName], blocks: Range<usize>) -> Option<Stored> {
    let parent = blocks.start.checked_sub(1).and_then(|before| chain.get(before).copied());
    Some(Stored { names: chain.get(blocks)?.to_vec(), parent, content: Excerpt::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_for_one_time_travels_together() {
        let mut post = Post::new(2);
        let chain = [BlockName(1), BlockName(2), BlockName(3)];
        let filled = [Happened::Stored { id: SequenceId(0), first_block: 1, blocks: 2 }];
        let removed = [Happened::Removed { name: BlockName(9) }];
        let first = post.send(1, Micros(10), &filled, |_, blocks| stored(&chain, blocks)).unwrap();
        assert_eq!(post.send(1, Micros(10), &removed, |_, blocks| stored(&chain, blocks)), None);
        let second = post.send(1, Micros(20), &removed, |_, blocks| stored(&chain, blocks)).unwrap();
        assert_eq!(
            post.send(0, Micros(20), &[], |_, blocks| stored(&chain, blocks)),
            None,
            "no news, no letter"
        );
        let both = vec![News::Stored(stored(&chain, 1..3).unwrap()), News::Removed(BlockName(9))];
        assert!(matches!(&both[0], News::Stored(stored) if stored.parent == Some(chain[0])));
        assert_eq!(post.receive(first), (1, both));
        post.forget(0);
        assert_eq!(post.receive(second), (1, vec![News::Removed(BlockName(9))]));
        let third = post.send(1, Micros(30), &removed, |_, blocks| stored(&chain, blocks)).unwrap();
        post.forget(1);
        assert_eq!(post.receive(third), (1, Vec::new()), "it died with its engine");
    }
}
