//! `warmroute doctor` on healthy and unhealthy engines.

use crate::harness::client::get;
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::redis::RedisServer;
use crate::harness::temp_folder::TempFolder;

fn scratch(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"))
}

/// The output, and whether the exit status was 0.
fn doctor(flags: &[&str]) -> (String, bool) {
    let done = run(&[&["doctor"], flags].concat());
    (String::from_utf8_lossy(&done.stdout).into_owned(), done.status.success())
}

fn publishing(folder: &str, more: &[&str]) -> Process {
    let flags = ["--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0", "--write-model", folder];
    engine(&[&flags[..], more].concat())
}

#[test]
fn a_healthy_engine_has_no_findings() {
    let folder = scratch("doctor-well");
    let one = publishing(&folder, &[]);
    let (said, is_content) = doctor(&["--worker-urls", one.url(), "--model-path", &folder]);
    for word in [
        "serves llama-3.1-8b",
        "a cache of",
        "KV events are published at",
        "KV events are replayed at",
        "compared in bytes",
        "answers report cached tokens",
        "the clocks of the engine and of this machine agree",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(is_content && !said.contains("BAD"), "{said}");
}

#[test]
fn a_missing_feature_is_named_with_the_flag_that_enables_it() {
    let folder = scratch("doctor-blind");
    let (mute, blind) = (engine(&[]), publishing(&folder, &["--prompt-tokens-details", "off"]));
    let (said, is_content) = doctor(&["--worker-urls", mute.url(), blind.url(), "--model-path", &folder]);
    assert!(is_content, "nothing of it is broken: {said}");
    for word in ["publishes no KV events", "--kv-events-config", "--enable-prompt-tokens-details"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_dead_engine_is_a_trouble_and_the_others_are_checked_as_well() {
    let alive = engine(&[]);
    let (said, is_content) = doctor(&["--worker-urls", "http://127.0.0.1:1", alive.url()]);
    assert!(
        !is_content && said.contains("the engine does not answer") && said.contains("serves llama-3.1-8b"),
        "{said}"
    );
}

#[test]
fn a_key_that_the_engine_requires_is_named() {
    let (engine, folder) = (engine(&[]), TempFolder::new("doctor-keys"));
    let keys = folder.file("keys");
    std::fs::write(&keys, "sk-alpha\n").unwrap();
    let guarded = Gateway::over(&[engine.url()], &["--api-keys-file", &keys]);
    let (said, is_content) = doctor(&[guarded.url()]);
    assert!(!is_content && said.contains("requires an API key: set --worker-api-key"), "{said}");
    let (said, is_content) = doctor(&[guarded.url(), "--worker-api-key", "sk-beta"]);
    assert!(!is_content && said.contains("refuses the key of --worker-api-key"), "{said}");
}

#[test]
fn ranks_that_an_engine_does_not_have_are_a_trouble() {
    let (one, two) = (engine(&[]), engine(&["--ranks", "2"]));
    let (said, is_content) = doctor(&[one.url(), "--dp-size", "2"]);
    assert!(
        !is_content && said.contains("the engine has no data-parallel rank 1, but 2 ranks are configured"),
        "{said}"
    );
    assert!(!said.contains("cannot be compared"), "it publishes no events: {said}");
    let (said, is_content) = doctor(&[two.url(), "--dp-size", "2"]);
    assert!(is_content, "{said}");
}

#[test]
fn without_workers_there_is_nothing_to_check() {
    let (said, is_content) = doctor(&[]);
    assert!(!is_content && said.contains("names no workers"), "{said}");
}

/// Secret and certificate files of a mesh, and flags to use them.
fn secrets(folder: &TempFolder) -> [String; 2] {
    ["ours", "theirs"].map(|name| {
        let file = folder.file(name);
        std::fs::write(&file, format!("the secret of these routers: {name}\n")).unwrap();
        file
    })
}

fn mesh<'a>(secret: &'a str, peers: &[&'a str]) -> Vec<&'a str> {
    let flags = ["--share", "mesh", "--share-secret-file", secret, "--mesh-listen", "127.0.0.1:0"];
    let peers = if peers.is_empty() { Vec::new() } else { [&["--mesh-peers"], peers].concat() };
    [&flags[..], &peers].concat()
}

#[test]
fn mesh_peers_are_probed_without_joining() {
    let (engine, folder) = (engine(&[]), TempFolder::new("doctor-mesh"));
    let [ours, theirs] = secrets(&folder);
    let running = Gateway::over(&[engine.url()], &mesh(&ours, &[]));
    let page = || get(running.admin(), "/peers").json();
    let at = page()["transport"]["listening"].as_str().unwrap().to_owned();
    let visit = |secret: &str, peers: &[&str]| {
        doctor(&[&["--worker-urls", engine.url(), "--requests", "off"], &mesh(secret, peers)[..]].concat())
    };
    let (said, is_content) = visit(&ours, &[at.as_str(), "127.0.0.1:1"]);
    assert!(is_content && said.contains("has our secret and speaks version"), "{said}");
    assert!(
        said.contains("127.0.0.1:1: unreachable") && said.contains("one reachable router is enough"),
        "{said}"
    );
    let (said, is_content) = visit(&ours, &["127.0.0.1:1"]);
    assert!(!is_content && said.contains("BAD") && said.contains("the first router"), "{said}");
    assert_eq!(page()["peers"], serde_json::json!([]));
    assert_eq!(page()["transport"]["refused"], 0);
    assert_eq!(page()["transport"]["troubles"], serde_json::json!([]));
    let (said, is_content) = visit(&theirs, &[at.as_str()]);
    assert!(
        !is_content && said.contains("its secret differs") && said.contains("--share-secret-file"),
        "{said}"
    );
    let admin = running.admin().strip_prefix("http://").unwrap().to_owned();
    let (said, is_content) = visit(&ours, &[admin.as_str()]);
    assert!(!is_content && said.contains("mesh-listen"), "{said}");
}

#[test]
fn a_secret_that_all_users_can_read_is_noted() {
    use std::os::unix::fs::PermissionsExt;
    let (engine, folder) = (engine(&[]), TempFolder::new("doctor-exposed"));
    let [ours, _] = secrets(&folder);
    for (mode, is_noted) in [(0o644, true), (0o640, false)] {
        std::fs::set_permissions(&ours, std::fs::Permissions::from_mode(mode)).unwrap();
        let flags = ["--worker-urls", engine.url(), "--requests", "off"];
        let (said, is_content) = doctor(&[&flags[..], &mesh(&ours, &[])].concat());
        assert!(is_content && said.contains("can read") == is_noted, "{mode:o}: {said}");
    }
}

#[test]
fn a_redis_server_is_probed_and_its_routers_are_listed() {
    let (engine, folder) = (engine(&[]), TempFolder::new("doctor-redis"));
    let [ours, theirs] = secrets(&folder);
    let Some(server) = RedisServer::start() else { return };
    let url = server.url();
    let flags = |secret| ["--share", url.as_str(), "--share-secret-file", secret];
    let visit = |secret| {
        doctor(&[&["--worker-urls", engine.url(), "--requests", "off"], &flags(secret)[..]].concat())
    };
    let (said, is_content) = visit(&ours);
    assert!(
        is_content
            && said.contains(":* are received")
            && said.contains("no other router has announced itself"),
        "{said}"
    );
    let running = Gateway::over(&[engine.url()], &flags(&ours));
    eventually("it is heard", || visit(&ours).0.contains("1 other router(s) with our secret").then_some(()));
    let page = get(running.admin(), "/peers").json();
    assert_eq!(
        (&page["peers"], &page["transport"]["troubles"]),
        (&serde_json::json!([]), &serde_json::json!([]))
    );
    let (said, is_content) = visit(&theirs);
    assert!(
        !is_content && said.contains("with another secret") && said.contains("--share-redis-prefix"),
        "{said}"
    );
    let http = engine.url().replace("http://", "redis://");
    let flags =
        ["--worker-urls", engine.url(), "--requests", "off", "--share", &http, "--share-secret-file", &ours];
    let (said, is_content) = doctor(&flags);
    assert!(!is_content && said.contains("an HTTP server answers instead of Redis"), "{said}");
}
