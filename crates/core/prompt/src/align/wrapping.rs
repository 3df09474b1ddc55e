//! Tokens that a tokenizer adds around a plain prompt, usually one for the beginning.
//!
//! Chat templates write these tokens, so engines add them to completions only. tokenizer.json defines them;
//! `add_bos_token` and `add_eos_token` in tokenizer_config.json take precedence, as in engines.

use super::tree::Json;
use super::vocabulary::Vocabulary;

/// Bytes around a plain prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrapping {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

impl Wrapping {
    pub fn read(post_processor: &Json, config: &Json, vocabulary: &Vocabulary) -> Wrapping {
        let (bos, eos) = (config.get("add_bos_token"), config.get("add_eos_token"));
        if bos.is_null() && eos.is_null() {
            let mut wrapping = Wrapping::default();
            wrapping.process(post_processor, vocabulary);
            return wrapping;
        }
        let token = |is_wanted: &Json, name| {
            let content = Some(config.get(name)).filter(|_| is_wanted.is_true()).and_then(content);
            content.map(|content| content.as_bytes().to_vec()).unwrap_or_default()
        };
        Wrapping { before: token(bos, "bos_token"), after: token(eos, "eos_token") }
    }

    fn process(&mut self, step: &Json, vocabulary: &Vocabulary) {
        match step.type_name() {
            "Sequence" => {
                step.get("processors").items().iter().for_each(|step| self.process(step, vocabulary))
            }
            "TemplateProcessing" => self.template(step, vocabulary),
            "BertProcessing" | "RobertaProcessing" => {
                let id = |name| step.get(name).items().get(1).and_then(Json::number);
                self.before.extend(bytes(id("cls"), vocabulary));
                self.after.extend(bytes(id("sep"), vocabulary));
            }
            _ => {}
        }
    }

    fn template(&mut self, step: &Json, vocabulary: &Vocabulary) {
        let mut side = &mut self.before;
        for piece in step.get("single").items() {
            if !piece.get("Sequence").is_null() {
                side = &mut self.after;
            }
            let name = piece.get("SpecialToken").get("id").text().unwrap_or_default();
            let ids = step.get("special_tokens").get(name).get("ids");
            ids.items().iter().for_each(|id| side.extend(bytes(id.number(), vocabulary)));
        }
    }
}

fn bytes(id: Option<u32>, vocabulary: &Vocabulary) -> &[u8] {
    id.and_then(|id| vocabulary.bytes(id)).unwrap_or_default()
}

/// Content of a special token, which tokenizer_config.json stores as a string or an object.
pub(crate) fn content(token: &Json) -> Option<&str> {
    token.text().or(token.get("content").text())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = r#"{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
        "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"</s>"}}],
        "special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]},"</s>":{"id":"</s>","ids":[2]}}}]}"#;

    fn wrapping(config: &str) -> (String, String) {
        let vocabulary = Vocabulary::new(vec![(1, b"<s>".to_vec()), (2, b"</s>".to_vec())]);
        let json = |text: &str| Json::read(text.as_bytes()).unwrap();
        let wrapping = Wrapping::read(&json(TEMPLATE), &json(config), &vocabulary);
        (String::from_utf8(wrapping.before).unwrap(), String::from_utf8(wrapping.after).unwrap())
    }

    #[test]
    fn the_post_processor_defines_the_added_tokens() {
        assert_eq!(wrapping("{}"), ("<s>".to_owned(), "</s>".to_owned()));
    }

    #[test]
    fn the_configuration_takes_precedence() {
        assert_eq!(wrapping(r#"{"add_bos_token":false}"#), (String::new(), String::new()));
        let config =
            r#"{"add_bos_token":true,"bos_token":{"content":"<b>"},"add_eos_token":true,"eos_token":"<e>"}"#;
        assert_eq!(wrapping(config), ("<b>".to_owned(), "<e>".to_owned()));
    }
}
