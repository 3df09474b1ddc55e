//! Checks the architecture: which crate may import which, and that the core stays pure.
//!
//! The test reads cargo's own metadata, so a dependency added to a Cargo.toml fails before any line uses it.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod circles;
mod whole_gateway;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Ring, crate, and the workspace crates that it may import. Every crate must be listed here.
const MAY_IMPORT: &[(&str, &str, &[&str])] = &[
    ("core", "types", &[]),
    ("core", "prompt", &["types"]),
    ("core", "index", &["types"]),
    ("core", "feed", &["types"]),
    ("core", "fleet", &["types"]),
    ("core", "policy", &["types"]),
    ("core", "admission", &["types"]),
    ("core", "peers", &["types", "admission"]),
    ("core", "prefixes", &["types", "prompt"]),
    ("core", "router", &["types", "prompt", "index", "feed", "fleet", "policy", "peers"]),
    ("edge", "discovery", &["types", "wire"]),
    ("edge", "zmtp", &[]),
    ("edge", "events", &["types", "feed", "zmtp"]),
    ("edge", "tokens", &["prompt"]),
    ("edge", "record", &["types", "prompt"]),
    ("edge", "wire", &["types"]),
    ("edge", "share", &["types", "wire"]),
    ("edge", "probe", &["types", "fleet", "policy", "router", "wire"]),
    (
        "edge",
        "gateway",
        &[
            "types",
            "admission",
            "prompt",
            "index",
            "fleet",
            "peers",
            "policy",
            "prefixes",
            "router",
            "tokens",
            "record",
            "otel",
            "wire",
        ],
    ),
    ("edge", "protobuf", &[]),
    ("edge", "otel", &["protobuf", "wire"]),
    ("edge", "picker", &["types", "gateway", "protobuf", "wire"]),
    (
        "edge",
        "follow",
        &[
            "types",
            "prompt",
            "fleet",
            "peers",
            "policy",
            "router",
            "discovery",
            "events",
            "gateway",
            "probe",
            "share",
            "tokens",
            "wire",
        ],
    ),
    (
        "edge",
        "operate",
        &[
            "types", "index", "policy", "router", "follow", "gateway", "otel", "picker", "probe", "record",
            "share", "wire",
        ],
    ),
    ("lab", "engine", &["types"]),
    (
        "lab",
        "sim",
        &["types", "prompt", "index", "feed", "fleet", "policy", "peers", "router", "admission", "engine"],
    ),
    ("lab", "report", &["sim"]),
    ("lab", "fuzz", &[]),
    ("lab", "replica", &["types", "engine", "zmtp"]),
];

/// External crates allowed below the core, at any depth: hashing, byte search, locks, epochs, error types, chat
/// templates, Unicode tables, and their dependencies. A crate that opens sockets or files, reads a clock or draws
/// random numbers must not be added, nor one that was not reviewed.
const PURE: &[&str] = &[
    "blake2",
    "block-buffer",
    "cfg-if",
    "crossbeam-epoch",
    "crossbeam-utils",
    "crypto-common",
    "cmov",
    "const-oid",
    "cpufeatures",
    "ctutils",
    "digest",
    "equivalent",
    "hashbrown",
    "hybrid-array",
    "indexmap",
    "libc",
    "lock_api",
    "memchr",
    "minijinja",
    "minijinja-contrib",
    "parking_lot",
    "parking_lot_core",
    "proc-macro2",
    "quote",
    "regex-syntax",
    "scopeguard",
    "sha2",
    "simdutf8",
    "smallvec",
    "syn",
    "thiserror",
    "thiserror-impl",
    "typenum",
    "unicode-ident",
    "unicode-normalization-alignments",
    "xxhash-rust",
];

/// Paths of the standard library that would make the core impure. Grouped imports are expanded before the search.
const IMPURE_WORDS: &[&str] = &[
    "std::net",
    "std::io",
    "std::os",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "RandomState",
    "HashMap::new",
    "HashMap::default",
    "HashSet::new",
    "println!",
    "eprintln!",
];

