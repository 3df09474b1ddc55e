//! Handover of listeners between processes, and systemd's socket activation. No request may fail, not even on kept
//! connections, and these clients never retry.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::harness::client::{Call, authority, chat, chat_stream, get, post};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::keep_alive::KeepAlive;
use crate::harness::load::Load;
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;

const MODEL: &str = "llama-3.1-8b";
const CHATS: &str = "/v1/chat/completions";

#[test]
fn handovers_under_load_fail_no_request() {
    let engines = [engine(&[]), engine(&[])];
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let folder = TempFolder::new("handover");
    let path = folder.file("handover.sock");
    let flags = ["--handover", &path];
    let mut gateway = Gateway::over(&urls, &flags);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "private");
    let (url, admin) = (gateway.url().to_owned(), gateway.admin().to_owned());
    let load = Load::start(&url, 16);
    for _ in 0..5 {
        load.wait_for_more(100);
        let successor = Gateway::start(&urls, &flags);
        assert_eq!((successor.url(), successor.admin()), (url.as_str(), admin.as_str()), "the same places");
        let left = std::mem::replace(&mut gateway, successor);
        assert!(left.process.wait().success(), "all that it had begun has ended");
        assert_eq!(gateway.metric("warmroute_config_reloads_total{outcome=\"applied\"}"), 0.0);
    }
    load.wait_for_more(100);
    let (asked, failed) = load.stop();
    println!("{asked} requests on kept connections, 5 handovers, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {asked} failed: {failed:#?}", failed.len());
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
}

#[test]
fn a_stream_in_flight_finishes_and_an_idle_connection_stays_open() {
    let gate = Gate::default();
    let held = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        if asked.turn > 0 {
            return asked.answer("{}");
        }
        asked.begin_events();
        asked.chunk("data: {\"n\":1}\n\n");
        held.pass();
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let folder = TempFolder::new("handover-stream");
    let path = folder.file("sock");
    let old = Gateway::over(&[&engine.url], &["--handover", &path]);
    let mut stream = Call::send(old.url(), "POST", CHATS, &[], chat_stream("m", 2).as_bytes());
    stream.read_until("{\"n\":1}");
    let mut idle = KeepAlive::new(old.url());
    assert!(!idle.post(CHATS, &chat("m")).unwrap().is_last);

    let new = Gateway::start(&[&engine.url], &["--handover", &path]);
    assert_eq!(post(new.url(), CHATS, &chat("m")).status, 200);
    let served = format!("warmroute_requests_total{{worker=\"{}\",outcome=\"ok\"}}", engine.url);
    assert_eq!(new.metric(&served), 1.0, "those who connect come to the new one");

    let last = idle.post(CHATS, &chat("m")).unwrap();
    assert!(last.status == 200 && last.is_last, "answered by the old one, for the last time: {last:?}");
    assert!(!idle.post(CHATS, &chat("m")).unwrap().is_last && idle.connected == 2);
    assert_eq!(new.metric(&served), 2.0);
    gate.open();
    let whole = stream.finish();
    assert!(whole.complete && whole.text().ends_with("data: [DONE]\n\n"), "{}", whole.text());
    assert!(old.process.wait().success());
}

/// The old process drains after a handover, without a signal.
#[test]
fn after_a_handover_the_first_signal_ends_no_stream_and_the_second_does() {
    let gate = Gate::default();
    let held = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        if asked.turn > 1 {
            return asked.answer("{}");
        }
        asked.begin_events();
        asked.chunk("data: {\"n\":1}\n\n");
        if asked.turn == 1 {
            return asked.wait_for_hang_up();
        }
        held.pass();
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let folder = TempFolder::new("handover-signals");
    let flags = ["--handover", &folder.file("sock")];
    let old = Gateway::over(&[&engine.url], &flags);
    let [ends, endless] = [0, 1].map(|_| {
        let mut stream = Call::send(old.url(), "POST", CHATS, &[], chat_stream("m", 2).as_bytes());
        stream.read_until("{\"n\":1}");
        stream
    });
    let mut idle = KeepAlive::new(old.url());
    assert!(!idle.post(CHATS, &chat("m")).unwrap().is_last);
    let _new = Gateway::start(&[&engine.url], &flags);

    old.process.signal("-TERM");
    // The signal closes the idle connection, which would otherwise stay open.
    idle.wait_for_close();
    gate.open();
    let whole = ends.finish();
    assert!(whole.complete && whole.text().ends_with("data: [DONE]\n\n"), "{}", whole.text());
    // A signal that comes at once after another one is the same request to stop.
    std::thread::sleep(std::time::Duration::from_millis(500));
    old.process.signal("-TERM");
    let cut = endless.finish();
    assert!(cut.complete && cut.text().contains("shutting_down"), "{}", cut.text());
    assert_eq!(old.process.wait().code(), Some(1), "not all was answered");
}

