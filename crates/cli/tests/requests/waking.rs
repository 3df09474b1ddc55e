//! A fleet that wakes: requests wait for a worker, and sleeping engines get none.

use std::time::Instant;

use crate::harness::client::{Call, chat, get, post};
use crate::harness::eventually;
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;

const PATH: &str = "/v1/chat/completions";

fn answering(model: &'static str) -> Scripted {
    Scripted::with_models(Some(model), |mut asked| asked.answer("{}"))
}

fn send(gateway: &Gateway, model: &str) -> Call {
    Call::send(gateway.url(), "POST", PATH, &[], chat(model).as_bytes())
}

fn wait_for_awaiting(gateway: &Gateway, n: usize) {
    eventually(&format!("{n} requests wait for a worker"), || {
        (gateway.metric("warmroute_requests_awaiting_worker") == n as f64).then_some(())
    });
}

/// A file of workers, which the gateway follows.
struct WorkerFile {
    _folder: TempFolder,
    path: String,
}

impl WorkerFile {
    fn new(name: &str) -> WorkerFile {
        let folder = TempFolder::new(name);
        let path = folder.file("workers.toml");
        let file = WorkerFile { _folder: folder, path };
        file.list(&[]);
        file
    }

    fn list(&self, engines: &[&Scripted]) {
        let entry = |engine: &&Scripted| format!("[[workers]]\nurl = \"{}\"\n", engine.url);
        let entries: String = engines.iter().map(entry).collect();
        std::fs::write(&self.path, if entries.is_empty() { "workers = []".into() } else { entries }).unwrap();
    }

    fn gateway(&self, more: &[&str]) -> Gateway {
        let mut args = vec!["--worker-file", self.path.as_str()];
        args.extend_from_slice(more);
        Gateway::start(&[], &args)
    }
}

#[test]
fn requests_wait_for_the_first_worker_and_the_queue_has_its_bound() {
    let file = WorkerFile::new("first-worker");
    let gateway = file.gateway(&["--wake-timeout-secs", "60", "--queue-size", "2"]);
    let ready = get(gateway.admin(), "/readyz");
    assert_eq!(ready.status, 200, "a router that lets requests wait must get them: {}", ready.text());
    let waiting = [send(&gateway, "m"), send(&gateway, "m")];
    wait_for_awaiting(&gateway, 2);
    let refused = post(gateway.url(), PATH, &chat("m"));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("queue_full")));
    let engine = answering("m");
    file.list(&[&engine]);
    for call in waiting {
        assert_eq!(call.finish().status, 200);
    }
    wait_for_awaiting(&gateway, 0);
    gateway.wait_for_idle();
}

#[test]
fn a_client_that_leaves_gives_its_place_in_the_queue_back() {
    let file = WorkerFile::new("leaving");
    let gateway = file.gateway(&["--wake-timeout-secs", "60"]);
    let call = send(&gateway, "m");
    wait_for_awaiting(&gateway, 1);
    call.hang_up();
    wait_for_awaiting(&gateway, 0);
    assert_eq!(gateway.metric_sum("warmroute_queue_waiting"), 0.0);
}

#[test]
fn a_request_waits_no_longer_than_its_limit_and_without_one_not_at_all() {
    let file = WorkerFile::new("limits");
    let gateway = file.gateway(&["--wake-timeout-secs", "1"]);
    let since = Instant::now();
    let refused = post(gateway.url(), PATH, &chat("m"));
    assert!(since.elapsed().as_millis() >= 1_000, "{:?}", since.elapsed());
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("no_worker_ready")));
    assert!(refused.text().contains("No worker became ready within 1"), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    let gateway = file.gateway(&[]);
    let refused = post(gateway.url(), PATH, &chat("m"));
    assert!(
        refused.status == 503 && refused.text().contains("No worker is ready that serves the request"),
        "{}",
        refused.text()
    );
    assert_eq!(get(gateway.admin(), "/readyz").status, 503);
}

