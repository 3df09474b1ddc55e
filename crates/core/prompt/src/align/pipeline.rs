//! Normalizer and pre-tokenizer of tokenizer.json, as steps in byte space.
//!
//! Most pre-tokenizers only split text, which does not change its bytes. Those that add, change or drop text
//! are followed or refused. `▁` for a space is undone on both sides, so the step that writes it has no effect
//! here.

use super::Reading;
use super::normalizer::{Lead, Side, Spaces, Step};
use super::tree::Json;
use super::unaligned::Unaligned;
use super::unicode::{Form, Unicode};
use super::vocabulary::MARK;

/// Steps applied to text.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub steps: Vec<Step>,
    pub lead: Lead,
    pub spaces: Spaces,
    /// Whether tokens are written in the byte-level alphabet.
    pub has_letters: bool,
    /// Whether a pre-tokenizer has already split the text.
    is_cut: bool,
}

impl Pipeline {
    pub fn read(normalizer: &Json, pre_tokenizer: &Json) -> Result<Pipeline, Unaligned> {
        let mut pipeline = Pipeline {
            steps: Vec::new(),
            lead: Lead::Never,
            spaces: Spaces::Plain,
            has_letters: false,
            is_cut: false,
        };
        pipeline.normalize(normalizer)?;
        pipeline.pre_tokenize(pre_tokenizer)?;
        if pipeline.has_letters && pipeline.spaces == Spaces::Marked {
            return Err(Unaligned::PreTokenizer("ByteLevel after marked spaces".to_owned()));
        }
        pipeline.unmark_steps();
        Ok(pipeline)
    }

    /// Applies a reading with its own rule for leading spaces.
    pub fn read_as(&mut self, reading: Reading) {
        if self.spaces == Spaces::Plain || reading == Reading::AsFiled {
            return;
        }
        self.steps.clear();
        self.lead = if reading == Reading::LeadsFirst { Lead::First } else { Lead::EveryPiece };
    }

    fn normalize(&mut self, step: &Json) -> Result<(), Unaligned> {
        let refuse = |what: &str| Err(Unaligned::Normalizer(what.to_owned()));
        let side = |name| if step.get(name).is_true() { Side::Strip } else { Side::Keep };
        match step.type_name() {
            _ if step.is_null() => return Ok(()),
            "Sequence" => {
                return step.get("normalizers").items().iter().try_for_each(|step| self.normalize(step));
            }
            _ if self.has_letters => return refuse("after ByteLevel"),
            "NFC" => self.steps.push(Step::Unicode(Unicode::new(Form::Nfc))),
            "NFD" => self.steps.push(Step::Unicode(Unicode::new(Form::Nfd))),
            "NFKC" => self.steps.push(Step::Unicode(Unicode::new(Form::Nfkc))),
            "NFKD" => self.steps.push(Step::Unicode(Unicode::new(Form::Nfkd))),
            "Lowercase" => self.steps.push(Step::Lowercase),
            "StripAccents" => self.steps.push(Step::StripAccents),
            "Prepend" => {
                self.steps.push(Step::Prepend(step.get("prepend").text().unwrap_or(MARK).to_owned()))
            }
            // Marks are no white space, so stripping after marking differs in byte space.
            "Strip" if self.spaces == Spaces::Marked => return refuse("Strip after marked spaces"),
            "Strip" => self.steps.push(Step::Strip { left: side("strip_left"), right: side("strip_right") }),
            "Replace" => return self.replace(step),
            "ByteLevel" => self.has_letters = true,
            other => return refuse(other),
        }
        Ok(())
    }

    fn replace(&mut self, step: &Json) -> Result<(), Unaligned> {
        let refuse = |what: &str| Err(Unaligned::Normalizer(format!("Replace of {what}")));
        let pattern = step.get("pattern");
        let plain = |regex: &&str| regex.chars().all(|letter| letter.is_alphanumeric() || letter == ' ');
        let Some(from) = pattern.get("String").text().or(pattern.get("Regex").text().filter(plain)) else {
            return refuse("a regular expression");
        };
        let to = step.get("content").text().unwrap_or_default();
        if from == " " && to == MARK {
            self.spaces = Spaces::Marked;
        } else if self.spaces == Spaces::Marked && (from.contains(' ') || from.contains(MARK)) {
            return refuse("marked spaces");
        } else {
            self.steps.push(Step::Replace { from: from.to_owned(), to: to.to_owned() });
        }
        Ok(())
    }