/// A new process that cannot take over.
fn would_be(args: &[&str], log: Stdio) -> std::process::Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
    command.arg("serve").args(["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]).args(args);
    command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

#[test]
fn when_the_new_process_dies_before_it_is_ready_the_old_one_continues() {
    let (engine, nobody) = (engine(&[]), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let folder = TempFolder::new("handover-dies");
    let (path, log) = (folder.file("sock"), folder.file("log"));
    let flags = ["--handover", &path, "--worker-urls", engine.url()];
    let old = Gateway { process: Process::serve(&flags, std::fs::File::create(&log).unwrap().into()) };
    old.wait_for_ready(1);
    let said = |text: &str, times: usize| {
        eventually(text, || {
            (std::fs::read_to_string(&log).unwrap().matches(text).count() >= times).then_some(())
        })
    };
    for turn in 1..=2 {
        // Its engine never answers, so it never becomes ready.
        let silent = format!("http://{}", nobody.local_addr().unwrap());
        let mut new = would_be(&["--handover", &path, "--worker-urls", &silent], Stdio::null());
        said("handing over to a new process", turn);
        assert_eq!(post(old.url(), CHATS, &chat(MODEL)).status, 200, "it goes on meanwhile");
        new.kill().unwrap();
        new.wait().unwrap();
        said("handover failed; this process continues", turn);
        assert_eq!(post(old.url(), CHATS, &chat(MODEL)).status, 200);
        assert_eq!(get(old.admin(), "/readyz").status, 200);
    }
    let new = Gateway { process: Process::serve(&flags, Stdio::null()) };
    assert_eq!(new.url(), old.url());
    assert!(old.process.wait().success());
    assert_eq!(post(new.url(), CHATS, &chat(MODEL)).status, 200);
}

#[test]
fn waiting_for_a_stopped_process_is_logged_and_times_out() {
    let engine = engine(&[]);
    let folder = TempFolder::new("handover-stopped");
    let path = folder.file("sock");
    let flags = ["--handover", &path];
    let old = Gateway::over(&[engine.url()], &flags);
    old.process.signal("-STOP");
    let args = ["--handover", &path, "--handover-timeout-secs", "1", "--worker-urls", engine.url()];
    let new = would_be(&args, Stdio::piped()).wait_with_output().unwrap();
    let (said, pid) = (String::from_utf8_lossy(&new.stderr).into_owned(), old.process.id());
    assert_eq!(new.status.code(), Some(1), "{said}");
    for words in [
        "taking over from the running gateway",
        "it continues, and nothing was changed",
        &format!("process {pid}, which is stopped"),
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    old.process.signal("-CONT");
    assert_eq!(post(old.url(), CHATS, &chat(MODEL)).status, 200, "it goes on");
    let next = Gateway::start(&[engine.url()], &flags);
    assert!(old.process.wait().success());
    assert_eq!(post(next.url(), CHATS, &chat(MODEL)).status, 200);
}

#[test]
fn a_silent_connection_does_not_block_a_handover() {
    let engine = engine(&[]);
    let folder = TempFolder::new("handover-idle");
    let path = folder.file("sock");
    let old = Gateway::over(&[engine.url()], &["--handover", &path]);
    let idle = [0; 3].map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap());
    let new = Gateway::start(&[engine.url()], &["--handover", &path]);
    assert_eq!(new.url(), old.url());
    assert!(old.process.wait().success());
    drop(idle);
}

/// Both new processes hold the listeners; the later one must not use them.
#[test]
fn of_two_successors_one_takes_over_and_the_other_exits() {
    let (ours, stopped) = (engine(&[]), engine(&[]));
    let folder = TempFolder::new("handover-two");
    let (path, log) = (folder.file("sock"), folder.file("log"));
    let flags = ["--handover", &path, "--worker-urls", ours.url()];
    let old = Gateway { process: Process::serve(&flags, std::fs::File::create(&log).unwrap().into()) };
    stopped.signal("-STOP");
    let told = folder.file("told");
    let to = std::fs::File::create(&told).unwrap();
    let mut late = would_be(&["--handover", &path, "--worker-urls", stopped.url()], to.into());
    eventually("it has asked", || {
        std::fs::read_to_string(&log).unwrap().contains("handing over to a new process").then_some(())
    });
    let new = Gateway::start(&[ours.url()], &["--handover", &path]);
    assert!(old.process.wait().success());
    stopped.signal("-CONT");
    let status = eventually("it ends", || late.try_wait().unwrap());
    let said = std::fs::read_to_string(&told).unwrap();
    assert!(status.code() == Some(1) && said.contains("another process has already taken over"), "{said}");
    assert_eq!(post(new.url(), CHATS, &chat(MODEL)).status, 200);
    let next = Gateway::start(&[ours.url()], &["--handover", &path]);
    assert!(new.process.wait().success(), "a later process finds the one that serves");
    drop(next);
}

#[test]
fn a_key_revoked_during_a_handover_is_invalid_afterwards() {
    let engine = engine(&[]);
    let folder = TempFolder::new("handover-revoked");
    let (path, keys) = (folder.file("sock"), folder.file("keys"));
    std::fs::write(&keys, "sk-alpha\nsk-beta\n").unwrap();
    let flags = ["--handover", &path, "--api-keys-file", &keys];
    let old = Gateway::over(&[engine.url()], &flags);
    // The old process is stopped, so the new one waits after it has read its keys.
    old.process.signal("-STOP");
    let new = std::thread::scope(|scope| {
        let new = scope.spawn(|| Gateway::start(&[engine.url()], &flags));
        let is_waiting = || {
            let files = std::fs::read_dir(std::path::Path::new(&path).parent().unwrap()).unwrap();
            files.flatten().any(|file| file.file_name().to_str().unwrap().starts_with("sock.")).then_some(())
        };
        eventually("the new one has read its files", is_waiting);
        std::fs::write(&keys, "sk-alpha\n").unwrap();
        old.process.signal("-CONT");
        new.join().unwrap()
    });
    let status = |key: &str| {
        let key = format!("authorization: Bearer {key}");
        Call::send(new.url(), "POST", CHATS, &[&key], chat(MODEL).as_bytes()).finish().status
    };
    eventually("the key is refused", || (status("sk-beta") == 401).then_some(()));
    assert_eq!(status("sk-alpha"), 200);
}

#[test]
fn a_stale_socket_is_replaced_and_other_files_are_left_alone() {
    let engine = engine(&[]);
    let folder = TempFolder::new("handover-stale");
    let path = folder.file("sock");
    // Killed, so its socket file stays behind.
    drop(Gateway::over(&[engine.url()], &["--handover", &path]));
    assert!(std::fs::metadata(&path).is_ok());
    let gateway = Gateway::over(&[engine.url()], &["--handover", &path]);
    assert_eq!(post(gateway.url(), CHATS, &chat(MODEL)).status, 200);

    // A process killed during startup leaves a temporary socket; in a container, process ids repeat.
    let left = "touch \"$1.$$\"; shift; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", left, "sh", &path, env!("CARGO_BIN_EXE_warmroute"), "serve", "--handover", &path]);
    command.args(["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--worker-urls", engine.url()]);
    command.stderr(Stdio::null());
    let next = Process::of(command);
    assert_eq!(post(next.url(), CHATS, &chat(MODEL)).status, 200);
    assert!(gateway.process.wait().success());

    let file = folder.file("notes.txt");
    std::fs::write(&file, "mine").unwrap();
    let refused = would_be(&["--handover", &file, "--worker-urls", engine.url()], Stdio::piped());
    let output = refused.wait_with_output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("exists and"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_successor_with_other_addresses_opens_its_own_listeners() {
    let engine = engine(&[]);
    let folder = TempFolder::new("handover-elsewhere");
    let path = folder.file("sock");
    let old = Gateway::over(&[engine.url()], &["--handover", &path]);
    let (url, admin) = (old.url().to_owned(), old.admin().to_owned());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let args = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", &free, "--handover", &path];
    let args = [&args[..], &["--worker-urls", engine.url()]].concat();
    let new = Gateway { process: Process::start(&args) };
    assert_eq!((new.url(), new.admin()), (url.as_str(), format!("http://127.0.0.1:{free}").as_str()));
    assert!(old.process.wait().success());
    assert!(std::net::TcpStream::connect(authority(&admin)).is_err(), "the listener is gone");
    assert_eq!(post(new.url(), CHATS, &chat(MODEL)).status, 200);
}

/// As systemd does: descriptors 3 and 4, with their count and names in the environment.
fn activated(sockets: [&std::net::TcpListener; 2], names: &str, engine: &str) -> Command {
    let handles = sockets.map(|socket| Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
    let [first, second] = handles;
    let script = "exec 3<&0 4<&2 0</dev/null 2>${LOG:-/dev/null}; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_warmroute"), "serve", "--worker-urls", engine]);
    command.env("LISTEN_FDNAMES", names).stdin(first).stderr(second);
    command
}

#[test]
fn a_systemd_socket_without_a_known_name_is_refused() {
    let folder = TempFolder::new("unnamed");
    let log = folder.file("log");
    let sockets = ["127.0.0.1:0"; 2].map(|address| std::net::TcpListener::bind(address).unwrap());
    let second = sockets[1].local_addr().unwrap();
    for (names, why) in [
        ("clients:warmroute.socket", "FileDescriptorName= must be one of clients, admin, events, mesh"),
        ("clients", "FileDescriptorName= must be one of"),
        ("clients:clients", "another socket has this FileDescriptorName="),
        ("clients:mesh", "share is not mesh"),
    ] {
        let mut command = activated([&sockets[0], &sockets[1]], names, "http://127.0.0.1:1");
        let mut refused = command.env("LOG", &log).stdout(Stdio::null()).spawn().unwrap();
        let status = eventually("it ends", || refused.try_wait().unwrap());
        let said = std::fs::read_to_string(&log).unwrap();
        let socket = format!("socket 4 from systemd at {second}");
        assert!(!status.success() && said.contains(why) && said.contains(&socket), "{names}: {said}");
    }
}

#[test]
fn with_socket_activation_a_restart_refuses_no_client() {
    let engine = engine(&[]);
    let sockets = ["127.0.0.1:0"; 2].map(|address| std::net::TcpListener::bind(address).unwrap());
    let [admin, clients] =
        sockets.each_ref().map(|socket| format!("http://{}", socket.local_addr().unwrap()));
    let start = || Process::of(activated([&sockets[0], &sockets[1]], "admin:clients", engine.url()));
    let gateway = Gateway { process: start() };
    assert_eq!((gateway.url(), gateway.admin()), (clients.as_str(), admin.as_str()), "by their names");
    gateway.wait_for_ready(1);
    assert_eq!(post(&clients, CHATS, &chat(MODEL)).status, 200);
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
    // No process runs; the socket stays open, and clients wait.
    let waiting = Call::send(&clients, "POST", CHATS, &[], chat(MODEL).as_bytes());
    let _gateway = Gateway { process: start() };
    assert_eq!(waiting.finish().status, 200);
}

/// The successors learn from their predecessor which sockets systemd opened. The configured port is unused.
#[test]
fn listeners_from_systemd_are_handed_over_whatever_their_address() {
    let engine = engine(&[]);
    let folder = TempFolder::new("handover-activated");
    let path = folder.file("sock");
    let sockets = ["127.0.0.1:0"; 2].map(|address| std::net::TcpListener::bind(address).unwrap());
    let [admin, clients] =
        sockets.each_ref().map(|socket| format!("http://{}", socket.local_addr().unwrap()));
    let elsewhere =
        ["127.0.0.1:0"; 2].map(|address| std::net::TcpListener::bind(address).unwrap().local_addr().unwrap());
    let [port, admin_port] = elsewhere.map(|address| address.port().to_string());
    let flags =
        ["--host", "127.0.0.1", "--port", &port, "--admin-port", &admin_port, "--handover", path.as_str()];
    let mut command = activated([&sockets[0], &sockets[1]], "admin:clients", engine.url());
    command.args(flags);
    let mut gateway = Gateway { process: Process::of(command) };
    gateway.wait_for_ready(1);
    for _ in 0..2 {
        let args = [&["serve", "--worker-urls", engine.url()][..], &flags].concat();
        let next = Gateway { process: Process::start(&args) };
        assert_eq!((next.url(), next.admin()), (clients.as_str(), admin.as_str()));
        assert!(std::mem::replace(&mut gateway, next).process.wait().success());
        assert_eq!(post(&clients, CHATS, &chat(MODEL)).status, 200);
    }
}
