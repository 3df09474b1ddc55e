//! Only the top of a request's path knows the whole gateway. Each phase gets the part that it needs.

use std::path::Path;

/// The files below `crates/edge/gateway/src` that may name `Gateway`. The list may only shrink.
const TOP_OF_THE_PATH: [&str; 10] = [
    "admin/explain.rs",
    "admin/mod.rs",
    "admin/worker_api.rs",
    "admin/workers.rs",
    "dispatch.rs",
    "gateway.rs",
    "lib.rs",
    "pick_intake.rs",
    "release_tests.rs",
    "server.rs",
];

/// Whether the code names the type, outside of comments.
fn names_the_gateway(code: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.split(|c| !is_word(c))).any(|word| word == "Gateway")
}

#[test]
fn only_the_top_of_the_path_knows_the_whole_gateway() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("edge/gateway/src");
    let mut files = Vec::new();
    super::sources_below(&src, &mut files);
    assert!(files.len() > 100, "the sources were not found");
    let mut named: Vec<String> = files
        .iter()
        .filter(|file| names_the_gateway(&std::fs::read_to_string(file).unwrap()))
        .map(|file| file.strip_prefix(&src).unwrap().to_string_lossy().into_owned())
        .collect();
    named.sort();
    let new: Vec<_> = named.iter().filter(|file| !TOP_OF_THE_PATH.contains(&file.as_str())).collect();
    assert!(
        new.is_empty(),
        "{new:?} of the gateway name `Gateway`: take the part that this phase needs instead (`RequestReader`, \
         `AdmissionGate`, `Forwarding`, `LogSinks`, `FleetNotes`), or the router and the clock alone"
    );
    let gone: Vec<_> =
        TOP_OF_THE_PATH.iter().filter(|file| !named.iter().any(|name| name == *file)).collect();
    assert!(gone.is_empty(), "{gone:?} no longer name `Gateway`: remove them from TOP_OF_THE_PATH");
}

#[test]
fn a_longer_name_and_a_comment_do_not_count() {
    assert!(names_the_gateway("fn phase(gateway: &Arc<Gateway>) {"));
    assert!(names_the_gateway("use crate::{Config, Gateway};"));
    assert!(!names_the_gateway(
        "//! The `Gateway`.\nuse crate::gateway_error::GatewayError;\nEndedByGateway,"
    ));
}
