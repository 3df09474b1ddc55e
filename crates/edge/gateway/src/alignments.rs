//! The prompt formats of engines, grouped into families with identical formats.
//!
//! An engine is aligned when its model's files were found and its tokenizer agrees with them. Engines that serve one
//! model may differ in folder, template or tokenizer; each variant is a family. A request is rendered once for each
//! family of its model, because a family's KV events can only be compared with its own format. Without alignment,
//! prompts are canonical and caches are presumed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_prompt::Attribution;
use warmroute_router::{Family, Matching};
use warmroute_tokens::parity::PresumedApi;

use crate::matching::ModelMatching;

/// Families per model. Each one costs every request another rendering and another index lookup.
const FAMILIES_MAX: usize = 4;

/// The prompt format of one engine's model.
pub struct PromptFormat {
    /// The model names: its own first, then its adapters'.
    pub names: Vec<String>,
    /// Equal for two engines exactly if their files and the way of reading them are equal.
    pub fingerprint: u64,
    /// How prompts are compared with KV events.
    pub matching: ModelMatching,
    /// APIs whose prompts are not compared.
    pub presumed_apis: Vec<PresumedApi>,
}

/// Too many different formats for one model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engines of model `{model}` have more than {FAMILIES_MAX} prompt formats: give them the same tokenizer and chat \
     template, or another model name"
)]
pub struct TooManyFamilies {
    model: String,
}

/// The prompt format of one family.
#[derive(Clone)]
pub(crate) struct FamilyMatching {
    pub family: Family,
    pub matching: ModelMatching,
}

/// The prompt formats of all aligned engines.
#[derive(Default)]
pub(crate) struct Alignments {
    groups: RwLock<Families>,
}

#[derive(Default)]
struct Families {
    /// Number of families whose names needed a suffix.
    begun: u64,
    groups: Vec<FamilyGroup>,
    /// The formats of each model, for requests.
    by_model: BTreeMap<String, Arc<[FamilyMatching]>>,
}

/// Engines with identical formats.
struct FamilyGroup {
    format: FamilyMatching,
    fingerprint: u64,
    engines: BTreeMap<String, AlignedEngine>,
}

/// An engine of a family.
struct AlignedEngine {
    /// The names of its models.
    names: Vec<String>,
    presumed_apis: Vec<PresumedApi>,
}

impl Alignments {
    /// Adds an engine to the family with its format, or starts one.
    pub(crate) fn join(&self, engine: &str, format: PromptFormat) -> Result<Matching, TooManyFamilies> {
        let mut groups = self.groups.write();
        groups.leave(engine);
        let joined = groups.join(engine, format);
        groups.rebuild_by_model();
        joined
    }

    /// Removes an engine. A family without engines is removed too.
    pub(crate) fn leave(&self, engine: &str) {
        let mut groups = self.groups.write();
        groups.leave(engine);
        groups.rebuild_by_model();
    }

    /// The APIs whose prompts are not compared with an engine's KV events; `None` if the engine is not aligned.
    pub(crate) fn presumed_apis(&self, engine: &str) -> Option<Vec<PresumedApi>> {
        let groups = self.groups.read();
        let aligned = groups.groups.iter().find_map(|group| group.engines.get(engine))?;
        Some(aligned.presumed_apis.clone())
    }

    /// What a model's engines do with Claude Code's attribution line. Engines that are not aligned are taken for ones
    /// that drop it, as vLLM does: a loss is not claimed without evidence.
    pub(crate) fn attribution(&self, model: &str) -> Attribution {
        let formats = self.for_model(model);
        let mut formats = formats.iter().flat_map(|formats| formats.iter());
        match formats.any(|format| format.matching.attribution() == Attribution::Kept) {
            true => Attribution::Kept,
            false => Attribution::Dropped,
        }
    }

    /// The formats of a model's prompts; `None` if no engine is aligned.
    pub(crate) fn for_model(&self, model: &str) -> Option<Arc<[FamilyMatching]>> {
        self.groups.read().by_model.get(model).cloned()
    }
}

impl Families {
    fn join(&mut self, engine: &str, format: PromptFormat) -> Result<Matching, TooManyFamilies> {
        let PromptFormat { names, fingerprint, matching, presumed_apis } = format;
        let alike =
            self.groups.iter_mut().find(|group| group.fingerprint == fingerprint && group.serves_any(&names));
        if let Some(group) = alike {
            group.engines.insert(engine.to_owned(), AlignedEngine { names, presumed_apis });
            return Ok(group.format.matching.of_family(&group.format.family));
        }
        let is_full =
            |name: &&String| self.by_model.get(*name).is_some_and(|formats| formats.len() >= FAMILIES_MAX);
        if let Some(model) = names.iter().find(is_full).cloned() {
            return Err(TooManyFamilies { model });
        }
        let family = self.name(names.first().map_or("", String::as_str), fingerprint);
        let joined = matching.of_family(&family);
        let engines = BTreeMap::from([(engine.to_owned(), AlignedEngine { names, presumed_apis })]);
        self.groups.push(FamilyGroup { format: FamilyMatching { family, matching }, fingerprint, engines });
        Ok(joined)
    }

