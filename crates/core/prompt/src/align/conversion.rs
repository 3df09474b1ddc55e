//! Requests of Anthropic's Messages API and OpenAI's Responses API as the chats that vLLM makes of them.
//!
//! ```text
//! /v1/messages:  system, messages, tools, thinking          ┐
//!                                                            ├─▶ ChatRequest ─▶ Conversation ─▶ Template
//! /v1/responses: instructions, input, tools, reasoning      ┘
//! ```
//!
//! vLLM has no templates for these APIs: it converts a request to a chat and renders that. The conversion drops,
//! joins and moves text, and it changed between versions. [`ChatConversion`] holds the rules of one version; the
//! tests compare each with the results of that version's own code. Texts are copied as they are in the body, with
//! their escapes, and unescaped once, where a chat's texts are.

mod chat_message;
mod messages;
mod object;
mod responses;
mod tools;

use super::unaligned::Unrendered;
use crate::body::PromptFields;
use crate::{Api, Body};

/// Rules by which an engine converts requests of other APIs to chats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChatConversion {
    /// Rules for the Messages API; `None` if requests cannot be converted.
    pub messages: Option<MessagesRules>,
    /// Rules for the Responses API; `None` if requests cannot be converted.
    pub responses: Option<ResponsesRules>,
}

/// Rules for Anthropic's Messages API that differ between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessagesRules {
    /// Place of system messages between other messages.
    pub inline_system: InlineSystem,
    /// What `thinking` does.
    pub thinking: Thinking,
    /// What `cache_salt` does.
    pub cache_salt: SaltEffect,
}

/// What `cache_salt` in a Messages request does. In other APIs it separates in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaltEffect {
    /// Nothing: the field is unknown.
    Ignored,
    /// Separates the request's cache from others.
    Separates,
}

/// Place of a system message that stands between other messages, as Claude Code's reminders do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InlineSystem {
    /// Joined with the leading system prompt.
    Merged,
    /// Joined with the leading system prompt if the template refuses it elsewhere, else kept in place.
    AsTemplateNeeds,
    /// Kept in place.
    InPlace,
}

/// What `thinking` in a Messages request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thinking {
    /// It has no effect on the prompt.
    Ignored,
    /// `"disabled"` sets the reasoning effort, to the value that the template understands.
    SetsEffort,
}

/// Rules for OpenAI's Responses API that differ between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResponsesRules {
    /// What custom tools become.
    pub custom_tools: CustomTools,
}

/// What a `custom` tool of a Responses request becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CustomTools {
    /// Nothing; calls of it are refused.
    Dropped,
    /// A function with one text argument.
    Functions,
}

/// What a conversion must know about the model's templates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateTraits {
    /// Whether a template refuses system messages after the first message.
    pub refuses_late_system: bool,
    /// Reasoning effort that stands for disabled thinking.
    pub disabled_effort: &'static str,
}

/// A request as the chat that the engine renders. Values are JSON.
#[derive(Debug, Default)]
pub(crate) struct ChatRequest {
    messages: Vec<u8>,
    tools: Option<Vec<u8>>,
    effort: Option<Vec<u8>>,
    continues_last: bool,
}

impl ChatConversion {
    /// Rules of a vLLM version, such as `0.32.0`. Older versions than those compared with their code, and names
    /// that are no version, convert nothing.
    pub fn of_vllm(version: &str) -> ChatConversion {
        let Some(minor) = minor_version(version) else { return ChatConversion::default() };
        ChatConversion {
            messages: (minor >= 24).then_some(MessagesRules {
                inline_system: if minor >= 31 { InlineSystem::AsTemplateNeeds } else { InlineSystem::Merged },
                thinking: if minor >= 31 { Thinking::SetsEffort } else { Thinking::Ignored },
                cache_salt: if minor >= 27 { SaltEffect::Separates } else { SaltEffect::Ignored },
            }),
            responses: (minor >= 27).then_some(ResponsesRules {
                custom_tools: if minor >= 32 { CustomTools::Functions } else { CustomTools::Dropped },
            }),
        }
    }

    /// Whether the engine separates the caches of this API's requests by their `cache_salt`.
    pub fn honours_salt(&self, api: Api) -> bool {
        api != Api::Messages || self.messages.is_some_and(|rules| rules.cache_salt == SaltEffect::Separates)
    }

    /// The chat that the engine makes of a request.
    pub(crate) fn convert(
        &self,
        body: &Body<'_>,
        api: Api,
        traits: TemplateTraits,
    ) -> Result<ChatRequest, Unrendered> {
        match (api, self.messages, self.responses) {
            (Api::Messages, Some(rules), _) => messages::convert(&body.prompt, rules, traits),
            (Api::Responses, _, Some(rules)) => responses::convert(&body.prompt, rules),
            _ => Err(Unrendered::Api),
        }
    }
}

/// Minor version of a `0.MINOR` release. A later major version is not taken for vLLM's: other engines have such.
fn minor_version(version: &str) -> Option<u32> {
    let mut numbers = version.trim_start_matches('v').split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next()??, numbers.next()??) {
        (0, minor) => Some(minor),
        _ => None,
    }
}

impl ChatRequest {
    /// The chat's fields, with those of the original request that apply to its template.
    pub fn fields<'a>(&'a self, original: &PromptFields<'a>) -> PromptFields<'a> {
        let mut fields = PromptFields {
            // The API stays known: it decides the order of keys in tool calls.
            turns_key: original.turns_key,
            turns: Some(&self.messages),
            tools: self.tools.as_deref(),
            ..PromptFields::default()
        };
        fields.set("chat_template_kwargs", original.setting("chat_template_kwargs"));
        fields.set("reasoning_effort", self.effort.as_deref());
        if self.continues_last {
            fields.set("continue_final_message", Some(b"true"));
            fields.set("add_generation_prompt", Some(b"false"));
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_of_messages_separate_from_0_27_on() {
        for (version, separates) in [("0.24.0", false), ("0.26.1", false), ("0.27.0", true), ("0.32.0", true)]
        {
            let conversion = ChatConversion::of_vllm(version);
            assert_eq!(conversion.honours_salt(Api::Messages), separates, "{version}");
            assert!(
                conversion.honours_salt(Api::Chat) && conversion.honours_salt(Api::Responses),
                "{version}"
            );
        }
        assert!(!ChatConversion::default().honours_salt(Api::Messages));
    }

    #[test]
    fn rules_follow_the_version() {
        let rules = |version| {
            let ChatConversion { messages, responses } = ChatConversion::of_vllm(version);
            (messages.map(|rules| rules.inline_system), responses.map(|rules| rules.custom_tools))
        };
        use CustomTools::{Dropped, Functions};
        use InlineSystem::{AsTemplateNeeds, Merged};
        for (version, expected) in [
            ("0.23.0", (None, None)),
            ("0.24.0", (Some(Merged), None)),
            ("0.27.1", (Some(Merged), Some(Dropped))),
            ("0.31.0rc1", (Some(AsTemplateNeeds), Some(Dropped))),
            ("v0.32.0", (Some(AsTemplateNeeds), Some(Functions))),
            ("0.33.dev17+gabc", (Some(AsTemplateNeeds), Some(Functions))),
            ("1.2.0rc1", (None, None)),
            ("0.5.13", (None, None)),
            ("", (None, None)),
            ("main", (None, None)),
        ] {
            assert_eq!(rules(version), expected, "{version}");
        }
    }
}
