//! No file of a crate imports another one that imports it, over however many files.
//!
//! A submodule may import from its ancestors: together they count as one unit. What `pub use` hands on counts as
//! imported from the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module's path within its crate. The crate's root is empty.
type Module = Vec<String>;

/// The modules of a crate and their code, without comments and tests.
struct Sources(BTreeMap<Module, String>);

impl Sources {
    fn read(src: &Path) -> Sources {
        let mut files = Vec::new();
        super::sources_below(src, &mut files);
        let module = |file: &PathBuf| {
            let path = file.strip_prefix(src).unwrap().with_extension("");
            let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if ["mod", "lib", "main"].contains(&module.last().unwrap().as_str()) {
                module.pop();
            }
            (module, code_of(&std::fs::read_to_string(file).unwrap()))
        };
        Sources(files.iter().filter(|file| !file.ends_with("tests.rs")).map(module).collect())
    }

    /// The module that a path names, and the name within it.
    fn resolve(&self, from: &Module, path: &str) -> Option<(Module, String)> {
        let mut parts = path.split("::").map(str::trim).peekable();
        let mut module = match *parts.peek()? {
            "crate" => Module::new(),
            "self" | "super" => from.clone(),
            child if self.0.contains_key(&below(from, child)) => from.clone(),
            _ => return None,
        };
        while let Some(part) = parts.next_if(|part| ["crate", "self", "super"].contains(part)) {
            if part == "super" {
                module.pop();
            }
        }
        while let Some(part) = parts.next_if(|part| self.0.contains_key(&below(&module, part))) {
            module.push(part.to_owned());
        }
        Some((module, parts.next().unwrap_or_default().to_owned()))
    }

    /// What modules hand on by `pub use`: module and name, to module and name.
    fn handed_on(&self) -> BTreeMap<(Module, String), (Module, String)> {
        let mut handed_on = BTreeMap::new();
        for (module, code) in &self.0 {
            for path in imports(code, true).iter().filter_map(|path| self.resolve(module, path)) {
                handed_on.insert((module.clone(), path.1.clone()), path);
            }
        }
        handed_on
    }

    /// The modules that each module imports, without its parents.
    fn arrows(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let handed_on = self.handed_on();
        let mut arrows = BTreeMap::new();
        for (module, code) in &self.0 {
            let paths = imports(code, false).into_iter().chain(paths_in(code));
            let mut imported = BTreeSet::new();
            for mut found in paths.filter_map(|path| self.resolve(module, &path)) {
                while let Some(further) = handed_on.get(&found).filter(|further| **further != found) {
                    found = further.clone();
                }
                if !module.starts_with(&found.0) {
                    imported.insert(found.0);
                }
            }
            arrows.insert(module.clone(), imported);
        }
        arrows
    }
}

