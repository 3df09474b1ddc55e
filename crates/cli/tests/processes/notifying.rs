//! Messages to systemd, over a real datagram socket.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::harness::client::{Call, chat_stream};
use crate::harness::gate::Gate;
use crate::harness::process::{Process, engine};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;
use crate::harness::{TIMEOUT, eventually};

struct Systemd(UnixDatagram);

impl Systemd {
    fn new(socket: UnixDatagram) -> Systemd {
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Systemd(socket)
    }

    fn heard(&self) -> String {
        let mut bytes = [0; 512];
        let length = self.0.recv(&mut bytes).expect("something is said");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// The next message that is not a watchdog message.
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
    serve_with(engine, &[], env)
}

fn serve_with(engine: &str, more: &[&str], env: &[(&str, &str)]) -> Process {
    let args = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--worker-urls", engine];
    Process::start_with_env(&[&args[..], more].concat(), env)
}

#[test]
fn systemd_is_notified_of_ready_reload_watchdog_and_stop() {
    let (engine, folder) = (engine(&[]), TempFolder::new("notify"));
    let path = folder.file("notify");
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
fn an_abstract_socket_works_and_without_a_watchdog_no_keepalive_is_sent() {
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

/// The new process was not started by systemd; the old one passes the notify socket.
#[test]
fn systemd_is_told_the_main_process_after_a_handover() {
    let gate = Gate::default();
    let held = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"n\":1}\n\n");
        held.pass();
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let folder = TempFolder::new("notify-handover");
    let (path, socket) = (folder.file("notify"), folder.file("sock"));
    let systemd = Systemd::new(UnixDatagram::bind(&path).unwrap());
    let env = [("NOTIFY_SOCKET", path.as_str()), ("WATCHDOG_USEC", "200000")];
    let old = serve_with(&engine.url, &["--handover", &socket], &env);
    assert!(systemd.news().starts_with("READY=1\n"));
    let body = chat_stream("m", 9);
    let mut stream = Call::send(old.url(), "POST", "/v1/chat/completions", &[], body.as_bytes());
    stream.read_until("{\"n\":1}");

    let new = serve_with(&engine.url, &["--handover", &socket], &[]);
    let (from_old, from_new) = (systemd.news(), systemd.news());
    assert!(from_old.starts_with(&format!("MAINPID={}\nSTATUS=", new.id())), "{from_old}");
    assert_eq!(from_new, format!("MAINPID={}", new.id()));
    assert!(systemd.news().starts_with("READY=1\n"));
    (0..3).for_each(|_| assert_eq!(systemd.heard(), "WATCHDOG=1"));

    // The old process still has a stream, and sends no watchdog messages for the new one.
    new.signal("-STOP");
    systemd.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    while systemd.0.recv(&mut [0; 512]).is_ok() {}
    systemd.0.set_read_timeout(Some(Duration::from_millis(1_000))).unwrap();
    assert!(systemd.0.recv(&mut [0; 512]).is_err(), "no message");
    systemd.0.set_read_timeout(Some(TIMEOUT)).unwrap();
    new.signal("-CONT");
    gate.open();
    assert!(stream.finish().complete);
    assert!(old.wait().success());
    new.signal("-TERM");
    assert!(systemd.news().starts_with("STOPPING=1\n"), "and the old one did not say that the service stops");
    assert!(new.wait().success());
}

/// Both ends of a pipe that is full.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

fn ended_on_a_full_pipe(args: &[&str], path: &str, until: impl FnOnce(&Child)) -> ExitStatus {
    let (_reader, writer) = full_pipe();
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
    command.args(args).env("NOTIFY_SOCKET", path).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    until(&child);
    eventually("it ends", || child.try_wait().unwrap())
}

/// Stdout and stderr are one pipe that is full and is not read.
#[test]
fn outputs_that_are_not_read_hold_up_neither_the_start_nor_the_end() {
    let (engine, folder) = (engine(&[]), TempFolder::new("full-pipe"));
    let path = folder.file("notify");
    let systemd = Systemd::new(UnixDatagram::bind(&path).unwrap());
    let args = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--log-level", "trace"];
    let served = [&args[..], &["--access-log", "stderr", "--worker-urls", engine.url()]].concat();
    let ended = ended_on_a_full_pipe(&served, &path, |child| {
        assert!(systemd.news().starts_with("READY=1\n"));
        let stopped = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(stopped.success());
    });
    assert!(ended.success(), "{ended}");
    // An error that cannot be printed still ends the process.
    let refused = [&args[..], &["--api-keys-file", "/nowhere", engine.url()]].concat();
    assert_eq!(ended_on_a_full_pipe(&refused, &path, |_| ()).code(), Some(1));
}
