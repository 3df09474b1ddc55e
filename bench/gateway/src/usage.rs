//! CPU time, memory and open files of a process and all its descendants, from /proc.
//!
//! Some proxies are one process with threads, others a parent with workers; the whole family is what a user pays for.

use std::fs;
use std::io;

/// Linux gives CPU time to user space in hundredths of a second on every architecture this runs on.
const TICK_US: u64 = 10_000;

/// What a family of processes has used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time since the processes began.
    pub cpu_us: u64,
    /// Resident memory now.
    pub rss_bytes: u64,
    /// Open files and sockets now.
    pub files: usize,
}

impl Usage {
    /// Of this process and its descendants.
    pub fn of_family(pid: u32) -> io::Result<Usage> {
        let mut whole = Usage::default();
        for member in family(pid)? {
            // A member may end between being listed and being read; the head of the family may not.
            match (stat(member), member == pid) {
                (Ok(stat), _) => whole.cpu_us += stat.cpu_us,
                (Err(error), true) => return Err(error),
                (Err(_), false) => continue,
            }
            whole.rss_bytes += rss_bytes(member).unwrap_or(0);
            whole.files += fs::read_dir(format!("/proc/{member}/fd")).map_or(0, Iterator::count);
        }
        Ok(whole)
    }
}

/// This process and all its descendants, parents first.
pub fn family(pid: u32) -> io::Result<Vec<u32>> {
    let all: Vec<(u32, u32)> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid).ok()?.parent)))
        .collect();
    let mut members = vec![pid];
    let mut next = 0;
    while next < members.len() {
        let parent = members[next];
        members.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(members)
}

struct Stat {
    parent: u32,
    cpu_us: u64,
}

fn stat(pid: u32) -> io::Result<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {text}")))
}

/// The command's name is in parentheses and may hold anything, so fields are counted from the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some(Stat { parent: fields.get(1)?.parse().ok()?, cpu_us: (ticks(11)? + ticks(12)?) * TICK_US })
}

fn rss_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_no_trouble() {
        let text = "42 (a) b) c) S 7 42 42 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1 0 100 1 1";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.parent, stat.cpu_us), (7, 2_000_000));
    }

    #[test]
    fn a_child_belongs_to_the_family_and_its_memory_counts() {
        let alone = Usage::of_family(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let members = family(std::process::id()).unwrap();
        assert!(members.contains(&child.id()));
        assert!(alone.rss_bytes > 0 && alone.files > 2);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
