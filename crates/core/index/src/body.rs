//! A node's body: up to 64 consecutive spans and their holders, in one allocation that readers walk without a lock.
//!
//! ```text
//! Head, digests u64×cap, words u64×words, masks u64×entries, sizes u32×cap, positions u16×entries, indices u8×words
//! ```
//!
//! Three things change while a reader looks: `len` grows (digests below it never change), a holder's mask changes, or a
//! word of the holder set changes. Each is one atomic step. Every other change (more room, another holder, a trimmed
//! tail) builds a new body that replaces the old one, so a reader sees all of the change or none of it.
//!
//! A holder is an *entry* (its position and a mask with one bit per span, so holes are exact) or, where many holders hold all
//! spans, a bit in the sparse words. The arrays share one allocation, because separate arrays cost a walk one more cache
//! miss each per 64 spans.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::holder_bits::HolderPosition;
use crate::span::{Reach, Size};

/// Most spans in one body: a mask has one bit for each.
pub(crate) const SPANS_MAX: usize = 64;

/// The fixed part of a body.
#[repr(C)]
pub(crate) struct Head {
    len: AtomicU32,
    /// The size of every span, where all spans have one size; unused where sizes differ.
    size: Size,
    cap: u16,
    words: u16,
    entries: u16,
    /// Capacity of the `sizes` array: `cap` where spans differ in size, else zero.
    sizes: u16,
}

/// The sizes of a body's spans.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizes<'a> {
    /// All spans have this size, as fixed chunks do: nothing is stored per span.
    Even(Size),
    /// One size per span.
    Ragged(&'a [Size]),
}

impl Sizes<'_> {
    #[inline]
    pub fn at(self, at: usize) -> Size {
        match self {
            Sizes::Even(size) => size,
            Sizes::Ragged(sizes) => sizes[at],
        }
    }
}

/// The contents of a new body.
pub(crate) struct Plan<'a> {
    pub cap: usize,
    pub digests: &'a [u64],
    pub sizes: Sizes<'a>,
    /// Words of the set of holders that hold every span: (index of the word, its bits).
    pub words: &'a [(u8, u64)],
    /// The other holders: (position, mask).
    pub entries: &'a [(HolderPosition, u64)],
}

/// A body that no node has yet. Only [`Plan::build`] makes one; a node takes it over, or it is freed when it is dropped.
#[must_use]
pub(crate) struct NewBody(NonNull<Head>);

/// A view of a body. It is as valid as the borrow of the node it came from.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    head: NonNull<Head>,
    borrow: PhantomData<&'a Head>,
}

/// Where each array begins, in bytes from the head.
struct Offsets {
    words: usize,
    masks: usize,
    sizes: usize,
    positions: usize,
    indices: usize,
    end: usize,
}

const DIGESTS: usize = size_of::<Head>();

impl Offsets {
    #[inline]
    fn new(cap: usize, words: usize, entries: usize, sizes: usize) -> Offsets {
        let words_at = DIGESTS + 8 * cap;
        let masks_at = words_at + 8 * words;
        let sizes_at = masks_at + 8 * entries;
        let positions_at = sizes_at + 4 * sizes;
        let indices_at = positions_at + size_of::<HolderPosition>() * entries;
        Offsets {
            words: words_at,
            masks: masks_at,
            sizes: sizes_at,
            positions: positions_at,
            indices: indices_at,
            end: indices_at + words,
        }
    }

    fn layout(&self) -> Layout {
        Layout::from_size_align(self.end, align_of::<Head>().max(8))
            .expect("a body is a few kilobytes at most")
    }
}