fn below(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

pub fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths of all `use` items: of those that hand names on, or of the others.
fn imports(code: &str, handed_on: bool) -> Vec<String> {
    let mut paths = Vec::new();
    for line in code.split(';') {
        let item = line.trim_start_matches(|c| c != '\n').trim_start();
        let item = if line.trim_start().starts_with("use ") { line.trim_start() } else { item };
        let (is_public, item) = match item.strip_prefix("pub ").or(item.strip_prefix("pub(crate) ")) {
            Some(item) => (true, item),
            None => (
                item.starts_with("pub("),
                item.split_once(") ").map_or(
                    item,
                    |(before, rest)| {
                        if before.starts_with("pub(") { rest } else { item }
                    },
                ),
            ),
        };
        if let Some(tree) = item.strip_prefix("use ").filter(|_| is_public == handed_on) {
            expand("", tree, &mut paths);
        }
    }
    paths
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap().trim();
        return paths.push(format!("{prefix}{path}"));
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (prefix, mut depth, mut start) = (format!("{prefix}{}", head.trim()), 0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&prefix, &inner[start..at], paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inner[start..].trim().is_empty() {
        expand(&prefix, &inner[start..], paths);
    }
}

/// Paths from `crate::` or `super::` in the code itself.
fn paths_in(code: &str) -> Vec<String> {
    let starts = code.match_indices("crate::").chain(code.match_indices("super::")).map(|(at, _)| at);
    let path = |at: usize| {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        code[at..].split(|c| !is_path(c)).next().unwrap().trim_end_matches(':').to_owned()
    };
    starts.map(path).collect()
}

/// A circle among the arrows, if there is one.
fn circle(arrows: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    fn walk<'a>(
        at: &'a Module,
        arrows: &'a BTreeMap<Module, BTreeSet<Module>>,
        way: &mut Vec<&'a Module>,
        done: &mut BTreeSet<&'a Module>,
    ) -> Option<Vec<Module>> {
        if let Some(start) = way.iter().position(|module| *module == at) {
            return Some(way[start..].iter().map(|module| (*module).clone()).collect());
        }
        if !done.insert(at) {
            return None;
        }
        way.push(at);
        let found = arrows.get(at).into_iter().flatten().find_map(|next| walk(next, arrows, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    arrows.keys().find_map(|module| walk(module, arrows, &mut Vec::new(), &mut done))
}

#[test]
fn no_files_import_each_other() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let rings = ["core", "edge", "lab"].map(|ring| crates.join(ring));
    let folders =
        rings.iter().flat_map(|ring| std::fs::read_dir(ring).unwrap().map(|entry| entry.unwrap().path()));
    let (mut read, mut circles, mut hidden) = (0, Vec::new(), Vec::new());
    for folder in folders.chain([crates.join("cli")]) {
        let sources = Sources::read(&folder.join("src"));
        read += sources.0.len();
        let in_macro = |line: &&str| line.trim_start().starts_with("pub use ") && line.contains('$');
        hidden.extend(sources.0.values().flat_map(|code| code.lines()).filter(in_macro).map(str::to_owned));
        let found = circle(&sources.arrows());
        let found = found.map(|circle| circle.iter().map(|module| module.join("::")).collect::<Vec<_>>());
        circles.extend(found.map(|circle| format!("{}: {}", folder.display(), circle.join(" -> "))));
    }
    assert_eq!(hidden, [""; 0], "what a macro hands on is not seen here: write it outside");
    assert_eq!(circles, [""; 0], "each of these files imports the next, and the last the first");
    assert!(read > 300, "the sources were not found");
}

#[test]
fn a_circle_is_found_through_what_is_handed_on() {
    let of = |files: &[(&str, &str)]| {
        let module =
            |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        circle(&Sources(files.iter().map(|(name, code)| (module(name), code_of(code))).collect()).arrows())
    };
    let root = ("", "mod a;\nmod b;\npub use a::A;\npub(crate) use b::{B, other};\n");
    let a = ("a", "use std::fmt;\nuse crate::{\n    B,\n};\npub struct A;");
    assert!(of(&[root, a, ("b", "use crate::A;\n")]).is_some());
    assert!(of(&[root, a, ("b", "fn f() -> crate::a::A { todo!() }\n")]).is_some());
    assert!(
        of(&[root, a, ("b", "//! See crate::A.\n#[cfg(test)]\nmod tests {\n    use crate::A;\n}")]).is_none()
    );
    assert!(of(&[root, ("a", "mod c;\nuse c::C;"), ("a::c", "use super::A;\n")]).is_none(), "a parent");
    let over_a_parent = [
        ("", "mod options;\nmod security;\n"),
        ("options", "mod groups;\nmod settings;\npub use groups::{Events, Security};\n"),
        ("options::groups", "use super::settings::Settings;\n"),
        ("options::settings", "use crate::security::TlsSettings;\n"),
        ("security", "use crate::options::{Events, Security};\n"),
    ];
    assert!(of(&over_a_parent).is_some());
    assert!(of(&over_a_parent[..3]).is_none());
}
