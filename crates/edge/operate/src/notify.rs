//! Notifies systemd (`NOTIFY_SOCKET`) that the service is ready, reloads, stops, and is alive.
//!
//! A message is a datagram of `KEY=value` lines without an answer.
//! systemd follows a service's main process and may accept messages from that process only (`NotifyAccess=main`). So
//! on a handover the old process names the new main process and then sends nothing more.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::handover::{HandoverState, Process};

/// The connection to systemd, if there is one.
#[derive(Default)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Interval>,
    /// The socket's name, for a successor.
    name: Option<String>,
    watchdog_us: Option<u64>,
}

impl Notify {
    /// Reads the socket's name and the watchdog from the environment.
    pub fn from_env() -> Notify {
        let watchdog_us = watchdog_us(|name| std::env::var(name).ok(), std::process::id());
        Notify::of(std::env::var("NOTIFY_SOCKET").ok(), watchdog_us)
    }

    fn of(name: Option<String>, watchdog_us: Option<u64>) -> Notify {
        // 0 disables the watchdog, and 1 µs cannot be halved.
        let watchdog_us = watchdog_us.filter(|us| *us > 1);
        let to = name.as_deref().and_then(open);
        let watchdog = watchdog_us.filter(|_| to.is_some()).map(|us| {
            // Twice per watchdog timeout.
            let mut interval = interval(Duration::from_micros(us / 2));
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        Notify { to, watchdog, name, watchdog_us }
    }

    /// What a successor needs to notify systemd.
    pub fn handover_state(&self) -> HandoverState {
        HandoverState { notify: self.name.clone(), watchdog_us: self.watchdog_us, ..HandoverState::default() }
    }

    /// Makes this process the service's main process. The predecessor's settings are used where the environment has
    /// none.
    pub fn take_over(&mut self, from: HandoverState) {
        let name = self.name.take().or(from.notify);
        *self = Notify::of(name, self.watchdog_us.or(from.watchdog_us));
        self.say(&format!("MAINPID={}", std::process::id()));
    }

    /// Names the new main process and sends nothing more.
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

    /// The configuration is being reloaded; [`Notify::ready`] ends it.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let monotonic_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={monotonic_us}\nSTATUS=reloading the configuration"));
    }

    /// The service is draining.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=draining");
    }

    /// Sends the next watchdog message when it is due. A runtime that hangs does not poll this, and systemd notices.
    pub async fn send_watchdog(&mut self) {
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

/// A name that starts with @ is an abstract socket.
fn open(name: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let opened = address.and_then(|address| Ok((UnixDatagram::unbound()?, address)));
    opened.inspect_err(|error| tracing::warn!(%error, "cannot notify systemd")).ok()
}

/// The watchdog timeout, if it is meant for this process.
fn watchdog_us(env: impl Fn(&str) -> Option<String>, our_pid: u32) -> Option<u64> {
    let limit_us: u64 = env("WATCHDOG_USEC")?.parse().ok()?;
    let is_for_us = env("WATCHDOG_PID").is_none_or(|pid| pid == our_pid.to_string());
    is_for_us.then_some(limit_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_counts_if_it_names_this_process_or_none() {
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
    async fn a_watchdog_below_two_microseconds_is_off() {
        for us in [0, 1] {
            let name = Some("@warmroute-test".to_owned());
            let mut notify = Notify::of(name.clone(), Some(us));
            assert!(notify.watchdog.is_none() && notify.handover_state().watchdog_us.is_none());
            notify.take_over(HandoverState {
                notify: name,
                watchdog_us: Some(us),
                ..HandoverState::default()
            });
            assert!(notify.watchdog.is_none() && notify.to.is_some());
        }
        assert!(Notify::of(Some("@warmroute-test".to_owned()), Some(2)).watchdog.is_some());
    }
}
