//! What systemd is told, over a real datagram socket.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod world;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use world::PATIENCE;
use world::process::{Process, engine};
use world::scrap::Scrap;

struct Systemd(UnixDatagram);

impl Systemd {
    fn new(socket: UnixDatagram) -> Systemd {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Systemd(socket)
    }

    fn heard(&self) -> String {
        let mut bytes = [0; 512];
        let length = self.0.recv(&mut bytes).expect("something is said");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// The next thing that is no sign of life.
    fn news(&self) -> String {
        loop {
            match self.heard() {
                said if said == "WATCHDOG=1" => {}
                said => return said,
            }
        }
    }
}

fn serve(engine: &str, env: &[(&str, &str)]) -> Process {
    let args = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--worker-urls", engine];
    Process::start_with_env(&args, env)
}

#[test]
fn systemd_is_told_when_it_is_ready_reads_settings_again_lives_and_stops() {
    let (engine, scrap) = (engine(&[]), Scrap::new("notify"));
    let path = scrap.file("notify");
    let systemd = Systemd::new(UnixDatagram::bind(&path).unwrap());
    let process = serve(engine.url(), &[("NOTIFY_SOCKET", &path), ("WATCHDOG_USEC", "200000")]);
    assert!(systemd.news().starts_with("READY=1\n"));
    (0..3).for_each(|_| assert_eq!(systemd.heard(), "WATCHDOG=1"));
    process.signal("-HUP");
    let reloading = systemd.news();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert!(systemd.news().starts_with("READY=1\n"));
    process.signal("-TERM");
    assert!(systemd.news().starts_with("STOPPING=1\n"));
    assert!(process.wait().success());
}

#[test]
fn a_name_without_a_file_works_too_and_without_a_watchdog_nothing_more_is_said() {
    let engine = engine(&[]);
    let name = format!("warmroute-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let systemd = Systemd::new(UnixDatagram::bind_addr(&address).unwrap());
    let process = serve(engine.url(), &[("NOTIFY_SOCKET", &format!("@{name}"))]);
    assert!(systemd.heard().starts_with("READY=1\n"));
    process.signal("-TERM");
    assert!(systemd.heard().starts_with("STOPPING=1\n"));
    assert!(process.wait().success());
}
