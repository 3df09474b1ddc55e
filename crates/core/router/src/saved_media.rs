//! What engines make of media, in the saved state.

use warmroute_prompt::MediumFacts;
use warmroute_types::Packed;

/// Most media that are known; the oldest are forgotten first.
pub(crate) const KNOWN_MAX: usize = 1 << 16;

/// Encoded bytes of an entry without its placeholder.
const ENTRY_BYTES: usize = 8 + 8 + 8 + 4 + 1;

/// Most bytes that the placeholders of one medium take in a prompt. Of a longer one nothing is saved.
const PLACEHOLDERS_BYTES_MAX: u64 = 1 << 24;

/// A medium as a family's engines write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedMedium {
    pub family: u64,
    pub medium: u64,
    pub facts: MediumFacts,
}

impl SavedMedium {
    /// Whether it has placeholders of a size that can be saved.
    pub fn is_sane(&self) -> bool {
        let MediumFacts { placeholder, tokens, .. } = &self.facts;
        let bytes = u64::from(*tokens) * placeholder.len() as u64;
        (1..=PLACEHOLDERS_BYTES_MAX).contains(&bytes) && placeholder.len() <= usize::from(u8::MAX)
    }
}

/// Encodes entries, which must all be sane.
pub(crate) fn encode(entries: &[SavedMedium], out: &mut Vec<u8>) {
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    for SavedMedium { family, medium, facts } in entries {
        [*family, *medium, facts.hash].iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()));
        out.extend_from_slice(&facts.tokens.to_le_bytes());
        out.push(facts.placeholder.len() as u8);
        out.extend_from_slice(&facts.placeholder);
    }
}

/// Decodes the output of [`encode`].
pub(crate) fn decode(packed: &mut Packed<'_>) -> Option<Vec<SavedMedium>> {
    let count = packed.count(ENTRY_BYTES).filter(|&count| count <= KNOWN_MAX)?;
    let mut one = || {
        let (family, medium, hash, tokens) = (packed.u64()?, packed.u64()?, packed.u64()?, packed.u32()?);
        let length = packed.u8()?;
        let placeholder = packed.bytes(length.into())?.into();
        let saved = SavedMedium { family, medium, facts: MediumFacts { hash, placeholder, tokens } };
        saved.is_sane().then_some(saved)
    };
    (0..count).map(|_| one()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(placeholder: &[u8], tokens: u32) -> SavedMedium {
        SavedMedium {
            family: 1,
            medium: 2,
            facts: MediumFacts { hash: 3, placeholder: placeholder.into(), tokens },
        }
    }

    #[test]
    fn entries_survive_encoding_and_cut_or_absurd_ones_are_refused() {
        let entries = [saved(b"<pad>", 40), saved(b"p", 1)];
        let mut bytes = Vec::new();
        encode(&entries, &mut bytes);
        assert_eq!(decode(&mut Packed(&bytes)).as_deref(), Some(&entries[..]));
        assert_eq!(decode(&mut Packed(&bytes[..bytes.len() - 1])), None);
        for absurd in [saved(b"", 1), saved(b"p", 0), saved(b"<pad>", u32::MAX)] {
            bytes.clear();
            encode(std::slice::from_ref(&absurd), &mut bytes);
            assert_eq!((decode(&mut Packed(&bytes)), absurd.is_sane()), (None, false));
        }
    }
}
