//! The command lines in docs/migrating.md, for users of other routers, are valid.

use crate::harness::process::run;
use crate::harness::temp_folder::TempFolder;
use rcgen::{CertificateParams, KeyPair};

const PAGE: &str = include_str!("../../../../docs/migrating.md");

/// The files that the command lines name, and their test paths.
fn files(folder: &TempFolder) -> [(&'static str, String); 4] {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["router".to_owned()]).unwrap().self_signed(&key).unwrap();
    [
        ("/etc/nginx/cert.pem", "cert.pem", cert.pem()),
        ("/etc/nginx/key.pem", "key.pem", key.serialize_pem()),
        ("/etc/warmroute/keys", "keys", "sk-alpha\n".to_owned()),
        ("/etc/warmroute/worker-key", "worker-key", "hush".to_owned()),
    ]
    .map(|(named, name, text)| {
        std::fs::write(folder.file(name), text).unwrap();
        (named, folder.file(name))
    })
}

#[test]
fn every_command_line_of_the_migration_guide_is_accepted() {
    let folder = TempFolder::new("migrating");
    let (files, empty) = (files(&folder), folder.file("empty.toml"));
    std::fs::write(&empty, "").unwrap();
    let lines: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("warmroute serve ")).collect();
    assert!(lines.len() >= 7, "{lines:#?}");
    for line in lines {
        let here =
            |word| files.iter().find(|(named, _)| *named == word).map_or(word, |(_, here)| here.as_str());
        let flags: Vec<&str> = line.split(' ').map(here).collect();
        let checked = run(&[&["check", &empty], &flags[..]].concat());
        assert!(checked.status.success(), "{line}: {}", String::from_utf8_lossy(&checked.stderr));
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        let workers = ["10.0.0.1", "engine.default.svc", "client-worker-api = \"open\""];
        assert!(workers.iter().any(|one| said.contains(one)), "{line}: {said}");
    }
}
