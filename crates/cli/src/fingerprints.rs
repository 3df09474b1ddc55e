//! What the files were like on which a configuration rests, from before they were read.
//!
//! In this order, one that changes in between looks changed ever after, and is read once too often. In the other it would look as it was
//! read, and a key that was revoked meanwhile would stay good: at the start a predecessor may be waited for in between, for minutes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::options::Options;

/// A fingerprint of each file, so that what is in it need not be kept; `None`: it cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprints(BTreeMap<PathBuf, Option<u64>>);

impl Fingerprints {
    /// Of the configuration file, which is to be read after this.
    pub fn of(file: Option<&Path>) -> Fingerprints {
        Fingerprints(file.map(look).into_iter().collect())
    }

    /// And of the files that these options name, of which a plan is to be made after this.
    pub fn and_named_by(mut self, options: &Options) -> Fingerprints {
        self.0.extend(named_by(options).map(|(_, file)| look(file)));
        self
    }

    /// Whether this file is not what it was.
    pub fn differ_at(&self, file: &Path, before: &Fingerprints) -> bool {
        self.0.get(file) != before.0.get(file)
    }

    /// The keys of these options that name a file as before, in which something else is now.
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
