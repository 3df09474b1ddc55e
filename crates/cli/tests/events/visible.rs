//! Wrong settings of precise routing, each visible in `GET /workers`, an exit status or an HTTP status.

use crate::harness::client::{Call, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

fn scratch(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"))
}

/// A test file.
fn written(name: &str, text: &str) -> String {
    let path = scratch(name);
    std::fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn worker(gateway: &Gateway, engine: &Process) -> Value {
    gateway.workers().into_iter().find(|worker| worker["url"] == engine.url()).unwrap()
}

/// Waits until an engine's worker shows this reason.
fn wait_for_why(gateway: &Gateway, engine: &Process, part: &str) -> Value {
    eventually(&format!("why: {part}; {:?}", gateway.workers()), || {
        let view = worker(gateway, engine);
        view["why"].as_str().is_some_and(|why| why.contains(part)).then_some(view)
    })
}

fn events_at(engine: &Process) -> String {
    source_of(engine, "endpoint")
}

fn source_of(engine: &Process, what: &str) -> String {
    get(engine.url(), "/kv_event_sources").json()["0"][what].as_str().unwrap().to_owned()
}

fn ask(url: &str, text: &str) -> u16 {
    let body = json!({"model": "llama-3.1-8b", "max_tokens": 1, "messages": [{"role": "user", "content": text.repeat(40)}]});
    post(url, "/v1/chat/completions", &body.to_string()).status
}

#[test]
fn a_worker_shows_its_matching_or_why_it_has_none() {
    let folder = scratch("visible-model");
    let publishing = engine(&["--events", "tcp://127.0.0.1:0", "--write-model", &folder]);
    let silent = engine(&[]);
    let gateway = Gateway::over(&[publishing.url(), silent.url()], &["--model-path", &folder]);
    let without = wait_for_why(&gateway, &silent, "publishes no KV events");
    assert_eq!((&without["view"], &without["matching"]), (&json!("presumed"), &json!("none")));
    let mut number = 0;
    let with = eventually("the other is reported", || {
        // Without a replay, events before the subscription are lost.
        number += 1;
        ask(publishing.url(), &format!("something to be reported, {number} "));
        let view = worker(&gateway, &publishing);
        (view["view"] == "reported" && view["why"].is_null()).then_some(view)
    });
    assert_eq!(with["matching"], "bytes");
}

#[test]
fn a_silent_topic_is_named() {
    let folder = scratch("visible-topic");
    let one =
        engine(&["--events", "tcp://127.0.0.1:0", "--events-topic", "kv@right", "--write-model", &folder]);
    let (url, at) = (one.url(), events_at(&one));
    let config = format!(
        "[[workers]]\nurl = \"{url}\"\nkv-events = {{ endpoint = \"{at}\", topic = \"kv@wrong\" }}\n"
    );
    let config = written("visible-topic.toml", &config);
    let gateway = Gateway::start(&[], &["--model-path", &folder, "--config", &config]);
    wait_for_why(&gateway, &one, "nothing has come yet");
    for number in 0..8 {
        assert_eq!(ask(gateway.url(), &format!("prompt {number} of some blocks ")), 200);
    }
    let view = wait_for_why(&gateway, &one, "it gets requests, but nothing has come");
    assert!(view["why"].as_str().unwrap().contains("topic `kv@wrong`"), "{view}");
}

#[test]
fn a_wrong_topic_beside_a_working_replay_is_named_and_does_no_harm() {
    let folder = scratch("visible-fetched");
    let flags =
        ["--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0", "--events-topic", "kv@right"];
    let one = engine(&[&flags[..], &["--write-model", &folder]].concat());
    let (url, at, replay) = (one.url(), events_at(&one), source_of(&one, "replay_endpoint"));
    let config = format!(
        "[[workers]]\nurl = \"{url}\"\nkv-events = {{ endpoint = \"{at}\", replay = \"{replay}\", topic = \"kv@wrong\" }}\n"
    );
    let config = written("visible-fetched.toml", &config);
    let gateway = Gateway::start(&[], &["--model-path", &folder, "--config", &config]);
    let is_reported = || (worker(&gateway, &one)["view"] == "reported").then_some(());
    eventually("the replay tells that there is nothing yet", is_reported);
    assert_eq!(ask(gateway.url(), "one prompt is enough "), 200);
    let view = wait_for_why(&gateway, &one, "its events do not come from");
    assert!(view["why"].as_str().unwrap().contains("topic `kv@wrong`"), "{view}");
    assert_eq!(view["view"], "reported", "{view}");
}

#[test]
fn two_engines_with_one_topic_are_both_refused_and_named() {
    let folder = scratch("visible-shared");
    let flags = ["--write-model", folder.as_str()];
    let (one, two) = (engine(&flags), engine(&flags));
    let entry = |engine: &Process| {
        let url = engine.url();
        format!(
            "[[workers]]\nurl = \"{url}\"\nkv-events = {{ endpoint = \"tcp://127.0.0.1:PORT\", topic = \"kv\" }}\n"
        )
    };
    // A port that was free a moment ago, because the configuration must name it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let workers = [entry(&one), entry(&two)].concat().replace("PORT", &free.to_string());
    let bind = format!("tcp://127.0.0.1:{free}");
    let config = written("visible-shared.toml", &workers);
    let flags = ["--model-path", &folder, "--config", &config, "--kv-events-bind", &bind];
    let gateway = Gateway::start(&[], &flags);
    wait_for_why(&gateway, &one, &format!("topic `kv` is also that of {}", two.url()));
    wait_for_why(&gateway, &two, &format!("topic `kv` is also that of {}", one.url()));
    let taken = run(&["serve", "--port", "0", "--admin-port", "0", "--kv-events-bind", &bind]);
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && said.contains(&bind), "a busy endpoint is named: {said}");
}

#[test]
fn a_rank_that_the_engine_does_not_have_gets_no_requests() {
    let folder = scratch("visible-ranks");
    let flags = ["--ranks", "2", "--events", "tcp://127.0.0.1:0", "--write-model", folder.as_str()];
    let one = engine(&flags);
    let gateway = Gateway::start(&[one.url()], &["--dp-size", "3", "--model-path", &folder]);
    eventually("two ranks are ready", || {
        (gateway.workers().iter().filter(|worker| worker["state"] == "ready").count() == 2).then_some(())
    });
    let surplus = || gateway.workers().into_iter().find(|worker| worker["rank"] == 2).unwrap();
    eventually("the third says why", || {
        surplus()["why"]
            .as_str()?
            .contains("the engine has no rank 2: it has 2, counted from 0;")
            .then_some(())
    });
    let statuses: Vec<u16> = (0..12).map(|n| ask(gateway.url(), &format!("question {n} "))).collect();
    assert_eq!(statuses, [200; 12]);
    assert_ne!(surplus()["state"], "ready");
}

#[test]
fn a_broken_file_is_named_with_its_path() {
    let one = engine(&["--events", "tcp://127.0.0.1:0"]);
    let folder = scratch("visible-broken");
    written("visible-broken/tokenizer.json", "{\"model\":");
    let gateway = Gateway::over(&[one.url()], &["--model-path", &folder]);
    wait_for_why(&gateway, &one, &folder);
}

#[test]
fn check_finds_endpoints_and_paths_that_cannot_work() {
    let check = |name: &str, text: &str| {
        let output = run(&["check", &written(name, text)]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (good, said) = check("visible-path.toml", "[events]\nmodel-path = [\"/nowhere/at/all\"]\n");
    assert!(!good && said.contains("model-path /nowhere/at/all"), "{said}");
    let (good, said) = check("visible-bind.toml", "[events]\nkv-events-bind = \"tcp://nowhere\"\n");
    assert!(!good && said.contains("kv-events-bind"), "{said}");
    assert!(check("visible-good.toml", "[events]\nkv-events-bind = \"tcp://127.0.0.1:0\"\n").0);
}

#[test]
fn reports_that_are_too_large_are_refused() {
    let one = engine(&[]);
    let gateway = Gateway::over(&[one.url()], &["--events-token", "secret"]);
    // The client waits for `100 Continue`, which does not come.
    let request = format!(
        "POST /events?worker=x HTTP/1.1\r\nhost: x\r\nauthorization: bearer secret\r\nexpect: 100-continue\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        (32 << 20) + 1
    );
    assert_eq!(Call::raw(gateway.admin(), request.as_bytes()).finish().status, 413);
}

/// A regular file that cannot be opened, as one of a network file system that does not answer: another process has a lease
/// on it, and the kernel waits 45 s for its return.
struct HeldFile {
    holder: std::process::Child,
    said: std::io::BufReader<std::process::ChildStdout>,
}

impl HeldFile {
    fn new(path: &str) -> HeldFile {
        const HOLDER: &str = "import fcntl, signal, sys\n\
            file = open(sys.argv[1], 'r+')\n\
            signal.signal(signal.SIGIO, lambda *_: print('asked', flush=True))\n\
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
            print('held', flush=True)\n\
            while True: signal.pause()\n";
        let mut holder = std::process::Command::new("python3");
        let mut holder =
            holder.args(["-c", HOLDER, path]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let said = std::io::BufReader::new(holder.stdout.take().unwrap());
        let mut held = HeldFile { holder, said };
        held.wait_for("held");
        held
    }

    /// Waits until another process opens the file.
    fn wait_for_reader(&mut self) {
        self.wait_for("asked");
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.said, &mut line).unwrap();
        assert_eq!(line.trim(), word);
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

/// A copy of a model's folder.
fn copied(model: &str, name: &str) -> (TempFolder, String) {
    let folder = TempFolder::new(name);
    for file in std::fs::read_dir(model).unwrap().map(|file| file.unwrap().file_name()) {
        let file = file.to_str().unwrap();
        std::fs::copy(format!("{model}/{file}"), folder.file(file)).unwrap();
    }
    let path = folder.file("");
    (folder, path.trim_end_matches('/').to_owned())
}

#[test]
fn a_model_folder_that_hangs_does_not_hold_up_the_end() {
    let model = scratch("visible-hanging-model");
    let one = engine(&["--events", "tcp://127.0.0.1:0", "--write-model", &model]);
    let (folder, path) = copied(&model, "visible-hanging");
    let mut held = HeldFile::new(&folder.file("tokenizer.json"));
    let gateway = Gateway::start(&[one.url()], &["--model-path", &path]);
    held.wait_for_reader();
    gateway.process.signal("-TERM");
    gateway.process.wait();
}

/// Engines are compared with their models' files one at a time. One whose folder hangs, or has a pipe for a file, must not
/// keep the turn.
#[test]
fn a_model_folder_that_hangs_holds_up_no_other_engine() {
    let model = scratch("visible-turns-model");
    let publishing = |more: &[&str]| engine(&[&["--events", "tcp://127.0.0.1:0", "--model"], more].concat());
    let honest = publishing(&["honest", "--write-model", &model]);
    let (folder, path) = copied(&model, "visible-turns");
    let mut held = HeldFile::new(&folder.file("tokenizer.json"));
    let hanging = publishing(&["hanging"]);
    let (piped_folder, piped_path) = copied(&model, "visible-turns-pipe");
    let pipe = piped_folder.file("tokenizer.json");
    std::fs::remove_file(&pipe).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let piped = publishing(&["piped"]);
    let paths = [format!("hanging={path}"), format!("piped={piped_path}"), format!("honest={model}")];
    let gateway = Gateway::start(&[hanging.url()], &["--model-path", &paths[0], &paths[1], &paths[2]]);
    held.wait_for_reader();
    for engine in [&piped, &honest] {
        let added = post(gateway.admin(), "/workers", &json!({"url": engine.url()}).to_string());
        assert!(added.status < 300, "{}", added.text());
    }
    wait_for_why(&gateway, &hanging, "could not be read within 10 s");
    wait_for_why(&gateway, &piped, "tokenizer.json is not a regular file");
    eventually("the honest engine is compared", || {
        (worker(&gateway, &honest)["matching"] != "none").then_some(())
    });
}
