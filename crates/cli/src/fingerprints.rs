//! Fingerprints of the files behind a configuration, taken before the files are read.
//!
//! A file that changes in between then differs at the next check, and is read once too often. The reverse order could
//! miss the change and keep a revoked key valid: at startup, minutes may pass in between while a predecessor is
//! waited for.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::options::Options;

/// A hash of each file. `None`: the file cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprints(BTreeMap<PathBuf, Option<u64>>);

impl Fingerprints {
    /// Fingerprints the configuration file, before it is read.
    pub fn of(file: Option<&Path>) -> Fingerprints {
        Fingerprints(file.map(look).into_iter().collect())
    }

    /// Adds the files that the options name, before a plan reads them.
    pub fn and_named_by(mut self, options: &Options) -> Fingerprints {
        self.0.extend(named_by(options).map(|(_, file)| look(file)));
        self
    }

    /// Whether this file differs.
    pub fn differ_at(&self, file: &Path, before: &Fingerprints) -> bool {
        self.0.get(file) != before.0.get(file)
    }

    /// The keys that name the same file as before, with different content.
    pub fn rotated_since(
        &self,
        before: &Fingerprints,
        options: &Options,
    ) -> impl Iterator<Item = &'static str> {
        let is_rotated = |file: &PathBuf| before.0.contains_key(file) && self.differ_at(file, before);
        let rotated = named_by(options).filter(|(_, file)| is_rotated(file));
        rotated.map(|(key, _)| key).collect::<Vec<_>>().into_iter()
    }
}

fn named_by(options: &Options) -> impl Iterator<Item = (&'static str, &PathBuf)> {
    let security = &options.security;
    let named = [
        ("api-keys-file", &security.api_keys_file),
        ("admin-token-file", &security.admin_token_file),
        ("worker-api-key-file", &security.worker_api_key_file),
        ("tls-cert", &security.tls_cert),
        ("tls-key", &security.tls_key),
        ("tls-client-ca", &security.tls_client_ca),
        ("admin-tls-cert", &security.admin_tls_cert),
        ("admin-tls-key", &security.admin_tls_key),
        ("admin-tls-client-ca", &security.admin_tls_client_ca),
        ("worker-tls-ca", &security.worker_tls_ca),
        ("worker-tls-cert", &security.worker_tls_cert),
        ("worker-tls-key", &security.worker_tls_key),
    ];
    named.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?)))
}

fn look(file: &Path) -> (PathBuf, Option<u64>) {
    let fingerprint = |bytes: Vec<u8>| {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        hasher.finish()
    };
    (file.to_owned(), std::fs::read(file).ok().map(fingerprint))
}