#[test]
fn a_model_whose_workers_have_left_is_awaited_and_an_unknown_one_is_refused() {
    let file = WorkerFile::new("departed");
    let (kept, first) = (answering("kept"), answering("m"));
    file.list(&[&kept, &first]);
    let gateway = file.gateway(&["--wake-timeout-secs", "60"]);
    gateway.wait_for_ready(2);
    file.list(&[&kept]);
    gateway.wait_for_ready(1);
    assert_eq!(post(gateway.url(), PATH, &chat("never-served")).status, 404);
    assert_eq!(post(gateway.url(), PATH, &chat("kept")).status, 200);
    let waiting = send(&gateway, "m");
    wait_for_awaiting(&gateway, 1);
    assert_eq!(post(gateway.url(), PATH, &chat("kept")).status, 200, "others do not wait behind it");
    let second = answering("m");
    file.list(&[&kept, &second]);
    let response = waiting.finish();
    assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(second.url.as_str())));
}

/// Two models that scale to zero: the requests for one wait, while the other's engine starts first.
#[test]
fn a_waiting_request_outlasts_the_start_of_another_models_worker() {
    let file = WorkerFile::new("another-model");
    let gateway = file.gateway(&["--wake-timeout-secs", "60"]);
    let waiting = send(&gateway, "m");
    wait_for_awaiting(&gateway, 1);
    let other = answering("other");
    // Asleep, and with a list of its models: it is in the fleet and takes no requests.
    other.set_sleeping(true);
    file.list(&[&other]);
    eventually("the other model's engine sleeps", || {
        let sleeps =
            |worker: &serde_json::Value| worker["state"] == "sleeping" && worker["models"][0] == "other";
        gateway.workers().iter().any(sleeps).then_some(())
    });
    let later = send(&gateway, "m");
    wait_for_awaiting(&gateway, 2);
    other.set_sleeping(false);
    gateway.wait_for_ready(1);
    assert_eq!(post(gateway.url(), PATH, &chat("other")).status, 200);
    assert_eq!(
        post(gateway.url(), PATH, &chat("m")).status,
        404,
        "with a ready worker an unlisted model is unknown"
    );
    wait_for_awaiting(&gateway, 2);
    let engine = answering("m");
    file.list(&[&other, &engine]);
    assert_eq!((waiting.finish().status, later.finish().status), (200, 200));
}

#[test]
fn sleeping_engines_get_no_requests_until_they_wake() {
    let (awake, sleeper) = (answering("m"), answering("m"));
    awake.set_sleeping(false);
    sleeper.set_sleeping(true);
    let gateway = Gateway::start(
        &[&awake.url, &sleeper.url],
        &["--wake-timeout-secs", "60", "--policy", "round_robin"],
    );
    let state = |engine: &Scripted, wanted: &str| {
        eventually(&format!("the worker is {wanted}"), || {
            let workers = gateway.workers();
            let is_there =
                |worker: &serde_json::Value| worker["url"] == engine.url && worker["state"] == wanted;
            workers.iter().any(is_there).then_some(())
        });
    };
    state(&awake, "ready");
    state(&sleeper, "sleeping");
    for _ in 0..4 {
        let response = post(gateway.url(), PATH, &chat("m"));
        assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(awake.url.as_str())));
    }
    let series =
        |engine: &Scripted| format!("warmroute_worker_state{{worker=\"{}\",state=\"sleeping\"}}", engine.url);
    assert_eq!((gateway.metric(&series(&sleeper)), gateway.metric(&series(&awake))), (1.0, 0.0));
    awake.set_sleeping(true);
    state(&awake, "sleeping");
    let waiting = send(&gateway, "m");
    wait_for_awaiting(&gateway, 1);
    sleeper.set_sleeping(false);
    let response = waiting.finish();
    assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(sleeper.url.as_str())));
    assert_eq!((awake.asked(), sleeper.asked()), (4, 1));
}
