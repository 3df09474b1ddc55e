//! How a server is started: as it is, or under callgrind, which counts its instructions.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::Process;

/// How a server is started.
pub enum Launch {
    /// As it is.
    Plain,
    /// Under valgrind's callgrind, which writes counts to files whose names begin with this path.
    Callgrind {
        /// The beginning of the path.
        out: PathBuf,
    },
}

impl Launch {
    /// Starts a command; its stderr goes to the log.
    pub fn start<S: AsRef<OsStr>>(&self, program: &Path, args: &[S], log: PathBuf) -> io::Result<Process> {
        let Launch::Callgrind { out } = self else { return Process::start(program, args, log) };
        let out = format!("--callgrind-out-file={}", out.display());
        let mut words = ["--tool=callgrind", "--fair-sched=yes", &out].map(OsStr::new).to_vec();
        words.push(program.as_os_str());
        words.extend(args.iter().map(AsRef::as_ref));
        Process::start(Path::new("valgrind"), &words, log)
    }
}

/// Sets the counts of a process under callgrind to zero.
pub fn zero_counts(pid: u32) -> io::Result<()> {
    control("--zero", pid)
}

/// Instructions that a process under callgrind has executed since the last reset; `dump` is the number of such calls
/// for this process, this one included.
pub fn count_instructions(pid: u32, out: &Path, dump: usize) -> Result<u64, Box<dyn std::error::Error>> {
    control("--dump", pid)?;
    let path = format!("{}.{dump}", out.display());
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    totals.and_then(|count| count.trim().parse().ok()).ok_or_else(|| format!("{path} has no totals").into())
}

fn control(verb: &str, pid: u32) -> io::Result<()> {
    let mut command = Command::new("callgrind_control");
    let status =
        command.args([verb, &pid.to_string()]).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("callgrind_control {verb} failed"))) }
}
