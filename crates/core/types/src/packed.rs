//! A reader of packed little-endian numbers from untrusted bytes.

/// The bytes that are left to read.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a>(pub &'a [u8]);

impl<'a> Packed<'a> {
    /// The next `count` bytes; `None` where fewer are left.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next four.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next eight bytes as a finite, non-negative number.
    pub fn amount(&mut self) -> Option<f64> {
        self.array().map(f64::from_le_bytes).filter(|number| number.is_finite() && *number >= 0.0)
    }

    /// The number of following items, each of at least `bytes_each` bytes. A number that cannot fit the remaining
    /// bytes is refused, so the caller may allocate for it.
    pub fn count(&mut self, bytes_each: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count <= self.0.len() / bytes_each.max(1)).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back_and_never_beyond_the_end() {
        let mut bytes = 7_u16.to_le_bytes().to_vec();
        bytes.extend_from_slice(&1.5_f64.to_le_bytes());
        bytes.extend_from_slice(&2_u32.to_le_bytes());
        bytes.extend_from_slice(&[1, 2]);
        let mut packed = Packed(&bytes);
        assert_eq!((packed.u16(), packed.amount()), (Some(7), Some(1.5)));
        assert_eq!(packed.clone().count(2), None, "there is no room for two of two bytes");
        assert_eq!(
            (packed.count(1), packed.u8(), packed.u8(), packed.u8()),
            (Some(2), Some(1), Some(2), None)
        );
        assert_eq!(Packed(&f64::NAN.to_le_bytes()).amount(), None);
        assert_eq!(Packed(&(-1.0_f64).to_le_bytes()).amount(), None);
    }
}
