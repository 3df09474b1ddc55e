//! The first minutes with the command: short command lines, units, and errors that name what the user wrote.

use crate::harness::client::{Call, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run, run_with_env};
use crate::harness::temp_folder::TempFolder;
use serde_json::json;

const FREE_PORTS: [&str; 5] = ["serve", "--port", "0", "--admin-port", "0"];

#[test]
fn urls_are_arguments_with_or_without_v1() {
    let (first, second, third) = (engine(&[]), engine(&[]), engine(&[]));
    let with_v1 = |url: &str| format!("{url}/v1");
    let flags = ["--host", "localhost", "--decision-headers", "on", "--drain-timeout-secs", "10m"];
    let flags = [&flags[..], &["--shadow", "random"]].concat();
    let urls = [with_v1(first.url()), format!("{}/", second.url())];
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let gateway = Gateway { process: Process::start(&[&FREE_PORTS[..], &flags, &urls].concat()) };
    gateway.wait_for_ready(2);
    assert!(gateway.url().starts_with("http://127.0.0.1:"), "{}", gateway.url());
    let added = post(gateway.admin(), "/workers", &json!({"url": with_v1(third.url())}).to_string());
    assert_eq!(added.status, 202);
    gateway.wait_for_ready(3);
    let mut listed: Vec<String> =
        gateway.workers().iter().map(|worker| worker["url"].as_str().unwrap().to_owned()).collect();
    let mut expected = [&first, &second, &third].map(|engine| engine.url().to_owned());
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    let path = format!("/workers?url={}", with_v1(third.url()));
    assert_eq!(Call::send(gateway.admin(), "DELETE", &path, &[], b"").finish().status, 200);
    gateway.wait_for_ready(2);
}

#[test]
fn a_mistake_is_named_as_the_user_wrote_it() {
    let folder = TempFolder::new("mistakes");
    let config = folder.file("x.toml");
    std::fs::write(&config, "[server]\nthreads = 9999\n").unwrap();
    let in_file = format!("error: in {config}: server.threads must be at most");
    let is_file = format!("error: `{config}` is a file, not the URL of a worker");
    for (args, variable, expected) in [
        (&["serve", "--threads", "9999"][..], None, "error: --threads must be at most"),
        (&["serve"], Some(("WARMROUTE_THREADS", "9999")), "error: WARMROUTE_THREADS must be at most"),
        (&["serve", "--config", &config], None, &in_file),
        (&["check", &config], None, &in_file),
        (&["doctor", "--config", &config], None, &in_file),
        (&["serve", "--port", "many"], None, "error: invalid value 'many' for '--port <PORT>'"),
        (&["serve"], Some(("WARMROUTE_PORT", "many")), "error: invalid value 'many' for 'WARMROUTE_PORT'"),
        (
            &["serve", "--port", "none"],
            Some(("WARMROUTE_PORT", "many")),
            "error: invalid value 'none' for '--port <PORT>'",
        ),
        (&["serve", &config], None, &is_file),
        (&["serve", "ftp://a"], None, "error: `ftp://a` is not a valid worker URL"),
        (&["serve", "--worker-urls", "ftp://a"], None, "error: --worker-urls: `ftp://a` is not"),
        (
            &["serve"],
            Some(("WARMROUTE_WORKER_URLS", "http://a ftp://b")),
            "error: WARMROUTE_WORKER_URLS: `ftp://b` is not",
        ),
        (&["serve", "--worker-file", "/nowhere"], None, "error: --worker-file: cannot read /nowhere"),
        (&["serve", "--share", "foo"], None, "error: --share: `foo`"),
        (&["serve", "--policy", "best"], None, "error: --policy: unknown policy `best`"),
        (
            &["serve", "--admin-port", "30000"],
            None,
            "error: --admin-port 30000 is also the port of the client",
        ),
        (&["serve", "--port", "many"], None, "'--port <PORT>': expected a whole number from 0 to 65535\n"),
        (
            &["serve"],
            Some(("WARMROUTE_PORT", "many")),
            "'WARMROUTE_PORT': expected a whole number from 0 to 65535\n",
        ),
        (&["serve", "--policy", "cache_aware:preset=hi"], None, "preset takes high_affinity, balanced or"),
        (&["serve", "--dp-size", "0", "http://a"], None, "error: --dp-size must be at least 1"),
        (&["serve", "--max-payload-size", "16M"], None, "write MB for 1,000,000 bytes or MiB"),
    ] {
        let failed = run_with_env(args, variable.as_slice());
        let error = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success() && error.contains(expected), "{args:?} {variable:?}: {error}");
    }
}

