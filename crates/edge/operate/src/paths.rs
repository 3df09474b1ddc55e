//! Checks at startup that the files to be written later can be written.

use std::fs::{FileType, OpenOptions, metadata, remove_file};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::plan::Plan;

/// Fails if the state file or the handover socket cannot be created, or the path is something else.
pub fn check_paths<O>(plan: &Plan<O>) -> anyhow::Result<()> {
    let state = plan.process.state.as_deref().map_or(Ok(()), |path| check(path, FileType::is_file));
    state.context("state")?;
    let handover = plan.process.handover.as_deref().map_or(Ok(()), |path| check(path, FileType::is_socket));
    handover.context("handover")
}

/// The folder must exist. An existing path must have the right type, because opening a device or pipe may hang.
fn check(path: &Path, is_right: fn(&FileType) -> bool) -> anyhow::Result<()> {
    let shown = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let there =
        metadata(folder).with_context(|| format!("cannot create {shown}: no folder {}", folder.display()))?;
    anyhow::ensure!(there.is_dir(), "cannot create {shown}: {} is not a folder", folder.display());
    match metadata(path) {
        Ok(there) => anyhow::ensure!(is_right(&there.file_type()), "{shown} exists and has another type"),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot access {shown}")),
    }
    Ok(())
}

/// Fails if this process cannot write the state file.
pub fn check_state_is_writable<O>(plan: &Plan<O>) -> anyhow::Result<()> {
    plan.process.state.as_deref().map_or(Ok(()), try_to_create).context("state")
}

/// Creates a file beside `path` and removes it. Permissions alone do not tell whether that works: a file system may be
/// read-only. A full one is not noticed.
fn try_to_create(path: &Path) -> anyhow::Result<()> {
    let temporary = temporary(path);
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary) {
        Ok(_) => remove_file(&temporary),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
    .with_context(|| format!("cannot write {}", path.display()))
}

/// The file of this process that replaces `path` once it is complete.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(format!(".{}", std::process::id()));
    temporary.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_created_is_named_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("warmroute-places-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        std::fs::write(&file, "").unwrap();
        let state = |path: &Path| check(path, FileType::is_file).map_err(|error| format!("{error:#}"));
        assert_eq!(state(&file), Ok(()));
        assert_eq!(state(&folder.join("new")), Ok(()));
        assert_eq!(state(Path::new("warmroute-no-such-file")), Ok(()), "here");
        for (path, why) in [
            (folder.join("none/x"), "no folder"),
            (file.join("x"), "is not a folder"),
            (folder.clone(), "has another type"),
            ("/dev/null".into(), "has another type"),
        ] {
            let error = state(&path).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(check(&file, FileType::is_socket).is_err());
        try_to_create(&file).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left behind");
        // No process can create a file in /proc.
        assert!(try_to_create(Path::new("/proc/warmroute")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
