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
        self.0.extend(named_by(options).map(|file| look(file)));
        self
    }

    /// Whether this file is not what it was.
    pub fn differ_at(&self, file: &Path, before: &Fingerprints) -> bool {
        self.0.get(file) != before.0.get(file)
    }
}

fn named_by(options: &Options) -> impl Iterator<Item = &PathBuf> {
    let security = &options.security;
    let named = [
        &security.api_keys_file,
        &security.admin_token_file,
        &security.worker_api_key_file,
        &security.tls_cert,
        &security.tls_key,
        &security.tls_client_ca,
        &security.admin_tls_cert,
        &security.admin_tls_key,
        &security.admin_tls_client_ca,
        &security.worker_tls_ca,
        &security.worker_tls_cert,
        &security.worker_tls_key,
    ];
    named.into_iter().flatten()
}

fn look(file: &Path) -> (PathBuf, Option<u64>) {
    let fingerprint = |bytes: Vec<u8>| {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        hasher.finish()
    };
    (file.to_owned(), std::fs::read(file).ok().map(fingerprint))
}