#[test]
fn a_port_that_is_taken_and_a_path_without_v1_say_what_to_do() {
    let gateway = Gateway::start(&[], &[]);
    let port = gateway.url().rsplit(':').next().unwrap();
    for args in [
        vec!["engine", "--port", port],
        vec!["serve", "--host", "127.0.0.1", "--port", port, "--admin-port", "0"],
    ] {
        let taken = run(&args);
        let error = String::from_utf8_lossy(&taken.stderr).into_owned();
        let expected = format!("error: cannot listen on 127.0.0.1:{port}: Address already in use");
        assert!(error.contains(&expected) && error.contains("choose another port with --port"), "{error}");
    }
    let without = post(gateway.url(), "/chat/completions", "{}");
    assert_eq!(
        (without.status, without.json()["error"]["message"].as_str()),
        (404, Some("No such endpoint: /chat/completions; use /v1/chat/completions: base URLs end with /v1"))
    );
}

#[test]
fn variables_of_kubernetes_services_change_nothing() {
    let links = [
        ("WARMROUTE_SERVICE_HOST", "10.0.0.1"),
        ("WARMROUTE_SERVICE_PORT_HTTP", "80"),
        ("WARMROUTE_PORT", "tcp://10.0.0.1:80"),
        ("WARMROUTE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("WARMROUTE_ADMIN_PORT", "tcp://10.0.0.2:80"),
        ("WARMROUTE_WORKER_URLS", "http://a:1 http://b:1,http://c:1"),
    ];
    let checked = run_with_env(&["check"], &links);
    let shown = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    for line in ["\nport = 30000", "\nadmin-port = 29000", "\"http://b:1\""] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

#[test]
fn check_takes_the_file_as_an_argument_or_as_a_flag_and_warns() {
    let folder = TempFolder::new("check-both");
    let config = folder.file("x.toml");
    std::fs::write(&config, "[admission]\nqueue-size = 10\n[timeouts]\nidle-timeout-secs = \"5m\"\n")
        .unwrap();
    for args in
        [&["check", &config][..], &["check", "--config", &config], &["check", &config, "http://a:1/v1"]]
    {
        let checked = run(args);
        let (shown, warned) =
            (String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
        assert!(checked.status.success() && shown.contains("idle-timeout-secs = 300"), "{args:?}: {warned}");
        let warning = format!("warning: in {config}: admission.queue-size has no effect without");
        assert!(warned.contains(&warning), "{args:?}: {warned}");
    }
}

#[test]
fn an_admin_listener_that_others_can_read_is_warned_of() {
    let open = ["--admin-host", "0.0.0.0"];
    let told =
        "--admin-host: other machines can read metrics, workers, decisions and the configuration on 0.0.0.0:";
    let (mut reader, log) = std::io::pipe().unwrap();
    let gateway = Process::start_with_log(&[&FREE_PORTS[..], &open].concat(), &[], log.into());
    gateway.signal("-TERM");
    assert!(gateway.wait().success());
    let mut logged = String::new();
    std::io::Read::read_to_string(&mut reader, &mut logged).unwrap();
    assert!(logged.contains("WARN") && logged.contains(told), "{logged}");
    for (args, env, is_told) in [
        (&["check", open[0], open[1]][..], None, true),
        (&["check"], None, false),
        (&["check", open[0], open[1]], Some(("WARMROUTE_ADMIN_TOKEN", "hush")), false),
    ] {
        let checked = run_with_env(args, env.as_slice());
        let warned = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{args:?}: {warned}");
        assert_eq!(warned.contains(&format!("warning: {told}")), is_told, "{args:?} {env:?}: {warned}");
    }
    let examined = run(&["doctor", open[0], open[1]]);
    let found = String::from_utf8_lossy(&examined.stdout);
    assert!(found.contains("other machines can read metrics"), "{found}");
}

#[test]
fn a_model_path_without_effect_is_reported() {
    let folder = TempFolder::new("model-path");
    let empty = folder.file("empty");
    std::fs::create_dir(&empty).unwrap();
    let (mut reader, log) = std::io::pipe().unwrap();
    let missing = ["--model-path", "/nowhere/m", &empty];
    let gateway = Process::start_with_log(&[&FREE_PORTS[..], &missing].concat(), &[], log.into());
    // The files are looked for beside the start.
    let mut logged = String::new();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(&mut reader));
    while !(logged.contains("model-path /nowhere/m") && logged.contains(&format!("model-path {empty}"))) {
        logged += &format!("{}\n", lines.next().expect("it warns of both").unwrap());
    }
    assert!(logged.contains("the engines' own paths are tried"), "{logged}");
    drop(gateway);
    let checked = run(&["check", "--model-path", "/nowhere/m"]);
    let error = String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success(), "{error}");
    assert!(error.starts_with("error: --model-path /nowhere/m: no model `/nowhere/m`"), "{error}");
    let ignored = run(&["check", "--model-path", &empty, "--kv-events", "off"]);
    let warned = String::from_utf8_lossy(&ignored.stderr);
    assert!(warned.contains("warning: --model-path has no effect, because kv-events is off"), "{warned}");
}

#[test]
fn a_state_that_cannot_be_written_is_warned_of_at_the_start() {
    // No process can create a file in /proc.
    let checked = run(&["check", "--state", "/proc/warmroute"]);
    let warned = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{warned}");
    assert!(warned.contains("warning: --state: cannot write /proc/warmroute"), "{warned}");
    let folder = TempFolder::new("writable-state");
    let written = run(&["check", "--state", &folder.file("state")]);
    let warned = String::from_utf8_lossy(&written.stderr);
    assert!(!warned.contains("--state"), "{warned}");
}

#[test]
fn a_worker_that_fails_its_probes_shows_why() {
    let engine = engine(&[]);
    let tls = engine.url().replace("http://", "https://");
    let gateway = Gateway::start(&["http://127.0.0.1:1", &tls, engine.url()], &[]);
    let trouble = |url: &str| {
        let worker = gateway.workers().into_iter().find(|worker| worker["url"] == url).unwrap();
        worker["trouble"].as_str().map(str::to_owned)
    };
    let refused = eventually("the closed port was probed", || trouble("http://127.0.0.1:1"));
    assert_eq!(refused.split(" (").next(), Some("health check: Connection refused"));
    let not_tls = eventually("the plain port was probed", || trouble(&tls));
    assert!(not_tls.contains("does not speak TLS at this port"), "{not_tls}");
    eventually("the healthy one is ready", || {
        let worker = gateway.workers().into_iter().find(|worker| worker["url"] == engine.url()).unwrap();
        (worker["state"] == "ready" && worker["trouble"].is_null()).then_some(())
    });
}

#[test]
fn a_wrong_admin_token_is_explained() {
    let engine = engine(&[]);
    let env = [("WARMROUTE_ADMIN_TOKEN", "hush")];
    let gateway = Gateway::start_with_env(&[engine.url()], &[], &env);
    for (args, expected) in [
        (&["explain", "--admin", gateway.admin()][..], "requires its admin token: set --admin-token"),
        (
            &["explain", "--admin", gateway.admin(), "--admin-token", "loud"],
            "refuses the admin token: check --admin-token",
        ),
    ] {
        let failed = run(args);
        let error = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success() && error.contains(expected), "{error}");
    }
    assert!(run(&["explain", "--admin", gateway.admin(), "--admin-token", "hush"]).status.success());
}
