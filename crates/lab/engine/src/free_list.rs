//! The blocks that nobody holds, in the order in which they will be taken.
//!
//! A list threaded through an array: a cached block is taken out of the middle when it is hit, so both that and the two
//! ends must cost the same few writes, without allocation. The list is a ring whose extra last element, the post,
//! stands between its end and its beginning.

/// A ring of block numbers. A block may be in it once; the caller knows which are.
#[derive(Clone, Debug)]
pub struct FreeList {
    links: Vec<Link>,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl FreeList {
    /// All of `blocks` blocks, lowest number first.
    pub fn full(blocks: u32) -> FreeList {
        let link = |at: u32| Link {
            before: if at == 0 { blocks } else { at - 1 },
            after: if at == blocks { 0 } else { at + 1 },
        };
        FreeList { links: (0..=blocks).map(link).collect(), count: blocks }
    }

    /// How many blocks are free.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes the block that is due.
    pub fn pop_front(&mut self) -> Option<u32> {
        let post = self.post();
        let block = self.links[post as usize].after;
        (block != post).then(|| {
            self.remove(block);
            block
        })
    }

    /// To be taken next.
    pub fn push_front(&mut self, block: u32) {
        let after = self.links[self.post() as usize].after;
        self.insert_before(block, after);
    }

    /// To be taken last.
    pub fn push_back(&mut self, block: u32) {
        self.insert_before(block, self.post());
    }

    /// Takes a block out of the middle. It must be in the list.
    pub fn remove(&mut self, block: u32) {
        let Link { before, after } = self.links[block as usize];
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        self.count -= 1;
    }

    fn post(&self) -> u32 {
        (self.links.len() - 1) as u32
    }

    fn insert_before(&mut self, block: u32, after: u32) {
        let before = self.links[after as usize].before;
        self.links[block as usize] = Link { before, after };
        self.links[before as usize].after = block;
        self.links[after as usize].before = block;
        self.count += 1;
    }

    #[cfg(test)]
    pub fn to_vec(&self) -> Vec<u32> {
        let mut list = self.clone();
        std::iter::from_fn(|| list.pop_front()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_from_the_front_and_from_the_middle() {
        let mut list = FreeList::full(4);
        assert_eq!(list.to_vec(), [0, 1, 2, 3]);
        list.remove(2);
        assert_eq!(list.pop_front(), Some(0));
        assert_eq!((list.to_vec(), list.count()), (vec![1, 3], 2));
    }

    #[test]
    fn blocks_come_back_at_either_end_also_of_an_empty_list() {
        let mut list = FreeList::full(3);
        while list.pop_front().is_some() {}
        list.push_back(1);
        list.push_back(2);
        list.push_front(0);
        assert_eq!((list.to_vec(), list.count()), (vec![0, 1, 2], 3));
    }
}
