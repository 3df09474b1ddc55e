//! The fields of `/generate`, SGLang's own API.
//!
//! Other APIs have fields of the same names with other meanings (`text` of the Responses API is an object), so they are
//! kept apart until the API is known: see [`Body::of_api`](super::Body::of_api).

use super::{TurnsKey, number_of};
use crate::json::{Cursor, Kind};

/// Media of a prompt. Where they stand in it is written in the text, in the model's own way.
pub(crate) const MEDIA_FIELDS: [&str; 3] = ["image_data", "audio_data", "video_data"];

/// Raw values of the fields that only `/generate` has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NativeFields<'a> {
    text: Option<&'a [u8]>,
    input_ids: Option<&'a [u8]>,
    /// An object, or a list of one for each prompt.
    sampling_params: Option<&'a [u8]>,
    /// Values in the order of [`MEDIA_FIELDS`].
    pub media: [Option<&'a [u8]>; MEDIA_FIELDS.len()],
}

impl<'a> NativeFields<'a> {
    /// Whether a field is one of them.
    pub fn has(name: &[u8]) -> bool {
        matches!(name, b"text" | b"input_ids" | b"sampling_params") || medium(name).is_some()
    }

    /// Sets a field; null counts as absent.
    pub fn set(&mut self, name: &[u8], value: &'a [u8]) {
        let value = Some(value).filter(|value| *value != b"null");
        match name {
            b"text" => self.text = value,
            b"input_ids" => self.input_ids = value,
            b"sampling_params" => self.sampling_params = value,
            _ => medium(name).into_iter().for_each(|field| self.media[field] = value),
        }
    }

    /// The prompt. The engine accepts text or ids, not both; images come with text.
    pub fn turns(&self) -> (TurnsKey, Option<&'a [u8]>) {
        match self.text {
            Some(text) => (TurnsKey::Text, Some(text)),
            None => (TurnsKey::InputIds, self.input_ids),
        }
    }

    /// The number of answers to each prompt, as it is written.
    pub fn answers(&self) -> Option<&'a [u8]> {
        self.largest(b"n")
    }

    /// The longest answer that any prompt may have, as it is written.
    pub fn answer_tokens(&self) -> Option<&'a [u8]> {
        self.largest(b"max_new_tokens")
    }

    /// The largest value of a sampling parameter over all prompts.
    fn largest(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut largest = None;
        let mut of_one = |params: &mut Cursor<'a>| {
            if params.kind() != Kind::Object {
                return params.skip_value();
            }
            params.object(|key, value| {
                let is_named = *key.unescaped() == *name;
                let value = value.value()?;
                if is_named && number_of(value) > largest.and_then(number_of) {
                    largest = Some(value);
                }
                Ok(())
            })
        };
        let mut params = Cursor::new(self.sampling_params?);
        let read = match params.kind() {
            Kind::Array => params.array(of_one),
            _ => of_one(&mut params),
        };
        debug_assert!(read.is_ok(), "the body was checked when it was read");
        largest
    }
}

fn medium(name: &[u8]) -> Option<usize> {
    MEDIA_FIELDS.iter().position(|field| field.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use crate::{Api, Body, write_prompt};

    fn canonical(json: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_prompt(&Body::read(json.as_bytes()).unwrap().of_api(Api::Generate), &mut bytes);
        bytes
    }

    #[test]
    fn the_prompt_is_text_or_token_ids() {
        assert_eq!(canonical(r#"{"text":"Once","messages":[{"role":"user","content":"no"}]}"#), b"Once");
        assert_eq!(canonical(r#"{"input_ids":[1,22],"text":null,"prompt":"no"}"#), b"\xfd1\xfd22");
        assert_eq!(canonical(r#"{"input_ids":[[1,22]]}"#), b"\xfd1\xfd22");
        assert_eq!(canonical(r#"{"prompt":"no","tools":[{}],"system":"no"}"#), b"");
        let body = Body::read(br#"{"text":["a","b"]}"#).unwrap().of_api(Api::Generate);
        assert!(!body.has_one_prompt());
        let ids = Body::read(br#"{"input_ids":[1, 2,3]}"#).unwrap().of_api(Api::Generate);
        assert_eq!((ids.has_one_prompt(), ids.prompt_tokens()), (true, 3));
    }

    #[test]
    fn other_images_are_another_prompt_and_count_as_their_hash() {
        let with = |image: &str| canonical(&format!(r#"{{"text":"What is it?","image_data":["{image}"]}}"#));
        let (cat, dog) = (with(&"cat".repeat(1_000)), with(&"dog".repeat(1_000)));
        assert_ne!(cat, dog);
        assert!(cat.len() < 40 && cat.ends_with(b"What is it?"), "{cat:?}");
    }

    #[test]
    fn answers_and_their_length_are_sampling_parameters() {
        for (json, answers, tokens) in [
            (r#"{"text":"a"}"#, 1, None),
            (r#"{"text":"a","max_tokens":7,"n":3}"#, 1, None),
            (r#"{"text":"a","sampling_params":{"max_new_tokens":64,"n":2}}"#, 2, Some(64)),
            (
                r#"{"text":["a","b"],"sampling_params":[{"max_new_tokens":9},{"max_new_tokens":80}]}"#,
                2,
                Some(80),
            ),
            (r#"{"text":"a","sampling_params":[7,null]}"#, 1, None),
        ] {
            let body = Body::read(json.as_bytes()).unwrap().of_api(Api::Generate);
            assert_eq!((body.answers(), body.answer_tokens_max(Api::Generate)), (answers, tokens), "{json}");
        }
    }

    #[test]
    fn other_apis_do_not_have_these_fields() {
        let json = br#"{"input":"Hi","text":{"format":{"type":"text"}},"input_ids":[1]}"#;
        let mut bytes = Vec::new();
        write_prompt(&Body::read(json).unwrap().of_api(Api::Responses), &mut bytes);
        assert_eq!(bytes, b"Hi");
    }
}
