//! Files of a test.

use std::fs;
use std::path::PathBuf;

/// A folder that is gone when the test is over.
pub struct Scrap(PathBuf);

impl Scrap {
    pub fn new(name: &str) -> Scrap {
        let folder = std::env::temp_dir().join(format!("warmroute-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Scrap(folder)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scrap {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
