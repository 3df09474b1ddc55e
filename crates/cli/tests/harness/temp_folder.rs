//! Files of a test.

use std::fs;
use std::path::PathBuf;

/// A folder that is removed after the test.
pub struct TempFolder(PathBuf);

impl TempFolder {
    pub fn new(name: &str) -> TempFolder {
        let folder = std::env::temp_dir().join(format!("warmroute-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        TempFolder(folder)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
