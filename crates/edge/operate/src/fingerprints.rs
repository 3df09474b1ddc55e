//! Fingerprints of the files behind a configuration, taken before the files are read.
//!
//! A file that changes in between then differs at the next check, and is read once too often. The reverse order could
//! miss the change and keep a revoked key valid: at startup, minutes may pass in between while a predecessor is
//! waited for.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// A hash of each file. `None`: the file cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprints(BTreeMap<PathBuf, Option<u64>>);

impl Fingerprints {
    /// Fingerprints the configuration file, before it is read.
    pub fn of(file: Option<&Path>) -> Fingerprints {
        Fingerprints(file.map(look).into_iter().collect())
    }

    /// Adds the files that options name, before a plan reads them.
    pub fn and_files(mut self, files: &[(&'static str, PathBuf)]) -> Fingerprints {
        self.0.extend(files.iter().map(|(_, file)| look(file)));
        self
    }

    /// Whether this file differs.
    pub(crate) fn differ_at(&self, file: &Path, before: &Fingerprints) -> bool {
        self.0.get(file) != before.0.get(file)
    }

    /// The keys of the files that have the same path as before, with different content.
    pub(crate) fn rotated_since(
        &self,
        before: &Fingerprints,
        files: &[(&'static str, PathBuf)],
    ) -> impl Iterator<Item = &'static str> {
        let is_rotated = |file: &PathBuf| before.0.contains_key(file) && self.differ_at(file, before);
        files.iter().filter(move |(_, file)| is_rotated(file)).map(|(key, _)| *key)
    }
}

fn look(file: &Path) -> (PathBuf, Option<u64>) {
    let fingerprint = |bytes: Vec<u8>| {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        hasher.finish()
    };
    (file.to_owned(), std::fs::read(file).ok().map(fingerprint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_new_content_is_rotated_and_a_new_path_is_not() {
        let folder = std::env::temp_dir().join(format!("warmroute-fingerprints-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (first, second) = (folder.join("first"), folder.join("second"));
        std::fs::write(&first, "a").unwrap();
        let before = Fingerprints::of(None).and_files(&[("tls-cert", first.clone())]);
        let files = [("tls-cert", first.clone()), ("tls-key", second.clone())];
        let rotated = |files| {
            let now = Fingerprints::default().and_files(files);
            now.rotated_since(&before, files).collect::<Vec<_>>()
        };
        assert_eq!(rotated(&files), [""; 0]);
        std::fs::write(&first, "b").unwrap();
        std::fs::write(&second, "c").unwrap();
        assert_eq!(rotated(&files), ["tls-cert"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
