//! Workers from Kubernetes: the real binary against a scripted API server.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::client::{Call, chat, post};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::process::{Gateway, run};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;

/// An API server with pods. Watches stay open until the test ends.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<ApiState>>);

#[derive(Default)]
struct ApiState {
    version: u64,
    /// The role lacks the verb watch.
    forbids_watches: bool,
    pods: Vec<Value>,
    watches: Vec<TcpStream>,
}

impl Api {
    /// Starts it, and writes a kubeconfig for it.
    fn start(folder: &TempFolder) -> (Api, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let api = Api::default();
        let serving = api.clone();
        std::thread::spawn(move || {
            listener.incoming().for_each(|stream| serving.serve(stream.unwrap()));
        });
        let kubeconfig = folder.file("kubeconfig");
        let text = format!(
            "current-context: test\ncontexts:\n- context:\n    cluster: test\n    namespace: serving\n    user: test\n  \
             name: test\nclusters:\n- cluster:\n    server: {server}\n  name: test\nusers:\n- name: test\n  user:\n    \
             token: secret\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        (api, kubeconfig)
    }

    /// Answers one request: each connection lists once or watches.
    fn serve(&self, mut stream: TcpStream) {
        let mut head = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap() == 0 {
                return;
            }
        }
        assert!(head.contains("/api/v1/namespaces/serving/pods?labelSelector=app%3Dvllm"), "{head}");
        assert!(head.contains("authorization: Bearer secret"), "{head}");
        let mut state = self.0.lock().unwrap();
        if head.contains("watch=true") && state.forbids_watches {
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").unwrap();
            return;
        }
        if head.contains("watch=true") {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
            state.watches.push(stream);
            return;
        }
        let metadata = json!({ "resourceVersion": state.version.to_string() });
        let list = json!({ "metadata": metadata, "items": state.pods }).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", list.len());
        stream.write_all(format!("{head}{list}").as_bytes()).unwrap();
    }

