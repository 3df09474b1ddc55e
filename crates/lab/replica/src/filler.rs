//! The text of a simulated engine: meaningless words, the same for the same seed.
//!
//! It must not be mistaken for a model's answer. A repeated request must get the same answer, because the answer's
//! tokens are cached and may return in the next turn. The text is plain ASCII that JSON need not escape.

const WORDS: [&str; 64] = [
    "amber", "apple", "autumn", "bench", "birch", "blue", "breeze", "bridge", "brook", "calm", "candle",
    "cedar", "clear", "cloud", "clover", "coast", "copper", "cotton", "dawn", "drift", "early", "ember",
    "evening", "fern", "field", "garden", "gentle", "golden", "harbor", "hazel", "hill", "honey", "island",
    "ivory", "lake", "lantern", "leaf", "light", "linen", "maple", "meadow", "mellow", "morning", "moss",
    "north", "oak", "ocean", "olive", "orchard", "pebble", "pine", "quiet", "rain", "river", "silver",
    "slow", "snow", "spring", "stone", "summer", "tide", "valley", "warm", "willow",
];

/// Exactly `bytes` bytes of filler.
pub(crate) fn filler(seed: u64, bytes: usize) -> String {
    let mut random = seed;
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        sentence(&mut random, &mut text);
    }
    text.truncate(bytes);
    text
}

/// Four to eleven words, a capital in front and a full stop behind.
fn sentence(random: &mut u64, text: &mut String) {
    let start = text.len();
    for _ in 0..4 + next(random) % 8 {
        text.push_str(WORDS[(next(random) % 64) as usize]);
        text.push(' ');
    }
    text.pop();
    text.push_str(". ");
    text[start..=start].make_ascii_uppercase();
}

/// SplitMix64: one state word, good enough to pick words.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_says_the_same_and_another_does_not() {
        assert_eq!(filler(7, 400), filler(7, 400));
        assert_ne!(filler(7, 400), filler(8, 400));
    }

    #[test]
    fn a_longer_answer_begins_like_the_shorter() {
        assert!(filler(3, 4_000).starts_with(&filler(3, 37)));
    }

    #[test]
    fn it_has_the_asked_length_and_needs_no_escaping() {
        for bytes in [0, 1, 4, 999] {
            let text = filler(11, bytes);
            assert_eq!(text.len(), bytes);
            assert!(text.chars().all(|c| c.is_ascii_alphabetic() || " .".contains(c)), "{text}");
        }
    }
}