    fn pre_tokenize(&mut self, step: &Json) -> Result<(), Unaligned> {
        let refuse = |what: &str| Err(Unaligned::PreTokenizer(what.to_owned()));
        match step.type_name() {
            _ if step.is_null() => return Ok(()),
            "Sequence" => {
                return step.get("pretokenizers").items().iter().try_for_each(|step| self.pre_tokenize(step));
            }
            "ByteLevel" => {
                let lead =
                    if step.get("add_prefix_space").is_true() { Lead::EveryPiece } else { Lead::Never };
                self.set_lead(lead, "ByteLevel with add_prefix_space")?;
                self.has_letters = true;
            }
            "Metaspace" => self.metaspace(step)?,
            "Split" | "Punctuation" if step.get("behavior").text() == Some("Removed") => {
                return refuse("that removes what it splits at");
            }
            "Split" | "Punctuation" | "Digits" | "UnicodeScripts" | "FixedLength" => {}
            other => return refuse(other),
        }
        self.is_cut = true;
        Ok(())
    }

    fn metaspace(&mut self, step: &Json) -> Result<(), Unaligned> {
        if step.get("replacement").text().is_some_and(|mark| mark != MARK) {
            return Err(Unaligned::PreTokenizer("Metaspace with another mark".to_owned()));
        }
        let lead = match (step.get("prepend_scheme").text(), step.get("add_prefix_space")) {
            (Some("first"), _) => Lead::First,
            (Some("never"), _) | (None, Json::Bool(false)) => Lead::Never,
            _ => Lead::EveryPiece,
        };
        self.spaces = Spaces::Marked;
        self.set_lead(lead, "Metaspace")
    }

    /// Sets the lead. After a split it would apply to every word, which byte space cannot follow.
    fn set_lead(&mut self, lead: Lead, what: &str) -> Result<(), Unaligned> {
        if lead != Lead::Never {
            if self.is_cut || self.lead != Lead::Never {
                return Err(Unaligned::PreTokenizer(format!("{what} after a cut")));
            }
            self.lead = lead;
        }
        Ok(())
    }

    /// Turns marks in steps into spaces, if spaces are marked.
    fn unmark_steps(&mut self) {
        if self.spaces == Spaces::Plain {
            return;
        }
        for step in &mut self.steps {
            match step {
                Step::Prepend(text) | Step::Replace { to: text, .. } => *text = text.replace(MARK, " "),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(normalizer: &str, pre_tokenizer: &str) -> Result<Pipeline, Unaligned> {
        let json = |text: &str| Json::read(text.as_bytes()).unwrap();
        Pipeline::read(&json(normalizer), &json(pre_tokenizer))
    }

    #[test]
    fn unsupported_steps_are_refused_by_name() {
        for (normalizer, pre_tokenizer, words) in [
            (r#"{"type":"BertNormalizer"}"#, "null", "BertNormalizer"),
            (r#"{"type":"Precompiled"}"#, "null", "Precompiled"),
            (r#"{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}"#, "null", "regular expression"),
            ("null", r#"{"type":"Whitespace"}"#, "Whitespace"),
            ("null", r#"{"type":"Split","pattern":{"String":" "},"behavior":"Removed"}"#, "removes"),
            (
                "null",
                r#"{"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"ByteLevel","add_prefix_space":true}]}"#,
                "after a cut",
            ),
            ("null", r#"{"type":"Metaspace","replacement":"_"}"#, "another mark"),
        ] {
            let refused = read(normalizer, pre_tokenizer).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn marked_spaces_become_spaces() {
        let llama = r#"{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}"#;
        let pipeline = read(llama, "null").unwrap();
        assert!(matches!(&pipeline.steps[..], [Step::Prepend(lead)] if lead == " "));
        assert_eq!((pipeline.spaces, pipeline.lead), (Spaces::Marked, Lead::Never));
    }

    #[test]
    fn metaspace_leads_as_its_scheme_says() {
        for (scheme, lead) in [
            (r#""prepend_scheme":"always""#, Lead::EveryPiece),
            (r#""prepend_scheme":"first""#, Lead::First),
            (r#""prepend_scheme":"never""#, Lead::Never),
            (r#""add_prefix_space":true"#, Lead::EveryPiece),
            (r#""add_prefix_space":false"#, Lead::Never),
        ] {
            let pipeline =
                read("null", &format!(r#"{{"type":"Metaspace","replacement":"▁",{scheme}}}"#)).unwrap();
            assert_eq!((pipeline.lead, pipeline.spaces), (lead, Spaces::Marked), "{scheme}");
        }
    }
}
