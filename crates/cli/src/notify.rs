//! What systemd is told, where it wants to know (`NOTIFY_SOCKET`): that we are ready, read settings again, stop, and are alive.
//!
//! A datagram of `KEY=value` lines; nobody answers. By hand, because that is all there is to it.
//!
//! A service is followed by its main process. Whoever is succeeded says who that is from now on, because systemd may listen to nobody else
//! (`NotifyAccess=main`), and then nothing more: not that the service stops, and no sign of life in another's name.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::handover::{Estate, Process};

/// Somebody who wants to know, or nobody.
#[derive(Default)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Interval>,
    /// What it was told itself.
    name: Option<String>,
    watchdog_us: Option<u64>,
}

impl Notify {
    /// Whom the environment names.
    pub fn from_env() -> Notify {
        let watchdog_us = watchdog_us(|name| std::env::var(name).ok(), std::process::id());
        Notify::of(std::env::var("NOTIFY_SOCKET").ok(), watchdog_us)
    }

    fn of(name: Option<String>, watchdog_us: Option<u64>) -> Notify {
        // 0 is no watchdog, whoever says so; and of 1 there is no half.
        let watchdog_us = watchdog_us.filter(|us| *us > 1);
        let to = name.as_deref().and_then(open);
        let watchdog = watchdog_us.filter(|_| to.is_some()).map(|us| {
            // Twice in the time after which we would be taken for dead.
            let mut interval = interval(Duration::from_micros(us / 2));
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        Notify { to, watchdog, name, watchdog_us }
    }

    /// What whoever takes our place must know to go on telling.
    pub fn estate(&self) -> Estate {
        Estate { notify: self.name.clone(), watchdog_us: self.watchdog_us, ..Estate::default() }
    }

    /// We are the service's main process now. Whoever was it knows where to say so, and how often, should we not have been told.
    pub fn take_over(&mut self, from: Estate) {
        let name = self.name.take().or(from.notify);
        *self = Notify::of(name, self.watchdog_us.or(from.watchdog_us));
        self.say(&format!("MAINPID={}", std::process::id()));
    }

    /// Another process is it, and says everything else.
    pub fn hand_over(&mut self, to: Process) {
        match to.id {
            Some(id) => self.say(&format!("MAINPID={id}\nSTATUS=process {id} serves; this one is draining")),
            None => tracing::debug!("the new process notifies systemd"),
        }
        *self = Notify::default();
    }

    /// Requests are served.
    pub fn ready(&self) {
        self.say("READY=1\nSTATUS=serving");
    }

    /// Settings are read again; [`Notify::ready`] is said when that is over.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let monotonic_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={monotonic_us}\nSTATUS=reloading the configuration"));
    }

    /// Nothing new is taken.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=draining");
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
            tracing::warn!(%error, "cannot notify systemd");
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
    opened.inspect_err(|error| tracing::warn!(%error, "cannot notify systemd")).ok()
}

/// After how long a silence we would be taken for dead.
fn watchdog_us(env: impl Fn(&str) -> Option<String>, our_pid: u32) -> Option<u64> {
    let limit_us: u64 = env("WATCHDOG_USEC")?.parse().ok()?;
    let is_for_us = env("WATCHDOG_PID").is_none_or(|pid| pid == our_pid.to_string());
    is_for_us.then_some(limit_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_ours_if_it_names_us_or_nobody() {
        let every = |usec: &str, pid: Option<&str>| {
            watchdog_us(
                |name| if name == "WATCHDOG_USEC" { Some(usec.to_owned()) } else { pid.map(str::to_owned) },
                7,
            )
        };
        assert_eq!(every("3000000", None), Some(3_000_000));
        assert_eq!(every("3000000", Some("7")), Some(3_000_000));
        assert_eq!((every("3000000", Some("8")), every("soon", None)), (None, None));
    }

    #[tokio::test]
    async fn a_watchdog_of_no_time_is_none_be_it_our_own_or_inherited() {
        for us in [0, 1] {
            let name = Some("@warmroute-nobody".to_owned());
            let mut notify = Notify::of(name.clone(), Some(us));
            assert!(notify.watchdog.is_none() && notify.estate().watchdog_us.is_none());
            notify.take_over(Estate { notify: name, watchdog_us: Some(us), ..Estate::default() });
            assert!(notify.watchdog.is_none() && notify.to.is_some());
        }
        assert!(Notify::of(Some("@warmroute-nobody".to_owned()), Some(2)).watchdog.is_some());
    }
}
