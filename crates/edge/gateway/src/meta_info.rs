//! Token counts in SGLang's `meta_info`, which `/generate` returns in place of a usage.
//!
//! The object has no bound: between the counts stand the log probabilities of all tokens. So the counts are found by
//! their names, one by one. A name in quotes that are not escaped cannot stand within the generated text.

use warmroute_types::Usage;

/// The end of every name.
const NAME_END: &[u8] = b"_tokens\"";

/// More bytes than a name, a colon, spaces and a number need.
const ENTRY_BYTES_MAX: usize = 64;

/// Reads token counts as a response passes.
#[derive(Debug, Default)]
pub(crate) struct MetaInfoWatch {
    /// The end of the bytes seen so far, which may begin a count.
    carry: Vec<u8>,
    counting: Counting,
    prompt: Option<u32>,
    output: u32,
    cached: Option<u32>,
}

/// What a count adds to those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Counting {
    /// Every event of a stream has the counts so far.
    #[default]
    Largest,
    /// A document has counts for each of its answers.
    Sum,
}

/// What stands at a name's end.
enum Entry {
    Count {
        name: Name,
        count: u32,
        end: usize,
    },
    /// More bytes are needed.
    Partial,
    Other,
}

#[derive(Clone, Copy)]
enum Name {
    Prompt,
    Completion,
    Cached,
}

impl MetaInfoWatch {
    pub(crate) fn new(counting: Counting) -> MetaInfoWatch {
        MetaInfoWatch { counting, ..MetaInfoWatch::default() }
    }

    /// Adds a chunk of the response.
    pub(crate) fn observe(&mut self, chunk: &[u8]) {
        let mut bytes = std::mem::take(&mut self.carry);
        bytes.extend_from_slice(chunk);
        let mut read = 0;
        let mut kept = bytes.len().saturating_sub(ENTRY_BYTES_MAX);
        for at in memchr::memmem::find_iter(&bytes, NAME_END) {
            match entry_at(&bytes, at) {
                Entry::Count { name, count, end } => {
                    self.take(name, count);
                    read = end;
                }
                Entry::Partial => kept = kept.min(at.saturating_sub(ENTRY_BYTES_MAX)),
                Entry::Other => {}
            }
        }
        bytes.drain(..kept.max(read));
        self.carry = bytes;
    }

    fn take(&mut self, name: Name, count: u32) {
        let counting = self.counting;
        let total = |known: u32| match counting {
            Counting::Largest => known.max(count),
            Counting::Sum => known.saturating_add(count),
        };
        match name {
            Name::Prompt => self.prompt = Some(total(self.prompt.unwrap_or(0))),
            Name::Completion => self.output = total(self.output),
            Name::Cached => self.cached = Some(total(self.cached.unwrap_or(0))),
        }
    }

    /// Output tokens so far.
    pub(crate) fn output_tokens(&self) -> u32 {
        self.output
    }

    /// The counts, if the prompt's was there.
    pub(crate) fn read(&self) -> Option<Usage> {
        let (output_tokens, cached_tokens) = (self.output, self.cached);
        self.prompt.map(|prompt_tokens| Usage { prompt_tokens, output_tokens, cached_tokens })
    }
}

/// Reads the entry whose name ends at `at`.
fn entry_at(bytes: &[u8], at: usize) -> Entry {
    const NAMES: [(&[u8], Name); 3] =
        [(b"\"prompt", Name::Prompt), (b"\"completion", Name::Completion), (b"\"cached", Name::Cached)];
    let Some((_, name)) = NAMES.into_iter().find(|(start, _)| bytes[..at].ends_with(start)) else {
        return Entry::Other;
    };
    let rest = &bytes[at + NAME_END.len()..];
    let rest = &rest[..rest.len().min(ENTRY_BYTES_MAX)];
    let partial = if rest.len() < ENTRY_BYTES_MAX { Entry::Partial } else { Entry::Other };
    let value = match rest.trim_ascii_start() {
        [] => return partial,
        [b':', value @ ..] => value.trim_ascii_start(),
        _ => return Entry::Other,
    };
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == value.len() {
        return partial;
    }
    let count = std::str::from_utf8(&value[..digits]).ok().and_then(|digits| digits.parse().ok());
    let end = at + NAME_END.len() + rest.len() - value.len() + digits;
    count.map_or(Entry::Other, |count| Entry::Count { name, count, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(counting: Counting, pieces: &[&[u8]]) -> Option<Usage> {
        let mut watch = MetaInfoWatch::new(counting);
        for piece in pieces {
            watch.observe(piece);
            assert!(watch.carry.len() <= 3 * ENTRY_BYTES_MAX, "{}", watch.carry.len());
        }
        watch.read()
    }

    fn usage(prompt_tokens: u32, output_tokens: u32, cached_tokens: u32) -> Option<Usage> {
        Some(Usage { prompt_tokens, output_tokens, cached_tokens: Some(cached_tokens) })
    }

    #[test]
    fn counts_are_read_around_log_probabilities_wherever_reads_split_them() {
        let probabilities = "[-0.5,1234,null],".repeat(2_000);
        let document = format!(
            r#"{{"text":"\"prompt_tokens\":9,","output_ids":[1],"meta_info":{{"id":"a","finish_reason":{{"type":"stop"}},"prompt_tokens":70,"output_token_logprobs":[{probabilities}[0,1,null]],"reasoning_tokens":3,"completion_tokens": 16 ,"cached_tokens":64,"cached_tokens_details":{{"device":64}}}}}}"#
        );
        let document = document.as_bytes();
        for length in [1, 3, 7, 64, 1_000, document.len()] {
            let pieces: Vec<&[u8]> = document.chunks(length).collect();
            assert_eq!(read(Counting::Sum, &pieces), usage(70, 16, 64), "in pieces of {length}");
        }
    }

    #[test]
    fn a_document_adds_up_its_answers_and_a_stream_has_the_last_ones() {
        let one = br#"{"meta_info":{"prompt_tokens":7,"completion_tokens":2,"cached_tokens":4}}"#;
        let two = br#"{"meta_info":{"prompt_tokens":7,"completion_tokens":5,"cached_tokens":4}}"#;
        assert_eq!(read(Counting::Sum, &[one, two]), usage(14, 7, 8));
        assert_eq!(read(Counting::Largest, &[one, two]), usage(7, 5, 4));
    }

    #[test]
    fn what_is_no_count_is_passed_over_and_not_kept() {
        let spaces = format!("\"prompt_tokens\":{}7,", " ".repeat(500));
        for text in ["\"prompt_tokens\":null,", "\"prompt_tokens\"", "x_prompt_tokens\":7,", &spaces] {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(5).collect();
            assert_eq!(read(Counting::Sum, &pieces), None, "{text}");
        }
    }
}