/// All bits below `count`.
#[inline]
pub(crate) fn ones(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

impl Plan<'_> {
    /// Allocates the body.
    pub fn build(&self) -> NewBody {
        debug_assert!(self.digests.len() <= self.cap && self.cap <= SPANS_MAX);
        let sizes = if matches!(self.sizes, Sizes::Ragged(_)) { self.cap } else { 0 };
        let at = Offsets::new(self.cap, self.words.len(), self.entries.len(), sizes);
        // SAFETY: the layout is never empty (it contains the head).
        let Some(base) = NonNull::new(unsafe { alloc(at.layout()) }) else { handle_alloc_error(at.layout()) };
        let size = if let Sizes::Even(size) = self.sizes { size } else { Size(0) };
        let head = Head {
            len: AtomicU32::new(self.digests.len() as u32),
            size,
            cap: self.cap as u16,
            words: self.words.len() as u16,
            entries: self.entries.len() as u16,
            sizes: sizes as u16,
        };
        // SAFETY: `base` is a fresh allocation of `at.end` bytes, aligned to 8 and not shared yet. Every array lies
        // inside it, at an offset that is a multiple of its element's size.
        unsafe {
            base.cast::<Head>().write(head);
            self.fill(base.as_ptr(), &at);
        }
        NewBody(base.cast())
    }

    /// Writes the arrays. The part of digests and sizes beyond `len` stays uninitialized and is never read.
    unsafe fn fill(&self, base: *mut u8, at: &Offsets) {
        // SAFETY: the caller passes an allocation laid out by `at` for this plan.
        unsafe {
            ptr::copy_nonoverlapping(self.digests.as_ptr(), base.add(DIGESTS).cast(), self.digests.len());
            for (i, &(index, bits)) in self.words.iter().enumerate() {
                base.add(at.words).cast::<u64>().add(i).write(bits);
                base.add(at.indices).add(i).write(index);
            }
            for (i, &(position, mask)) in self.entries.iter().enumerate() {
                base.add(at.masks).cast::<u64>().add(i).write(mask);
                base.add(at.positions).cast::<HolderPosition>().add(i).write(position);
            }
            if let Sizes::Ragged(sizes) = self.sizes {
                ptr::copy_nonoverlapping(sizes.as_ptr(), base.add(at.sizes).cast(), sizes.len());
            }
        }
    }
}

impl NewBody {
    /// The address of the body, which the caller owns from now on and frees with [`free`].
    pub fn into_raw(self) -> *mut Head {
        let head = self.0.as_ptr();
        std::mem::forget(self);
        head
    }
}

impl Drop for NewBody {
    fn drop(&mut self) {
        // SAFETY: `Plan::build` made it, no node has it, and no view of it exists.
        unsafe { free(self.0) };
    }
}

/// Frees a body.
///
/// # Safety
/// `head` came from [`NewBody::into_raw`], was not freed before, and no view of it is used any more.
pub(crate) unsafe fn free(head: NonNull<Head>) {
    // SAFETY: the head is alive until the `dealloc`, and the layout is the one it was allocated with.
    unsafe {
        let layout = Body::new(head).offsets().layout();
        dealloc(head.as_ptr().cast(), layout);
    }
}