/// Cargo's metadata: the direct dependencies of each crate, and the ring of each workspace crate.
struct Graph {
    imports: BTreeMap<String, BTreeSet<String>>,
    rings: BTreeMap<String, String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// This machine's platform only, because crates for others are not downloaded.
fn metadata() -> Value {
    let version = printed_by("rustc", &["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let args = ["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", host];
    serde_json::from_str(&printed_by(env!("CARGO"), &args)).unwrap()
}

fn printed_by(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Graph {
    /// Normal dependencies only; tests may import more.
    fn read(metadata: &Value) -> Graph {
        let list = |value: &Value| value.as_array().unwrap().clone();
        let packages = list(&metadata["packages"]);
        let names: BTreeMap<&str, &str> = packages
            .iter()
            .map(|package| (package["id"].as_str().unwrap(), package["name"].as_str().unwrap()))
            .collect();
        let mut imports = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            // Fuzzing builds import more, but are not shipped.
            let ships = |kind: &Value| kind["kind"].is_null() && kind["target"] != "cfg(fuzzing)";
            let normal = |dep: &&Value| dep["dep_kinds"].as_array().unwrap().iter().any(ships);
            let deps = list(&node["deps"]);
            let deps = deps.iter().filter(normal).map(|dep| names[dep["pkg"].as_str().unwrap()].to_owned());
            imports.insert(names[node["id"].as_str().unwrap()].to_owned(), deps.collect());
        }
        let members = list(&metadata["workspace_members"]);
        let rings = packages.iter().filter(|package| members.contains(&package["id"])).map(|package| {
            let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned();
            let ring = folder.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
            (package["name"].as_str().unwrap().to_owned(), ring)
        });
        let rings = rings.collect();
        Graph { imports, rings }
    }

    /// All direct and indirect dependencies of a crate.
    fn below(&self, name: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open = vec![name.to_owned()];
        while let Some(next) = open.pop() {
            for dependency in self.imports.get(&next).into_iter().flatten() {
                if found.insert(dependency.clone()) {
                    open.push(dependency.clone());
                }
            }
        }
        found
    }

    /// All differences between the workspace and the table.
    fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, ring) in self.rings.iter().filter(|(name, _)| *name != "warmroute-cli") {
            let short = name.strip_prefix("warmroute-").unwrap_or(name);
            let Some((_, _, allowed)) = MAY_IMPORT.iter().find(|(r, c, _)| r == ring && *c == short) else {
                wrong.push(format!("{name} in crates/{ring} has no place in the table"));
                continue;
            };
            for import in &self.imports[name] {
                let ours = import.strip_prefix("warmroute-");
                if ours.is_some_and(|import| !allowed.contains(&import)) {
                    wrong.push(format!("{name} must not import {import}"));
                }
            }
            if ring == "core" {
                let outside = self.below(name).into_iter().filter(|below| !below.starts_with("warmroute-"));
                let unknown = outside.filter(|below| !PURE.contains(&below.as_str()));
                wrong.extend(unknown.map(|below| format!("{name} is core and must not reach {below}")));
            }
        }
        wrong
    }
}

#[test]
fn every_import_is_allowed_by_the_table() {
    assert_eq!(Graph::read(&metadata()).violations(), Vec::<String>::new());
}

#[test]
fn a_wrong_import_and_an_impure_core_are_detected() {
    let mut graph = Graph::read(&metadata());
    graph.imports.get_mut("warmroute-policy").unwrap().insert("warmroute-fleet".to_owned());
    graph.imports.get_mut("warmroute-types").unwrap().insert("tokio".to_owned());
    graph.rings.insert("warmroute-newcomer".to_owned(), "core".to_owned());
    graph.imports.insert("warmroute-newcomer".to_owned(), BTreeSet::new());
    let wrong = graph.violations();
    for expected in [
        "warmroute-policy must not import warmroute-fleet",
        "warmroute-types is core and must not reach tokio",
        "warmroute-router is core and must not reach tokio",
        "warmroute-newcomer in crates/core has no place in the table",
    ] {
        assert!(wrong.iter().any(|wrong| wrong == expected), "{expected}: {wrong:?}");
    }
}

/// Source files of the core, without their tests.
fn core_sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let mut open: Vec<PathBuf> = std::fs::read_dir(root().join("crates/core"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("src"))
        .collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs")
            && !path.to_string_lossy().ends_with("tests.rs")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            sources.push((path, written_out(&circles::code_of(&text))));
        }
    }
    sources
}

#[test]
fn code_after_an_import_for_tests_is_read() {
    let code =
        circles::code_of("#[cfg(test)]\nuse a;\nstd::fs::read();\n#[cfg(test)]\nmod tests {\nstd::net");
    assert!(code.contains("std::fs") && !code.contains("std::net"), "{code}");
}

/// The code, with `std::{a, b}` followed by `std::a std::b`.
fn written_out(code: &str) -> String {
    let mut all = code.to_owned();
    for group in code.split("std::{").skip(1) {
        let inner = group.split(';').next().unwrap();
        inner.split([',', '{']).for_each(|name| all.push_str(&format!("\nstd::{}", name.trim())));
    }
    all
}

#[test]
fn grouped_imports_are_seen() {
    assert!(written_out("use std::{\n    fs,\n    net::TcpStream,\n};").contains("std::net::TcpStream"));
}

#[test]
fn the_core_uses_no_clock_file_or_socket() {
    let sources = core_sources();
    assert!(sources.len() > 20, "the core was not found");
    for (path, code) in sources {
        for word in IMPURE_WORDS {
            assert!(!code.contains(word), "{} uses {word}", path.display());
        }
    }
}

/// Type names that every crate may define.
const SHARED_NAMES: &[&str] = &["Config", "ConfigError", "Error"];

/// The public types of a source file: name and file.
fn public_types(path: &Path, code: &str) -> Vec<(String, PathBuf)> {
    let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
    let name = |line: &str| {
        let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some((rest[..end].to_owned(), path.to_owned()))
    };
    code.lines().filter_map(name).collect()
}

fn sources_below(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => sources_below(&path, sources),
            path if path.extension().is_some_and(|extension| extension == "rs") => sources.push(path),
            _ => {}
        }
    }
}

#[test]
fn a_public_type_name_is_defined_once_per_ring() {
    for ring in ["core", "edge", "lab"] {
        let mut sources = Vec::new();
        for name in MAY_IMPORT.iter().filter(|(of, _, _)| *of == ring).map(|(_, name, _)| name) {
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            sources_below(&crates.join(ring).join(name).join("src"), &mut sources);
        }
        let mut defined: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
        for path in sources {
            let code = std::fs::read_to_string(&path).unwrap();
            for (name, path) in public_types(&path, &code) {
                defined.entry(name).or_default().insert(path);
            }
        }
        assert!(defined.len() > 50, "the types of {ring} were not found");
        let twice =
            defined.iter().filter(|(name, files)| files.len() > 1 && !SHARED_NAMES.contains(&name.as_str()));
        assert_eq!(twice.collect::<Vec<_>>(), [], "ring {ring}");
    }
}