    /// Changes a pod while the router watches.
    fn put(&self, mut pod: Value) {
        eventually("the router watches", || (!self.0.lock().unwrap().watches.is_empty()).then_some(()));
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        pod["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let line = format!("{}\n", json!({ "type": "MODIFIED", "object": pod }));
        let chunk = format!("{:x}\r\n{line}\r\n", line.len());
        state.watches.iter_mut().for_each(|watch| watch.write_all(chunk.as_bytes()).unwrap());
    }
}

/// A pod on this machine, with the port of an engine.
fn pod(name: &str, engine: &Scripted) -> Value {
    let port = engine.url.rsplit(':').next().unwrap();
    json!({
        "metadata": { "name": name, "namespace": "serving", "uid": name, "annotations": { "warmroute/ports": port } },
        "spec": { "containers": [{}] },
        "status": {
            "phase": "Running", "podIP": "127.0.0.1", "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn with_ready(mut pod: Value, ready: &str) -> Value {
    pod["status"]["conditions"][0]["status"] = json!(ready);
    pod
}

fn terminating(mut pod: Value) -> Value {
    pod["metadata"]["deletionTimestamp"] = json!("2026-11-17T05:00:00Z");
    pod
}

fn answering() -> Scripted {
    Scripted::new(|mut asked| asked.answer("{}"))
}

fn wait_for_states(gateway: &Gateway, wanted: &[(&Scripted, &str)]) {
    eventually(
        &format!("the workers are {:?}", wanted.iter().map(|(_, state)| state).collect::<Vec<_>>()),
        || {
            let workers = gateway.workers();
            let is_there = |(engine, state): &(&Scripted, &str)| {
                workers.iter().any(|worker| worker["url"] == engine.url && worker["state"] == *state)
            };
            (workers.len() == wanted.len() && wanted.iter().all(is_there)).then_some(())
        },
    );
}

/// A gateway whose workers are the pods of the cluster.
fn discovering(kubeconfig: &str, more: &[&str]) -> Gateway {
    let flags = ["--service-discovery", "--selector", "app=vllm", "--kubeconfig", kubeconfig];
    Gateway::start(&[], &[&flags[..], more].concat())
}

fn ask(gateway: &Gateway) -> String {
    let response = post(gateway.url(), "/v1/chat/completions", &chat("m"));
    assert_eq!(response.status, 200, "{}", response.text());
    response.header("x-warmroute-worker").unwrap().to_owned()
}

#[test]
fn doctor_lists_the_pods_and_checks_the_ready_ones() {
    let folder = TempFolder::new("doctor-pods");
    let (api, kubeconfig) = Api::start(&folder);
    let engine = answering();
    let unusable = {
        let mut pod = pod("c", &engine);
        pod["metadata"]["annotations"] = json!({});
        pod
    };
    api.0.lock().unwrap().pods = vec![pod("a", &engine), with_ready(pod("b", &engine), "False"), unusable];
    let flags = ["doctor", "--service-discovery", "--selector", "app=vllm", "--kubeconfig", &kubeconfig];
    let done = run(&[&flags[..], &["--requests", "off"]].concat());
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    for words in [
        "pods with `app=vllm` in namespace serving: 1 workers are ready, 0 are not ready",
        "serving/c: 0 ports are declared",
        engine.url.as_str(),
        "serves m",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!done.status.success(), "an unusable pod is a trouble");
    let mut state = api.0.lock().unwrap();
    (state.forbids_watches, state.pods) = (true, vec![pod("a", &engine)]);
    drop(state);
    let done = run(&[&flags[..], &["--requests", "off"]].concat());
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.contains("in namespace serving cannot be watched: a right is missing (403)"), "{said}");
    assert!(said.contains("add the verb watch to the Role") && !done.status.success(), "{said}");
    let done = run(&[&flags[..5], &[&folder.file("nowhere")]].concat());
    assert!(String::from_utf8_lossy(&done.stderr).contains("cannot read"), "{done:?}");
}

#[test]
fn pods_become_workers_and_leave_with_their_pods() {
    let folder = TempFolder::new("discovering");
    let (api, kubeconfig) = Api::start(&folder);
    let (first, second) = (answering(), answering());
    api.0.lock().unwrap().pods = vec![pod("a", &first)];
    let gateway = discovering(&kubeconfig, &["--policy", "round_robin"]);
    wait_for_states(&gateway, &[(&first, "ready")]);
    assert_eq!(ask(&gateway), first.url);

    api.put(pod("b", &second));
    wait_for_states(&gateway, &[(&first, "ready"), (&second, "ready")]);
    // The pod's own probe says that it is not ready, though it answers ours.
    api.put(with_ready(pod("a", &first), "False"));
    wait_for_states(&gateway, &[(&first, "unready"), (&second, "ready")]);
    for _ in 0..4 {
        assert_eq!(ask(&gateway), second.url);
    }
    api.put(pod("a", &first));
    wait_for_states(&gateway, &[(&first, "ready"), (&second, "ready")]);
    api.put(terminating(pod("b", &second)));
    wait_for_states(&gateway, &[(&first, "ready")]);
    assert_eq!(ask(&gateway), first.url);
}

#[test]
fn the_last_pod_drains_when_it_terminates_and_requests_wait_for_the_next() {
    let folder = TempFolder::new("waking");
    let (api, kubeconfig) = Api::start(&folder);
    let gate = Gate::default();
    let held = gate.clone();
    let first = Scripted::new(move |mut asked| {
        held.pass();
        asked.answer("{}");
    });
    api.0.lock().unwrap().pods = vec![pod("a", &first)];
    let gateway = discovering(&kubeconfig, &["--wake-timeout-secs", "60"]);
    wait_for_states(&gateway, &[(&first, "ready")]);
    let send = || Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], chat("m").as_bytes());
    let in_flight = send();
    first.wait_for_asked(1);
    api.put(terminating(pod("a", &first)));
    wait_for_states(&gateway, &[(&first, "draining")]);
    let waiting = send();
    eventually("a request waits for a worker", || {
        (gateway.metric("warmroute_requests_awaiting_worker") == 1.0).then_some(())
    });
    gate.open();
    assert_eq!(in_flight.finish().status, 200, "a draining worker finishes its requests");
    let second = answering();
    api.put(pod("b", &second));
    let response = waiting.finish();
    assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(second.url.as_str())));
    assert_eq!(first.asked(), 1, "the terminating pod got nothing new");
    assert_eq!(gateway.metric("warmroute_requests_awaiting_worker"), 0.0);
}