impl<'a> Body<'a> {
    /// # Safety
    /// `head` came from [`NewBody::into_raw`] and is not freed while `'a` lasts.
    #[inline]
    pub unsafe fn new(head: NonNull<Head>) -> Body<'a> {
        Body { head, borrow: PhantomData }
    }

    #[inline]
    fn head(self) -> &'a Head {
        // SAFETY: alive for `'a` by the contract of `new`.
        unsafe { self.head.as_ref() }
    }

    fn offsets(self) -> Offsets {
        let head = self.head();
        Offsets::new(head.cap.into(), head.words.into(), head.entries.into(), head.sizes.into())
    }

    /// Spans in use. Digests and sizes below this length are initialized.
    #[inline]
    pub fn len(self) -> usize {
        self.head().len.load(Ordering::Acquire) as usize
    }

    pub fn cap(self) -> usize {
        self.head().cap.into()
    }

    /// Bytes of the allocation.
    pub fn allocated(self) -> usize {
        self.offsets().end
    }

    /// A pointer to an array `offset` bytes into the allocation.
    #[inline]
    fn array<T>(self, offset: usize) -> *mut T {
        // SAFETY: every offset comes from `Offsets` for this head, so it lies inside the allocation. The pointer is
        // derived from the allocation, not from `&Head`, so it may reach past the head.
        unsafe { self.head.as_ptr().cast::<u8>().add(offset).cast() }
    }

    /// The digests of the first `len` spans; `len` is a value returned by [`Body::len`].
    #[inline]
    pub fn digests(self, len: usize) -> &'a [u64] {
        debug_assert!(len <= self.len());
        // SAFETY: digests below a published `len` were written before it was (release and acquire) and never change;
        // the writer touches only what lies beyond, through raw pointers.
        unsafe { std::slice::from_raw_parts(self.array(DIGESTS), len) }
    }

    /// The size of span `at`, below a published `len`.
    #[inline]
    pub fn size(self, at: usize) -> Size {
        if self.head().sizes == 0 { self.head().size } else { self.ragged(at + 1)[at] }
    }

    /// The sizes of the first `len` spans.
    pub fn sizes(self, len: usize) -> Sizes<'a> {
        if self.head().sizes == 0 { Sizes::Even(self.head().size) } else { Sizes::Ragged(self.ragged(len)) }
    }

    fn ragged(self, len: usize) -> &'a [Size] {
        debug_assert!(len <= self.len() && self.head().sizes > 0);
        // SAFETY: as for `digests`; `Size` is a plain word.
        unsafe { std::slice::from_raw_parts(self.array(self.offsets().sizes), len) }
    }

    /// How far the first `count` spans reach, from `start`.
    pub fn reach(self, start: Reach, count: usize) -> Reach {
        match self.sizes(count) {
            Sizes::Even(size) => start.plus(size, count as u32),
            Sizes::Ragged(sizes) => sizes.iter().fold(start, |reach, &size| reach.plus(size, 1)),
        }
    }

    /// The words of the set of holders that hold every span, each with its index.
    #[inline]
    pub fn words(self) -> impl Iterator<Item = (usize, &'a AtomicU64)> {
        let (at, count) = (self.offsets(), usize::from(self.head().words));
        // SAFETY: both arrays were written by `fill` and stay; the words are only touched as atomics.
        let (indices, words) = unsafe {
            let indices = std::slice::from_raw_parts(self.array::<u8>(at.indices), count);
            (indices, std::slice::from_raw_parts(self.array::<AtomicU64>(at.words), count))
        };
        indices.iter().map(|&index| usize::from(index)).zip(words)
    }

    /// The holders that are listed one by one, with their masks.
    #[inline]
    pub fn entries(self) -> (&'a [HolderPosition], &'a [AtomicU64]) {
        let (at, count) = (self.offsets(), usize::from(self.head().entries));
        // SAFETY: both arrays were written by `fill` and stay; the masks are only touched as atomics.
        unsafe {
            let positions = std::slice::from_raw_parts(self.array::<HolderPosition>(at.positions), count);
            (positions, std::slice::from_raw_parts(self.array::<AtomicU64>(at.masks), count))
        }
    }

    /// Whether spans of this size can be appended without a new body.
    pub fn has_room_for(self, size: Size) -> bool {
        self.len() < self.cap() && (self.head().sizes > 0 || self.head().size == size)
    }

    /// Appends a span and publishes it.
    ///
    /// # Safety
    /// The caller is the only writer, and [`Body::has_room_for`] this size.
    pub unsafe fn push(self, digest: u64, size: Size) {
        let len = self.len();
        debug_assert!(self.has_room_for(size));
        // SAFETY: `len < cap`, so both slots lie inside the allocation; no reader looks beyond the published `len`.
        unsafe {
            self.array::<u64>(DIGESTS).add(len).write(digest);
            if self.head().sizes > 0 {
                self.array::<Size>(self.offsets().sizes).add(len).write(size);
            }
        }
        self.head().len.store(len as u32 + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_returns_its_planned_contents_and_grows_in_place() {
        let sizes = [Size(5 << 12 | 1), Size(7 << 12 | 2)];
        let plan = Plan {
            cap: 4,
            digests: &[11, 22],
            sizes: Sizes::Ragged(&sizes),
            words: &[(3, 0b101)],
            entries: &[(HolderPosition(9), 0b01), (HolderPosition(4095), 0b11)],
        };
        let new = plan.build();
        // SAFETY: `new` outlives the view; one thread.
        let body = unsafe { Body::new(new.0) };
        assert_eq!(body.digests(body.len()), [11, 22]);
        assert_eq!(body.reach(Reach::default(), 2), Reach { spans: 2, bytes: 12, tokens: 3 });
        assert_eq!(body.words().map(|(i, w)| (i, w.load(Ordering::Relaxed))).collect::<Vec<_>>(), [(3, 5)]);
        assert_eq!(body.entries().0, [9, 4095].map(HolderPosition));
        assert_eq!(body.entries().1[1].load(Ordering::Relaxed), 0b11);
        // SAFETY: one writer, room for two more.
        unsafe { body.push(33, Size(1 << 12)) };
        assert_eq!(body.digests(3), [11, 22, 33]);
        assert_eq!(body.size(2).bytes(), 1);
    }

    #[test]
    fn even_bodies_store_no_sizes() {
        let size = Size(64 << 12 | 16);
        let even = Plan { cap: 64, digests: &[1], sizes: Sizes::Even(size), words: &[], entries: &[] };
        let new = even.build();
        // SAFETY: `new` outlives the view; one thread.
        let body = unsafe { Body::new(new.0) };
        assert_eq!(body.allocated(), size_of::<Head>() + 64 * 8);
        assert!(body.has_room_for(size) && !body.has_room_for(Size(63 << 12 | 16)));
        assert_eq!(body.reach(Reach::default(), 1).tokens, 16);
    }

    #[test]
    fn ones_covers_the_whole_word() {
        assert_eq!((ones(0), ones(1), ones(63), ones(64)), (0, 1, u64::MAX >> 1, u64::MAX));
    }
}
