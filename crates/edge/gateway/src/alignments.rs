//! How engines write their prompts, by the families whose files agree.
//!
//! An engine is aligned when its model's files were found and it was seen to agree with them. Engines of one name need not
//! agree with each other: another folder, template or way of reading makes another family, and a request is written once for
//! each family that serves its model, because each is to be compared with its own format. Until then, and for requests
//! that cannot be followed, prompts are canonical and caches presumed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_router::{Family, Matching};

use crate::matching::ModelMatching;

/// Families of one model: each costs every request for it another rendering and another walk.
const FAMILIES_MAX: usize = 4;

/// An engine's model as its files describe it.
pub struct PromptFormat {
    /// The names under which it is asked for, its own first, then its adapters'.
    pub names: Vec<String>,
    /// The same for two engines exactly if their files and the way of reading them are the same.
    pub fingerprint: u64,
    /// How its prompts are compared.
    pub matching: ModelMatching,
}

/// Too many engines under one name that agree with nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "engines of model `{model}` write prompts in more than {FAMILIES_MAX} ways: give them the same tokenizer and chat template, \
     or another model name"
)]
pub struct TooManyFamilies {
    model: String,
}

/// One way of format a model's prompts.
#[derive(Clone)]
pub(crate) struct FamilyMatching {
    pub family: Family,
    pub matching: ModelMatching,
}

/// All engines that are aligned.
#[derive(Default)]
pub(crate) struct Alignments {
    groups: RwLock<Families>,
}

#[derive(Default)]
struct Families {
    /// Families that had to be numbered.
    begun: u64,
    groups: Vec<FamilyGroup>,
    /// What requests read.
    by_model: BTreeMap<String, Arc<[FamilyMatching]>>,
}

/// Engines that write alike.
struct FamilyGroup {
    format: FamilyMatching,
    fingerprint: u64,
    /// With the names of each.
    engines: BTreeMap<String, Vec<String>>,
}

impl Alignments {
    /// An engine joins the family that writes as it does, or begins one.
    pub(crate) fn join(&self, engine: &str, format: PromptFormat) -> Result<Matching, TooManyFamilies> {
        let mut groups = self.groups.write();
        groups.leave(engine);
        let joined = groups.join(engine, format);
        groups.rebuild_by_model();
        joined
    }

    /// An engine is not aligned any more. A family without engines is gone.
    pub(crate) fn leave(&self, engine: &str) {
        let mut groups = self.groups.write();
        groups.leave(engine);
        groups.rebuild_by_model();
    }

    /// How a model's prompts are written; `None` for one that is not aligned.
    pub(crate) fn for_model(&self, model: &str) -> Option<Arc<[FamilyMatching]>> {
        self.groups.read().by_model.get(model).cloned()
    }
}

impl Families {
    fn join(&mut self, engine: &str, format: PromptFormat) -> Result<Matching, TooManyFamilies> {
        let PromptFormat { names, fingerprint, matching } = format;
        let alike =
            self.groups.iter_mut().find(|group| group.fingerprint == fingerprint && group.serves_any(&names));
        if let Some(group) = alike {
            group.engines.insert(engine.to_owned(), names);
            return Ok(group.format.matching.of_family(&group.format.family));
        }
        let is_full =
            |name: &&String| self.by_model.get(*name).is_some_and(|formats| formats.len() >= FAMILIES_MAX);
        if let Some(model) = names.iter().find(is_full).cloned() {
            return Err(TooManyFamilies { model });
        }
        let family = self.name(names.first().map_or("", String::as_str), fingerprint);
        let joined = matching.of_family(&family);
        let engines = BTreeMap::from([(engine.to_owned(), names)]);
        self.groups.push(FamilyGroup { format: FamilyMatching { family, matching }, fingerprint, engines });
        Ok(joined)
    }

    /// By what its engines write, so that routers which tell each other what engines hold mean the same. One that still stands under that
    /// name, though it serves other models by now, is another.
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

    /// Writes down for readers who writes what.
    fn rebuild_by_model(&mut self) {
        let mut by_model: BTreeMap<String, Vec<FamilyMatching>> = BTreeMap::new();
        for group in &self.groups {
            let names: BTreeSet<&String> = group.engines.values().flatten().collect();
            for name in names {
                by_model.entry(name.clone()).or_default().push(group.format.clone());
            }
        }
        self.by_model = by_model.into_iter().map(|(name, formats)| (name, formats.into())).collect();
    }
}

impl FamilyGroup {
    fn serves_any(&self, names: &[String]) -> bool {
        self.engines.values().flatten().any(|name| names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::tests::byte_level;

    fn format(names: &[&str], fingerprint: u64) -> PromptFormat {
        PromptFormat {
            names: names.iter().map(ToString::to_string).collect(),
            fingerprint,
            matching: byte_level(),
        }
    }

    fn families(alignments: &Alignments, model: &str) -> usize {
        alignments.for_model(model).map_or(0, |formats| formats.len())
    }

    #[test]
    fn engines_that_agree_are_one_family_and_others_do_not_displace_it() {
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
        assert_eq!(join("a", &["m"], 1).family(), first.family(), "as every router names it");
    }

    #[test]
    fn an_engine_that_changed_its_files_leaves_its_old_family() {
        let alignments = Alignments::default();
        alignments.join("a", format(&["m"], 1)).unwrap();
        alignments.join("a", format(&["m"], 2)).unwrap();
        assert_eq!(families(&alignments, "m"), 1);
    }

    #[test]
    fn families_are_bounded() {
        let alignments = Alignments::default();
        for fingerprint in 0..FAMILIES_MAX as u64 {
            alignments.join(&format!("e{fingerprint}"), format(&["m"], fingerprint)).unwrap();
        }
        let refused = alignments.join("one more", format(&["m"], 99)).unwrap_err().to_string();
        assert!(refused.contains("model `m`"), "{refused}");
        alignments.join("like the first", format(&["m"], 0)).unwrap();
    }
}
