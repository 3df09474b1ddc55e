//! What systemd is told, where it wants to know (`NOTIFY_SOCKET`): that we are ready, read settings again, stop, and are alive.
//!
//! A datagram of `KEY=value` lines; nobody answers. By hand, because that is all there is to it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Somebody who wants to know, or nobody.
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Interval>,
}

impl Notify {
    /// Whom the environment names.
    pub fn from_env() -> Notify {
        let to = std::env::var("NOTIFY_SOCKET").ok().and_then(|name| open(&name));
        let every = watchdog(|name| std::env::var(name).ok(), std::process::id());
        let watchdog = every.filter(|_| to.is_some()).map(|every| {
            let mut interval = interval(every);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        Notify { to, watchdog }
    }

    /// Requests are served.
    pub fn ready(&self) {
        self.say("READY=1\nSTATUS=serving");
    }

    /// Settings are read again; [`Notify::ready`] is said when that is over.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let monotonic_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={monotonic_us}\nSTATUS=reading settings"));
    }

    /// Nothing new is taken.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=draining: requests under way end");
    }

    /// Says that we are alive, again and again, as long as this is polled: a runtime that hangs says nothing.
    pub async fn be_alive(&mut self) {
        match &mut self.watchdog {
            Some(watchdog) => {
                watchdog.tick().await;
                self.say("WATCHDOG=1");
            }
            None => std::future::pending().await,
        }
    }

    fn say(&self, what: &str) {
        if let Some((socket, to)) = &self.to
            && let Err(error) = socket.send_to_addr(what.as_bytes(), to)
        {
            tracing::warn!(%error, "systemd cannot be told");
        }
    }
}

/// A name that begins with @ is no file.
fn open(name: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let opened = address.and_then(|address| Ok((UnixDatagram::unbound()?, address)));
    opened.inspect_err(|error| tracing::warn!(%error, "systemd cannot be told")).ok()
}

/// How often to say that we are alive: twice in the time after which we would be taken for dead.
fn watchdog(env: impl Fn(&str) -> Option<String>, our_pid: u32) -> Option<Duration> {
    let limit_us: u64 = env("WATCHDOG_USEC")?.parse().ok()?;
    let is_for_us = env("WATCHDOG_PID").is_none_or(|pid| pid == our_pid.to_string());
    (is_for_us && limit_us > 1).then(|| Duration::from_micros(limit_us / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_ours_if_it_names_us_or_nobody() {
        let every = |usec: &str, pid: Option<&str>| {
            watchdog(
                |name| if name == "WATCHDOG_USEC" { Some(usec.to_owned()) } else { pid.map(str::to_owned) },
                7,
            )
        };
        assert_eq!(every("3000000", None), Some(Duration::from_millis(1_500)));
        assert_eq!(every("3000000", Some("7")), Some(Duration::from_millis(1_500)));
        assert_eq!((every("3000000", Some("8")), every("0", None), every("soon", None)), (None, None, None));
    }
}