    /// A family's name. It derives from the format, so that all routers use the same name. A suffix distinguishes it
    /// from a family of the same name that serves other models by now.
    fn name(&mut self, first: &str, fingerprint: u64) -> Family {
        let family = Family::new(&format!("{first}#{fingerprint:016x}"));
        if !self.groups.iter().any(|group| group.format.family == family) {
            return family;
        }
        self.begun += 1;
        Family::new(&format!("{family}#{}", self.begun))
    }

    fn leave(&mut self, engine: &str) {
        self.groups.iter_mut().for_each(|group| _ = group.engines.remove(engine));
        self.groups.retain(|group| !group.engines.is_empty());
    }

    /// Rebuilds the table that requests read.
    fn rebuild_by_model(&mut self) {
        let mut by_model: BTreeMap<String, Vec<FamilyMatching>> = BTreeMap::new();
        for group in &self.groups {
            let names: BTreeSet<&String> = group.engines.values().flat_map(|engine| &engine.names).collect();
            for name in names {
                by_model.entry(name.clone()).or_default().push(group.format.clone());
            }
        }
        self.by_model = by_model.into_iter().map(|(name, formats)| (name, formats.into())).collect();
    }
}

impl FamilyGroup {
    fn serves_any(&self, names: &[String]) -> bool {
        self.engines.values().flat_map(|engine| &engine.names).any(|name| names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::tests::{byte_level, byte_level_chats};
    use warmroute_prompt::ChatConversion;

    fn format(names: &[&str], fingerprint: u64) -> PromptFormat {
        PromptFormat {
            names: names.iter().map(ToString::to_string).collect(),
            fingerprint,
            matching: byte_level(),
            presumed_apis: Vec::new(),
        }
    }

    fn families(alignments: &Alignments, model: &str) -> usize {
        alignments.for_model(model).map_or(0, |formats| formats.len())
    }

    #[test]
    fn engines_with_the_same_format_form_a_family_beside_others() {
        let alignments = Alignments::default();
        let join = |engine, names: &[&str], fingerprint| {
            alignments.join(engine, format(names, fingerprint)).unwrap()
        };
        let first = join("a", &["m", "adapter"], 1);
        assert_eq!(join("b", &["host-b", "m"], 1).family(), first.family());
        assert_ne!(join("c", &["m"], 2).family(), first.family(), "another template");
        assert_ne!(
            join("d", &["n"], 1).family(),
            first.family(),
            "another model, though its files are the same"
        );
        assert_eq!(families(&alignments, "m"), 2);
        assert_eq!(families(&alignments, "adapter"), 1);
        alignments.leave("c");
        assert_eq!(families(&alignments, "m"), 1);
        ["a", "b"].into_iter().for_each(|engine| alignments.leave(engine));
        assert_eq!((families(&alignments, "m"), families(&alignments, "n")), (0, 1));
        assert_eq!(join("a", &["m"], 1).family(), first.family(), "the name derives from the format");
    }

    #[test]
    fn an_attribution_line_is_kept_where_an_engine_is_not_known_to_drop_it() {
        let alignments = Alignments::default();
        let join = |engine, fingerprint, version| {
            let matching = byte_level_chats(ChatConversion::of_vllm(version));
            let format = PromptFormat { matching, ..format(&["m"], fingerprint) };
            alignments.join(engine, format).unwrap();
            alignments.attribution("m")
        };
        assert_eq!(alignments.attribution("m"), Attribution::Dropped, "nothing is known");
        assert_eq!(join("vllm", 1, "0.32.0"), Attribution::Dropped);
        assert_eq!(join("sglang", 2, "0.5.13"), Attribution::Kept);
        assert_eq!(alignments.attribution("other"), Attribution::Dropped);
    }

    #[test]
    fn an_engine_with_changed_files_leaves_its_old_family() {
        let alignments = Alignments::default();
        alignments.join("a", format(&["m"], 1)).unwrap();
        alignments.join("a", format(&["m"], 2)).unwrap();
        assert_eq!(families(&alignments, "m"), 1);
    }

    #[test]
    fn the_number_of_families_is_bounded() {
        let alignments = Alignments::default();
        for fingerprint in 0..FAMILIES_MAX as u64 {
            alignments.join(&format!("e{fingerprint}"), format(&["m"], fingerprint)).unwrap();
        }
        let refused = alignments.join("one more", format(&["m"], 99)).unwrap_err().to_string();
        assert!(refused.contains("model `m`"), "{refused}");
        alignments.join("like the first", format(&["m"], 0)).unwrap();
    }
}
