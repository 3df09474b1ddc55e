//! Earlier contents of a file: `FILE.20261117T044416.123456Z`, named by when they were set aside.
//!
//! A file is set aside when it is full or, for a trace, when a new process starts. Dated names never change, so a file
//! that is being read is not renamed again. The oldest ones are removed beyond a limit, so disk use is bounded.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use crate::utc_time::UtcTime;

/// Earlier files that are kept.
pub const EARLIER_FILES_MAX: usize = 9;

/// Renames a file that is not empty, and removes the oldest earlier files beyond [`EARLIER_FILES_MAX`]. Devices, pipes
/// and empty files stay as they are.
pub(crate) fn set_aside(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() && there.len() > 0 => {}
        _ => return Ok(()),
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(UtcTime::of(SystemTime::now()).file_suffix());
    fs::rename(path, &name)?;
    let mut earlier = earlier_files(path)?;
    let surplus = earlier.len().saturating_sub(EARLIER_FILES_MAX);
    for oldest in earlier.drain(..surplus) {
        fs::remove_file(&oldest)?;
        tracing::info!(file = %oldest.display(), kept = EARLIER_FILES_MAX, "removed the oldest earlier file");
    }
    Ok(())
}

/// The earlier files of a path, oldest first.
fn earlier_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(Vec::new()) };
    let mut earlier = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let other = entry.file_name();
        let suffix = other.to_str().and_then(|other| other.strip_prefix(name)?.strip_prefix('.'));
        if suffix.is_some_and(UtcTime::is_file_suffix) {
            earlier.push(entry.path());
        }
    }
    earlier.sort();
    Ok(earlier)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The earlier files of a path, oldest first.
    pub fn earlier(path: &Path) -> Vec<PathBuf> {
        earlier_files(path).unwrap()
    }

    #[test]
    fn the_oldest_files_go_and_other_files_stay() {
        let folder = std::env::temp_dir().join(format!("warmroute-earlier-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("log");
        for other in ["log.1", "log.gz", "log.20261117T044416.123456Z.gz", "logs.20261117T044416.123456Z"] {
            fs::write(folder.join(other), "other").unwrap();
        }
        for number in 0..EARLIER_FILES_MAX + 3 {
            fs::write(&file, number.to_string()).unwrap();
            set_aside(&file).unwrap();
            assert!(!file.exists());
            set_aside(&file).unwrap();
            fs::write(&file, "").unwrap();
            set_aside(&file).unwrap();
            assert!(file.exists(), "an empty file is not worth a place");
        }
        let kept: Vec<String> = earlier(&file).iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        let expected: Vec<String> = (3..EARLIER_FILES_MAX + 3).map(|number| number.to_string()).collect();
        assert_eq!(kept, expected);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), EARLIER_FILES_MAX + 5);
        fs::remove_dir_all(folder).unwrap();
    }
}
