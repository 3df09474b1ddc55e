//! The watches against a scripted API server, over real sockets.

mod scripted_api;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use warmroute_types::SourceReadiness;
use warmroute_wire::{Acceptor, AppProtocol, TlsFiles};

use super::access::Source;
use super::*;
use scripted_api::{SOON, ScriptedApi};

const TIMINGS: WatchTimings = WatchTimings {
    watch: Duration::from_secs(120),
    idle_max: Duration::from_secs(60),
    relist: Duration::from_secs(600),
    poll: Duration::from_secs(600),
    pause_max: Duration::from_millis(20),
    short: Duration::ZERO,
};

/// A watcher of a scripted API server.
struct Watching {
    api: ScriptedApi,
    listings: mpsc::Receiver<Listing>,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn access(api: &ScriptedApi) -> KubernetesAccess {
    KubernetesAccess {
        url: format!("http://127.0.0.1:{}", api.port),
        namespace: "serving".into(),
        origin: "test".into(),
        ca: None,
        identity: None,
        token: None,
    }
}

fn start(api: ScriptedApi, target: KubernetesTarget, timings: WatchTimings) -> Watching {
    let access = access(&api);
    start_with(api, access, target, timings)
}

/// A source in the namespace of the scripted workers.
fn serving(access: KubernetesAccess, target: KubernetesTarget) -> KubernetesSource {
    KubernetesSource {
        access,
        target,
        namespace: Some("serving".into()),
        port: None,
        ranks: None,
        pool: None,
    }
}

fn start_with(
    api: ScriptedApi,
    access: KubernetesAccess,
    target: KubernetesTarget,
    timings: WatchTimings,
) -> Watching {
    let (sender, listings) = mpsc::channel(16);
    let source = serving(access, target);
    let watcher = Watcher { source, id: SourceId(7), listings: sender, timings };
    Watching { api, listings, task: tokio::spawn(watcher.run()) }
}

fn pods() -> KubernetesTarget {
    KubernetesTarget::Pods { selector: "app=vllm,tier in (a, b)".into() }
}

impl Watching {
    /// The workers of the next listing, with `!` in front of those that are not ready.
    async fn next(&mut self) -> Vec<String> {
        self.next_with_departure().await.0
    }

    async fn next_with_departure(&mut self) -> (Vec<String>, Departure) {
        let listing = timeout(SOON, self.listings.recv()).await.expect("a listing").unwrap();
        assert_eq!(listing.source, SourceId(7));
        let show = |worker: &ListedWorker| {
            let mark = if worker.readiness == SourceReadiness::NotReady { "!" } else { "" };
            format!("{mark}{}", worker.address.url.trim_start_matches("http://10.0.0."))
        };
        (listing.workers.iter().map(show).collect(), listing.departure)
    }

    async fn expect(&mut self, workers: &[&str]) {
        assert_eq!(self.next().await, workers);
    }
}

/// A ready pod with the address 10.0.0.N.
fn pod(n: u8) -> Value {
    json!({
        "metadata": {
            "name": format!("vllm-{n}"), "namespace": "serving", "uid": format!("uid-{n}"), "annotations": {},
            // Most of a pod's JSON.
            "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": { "f:podIP": {} } } }],
        },
        "spec": { "containers": [{ "name": "vllm", "ports": [{ "name": "http", "containerPort": 8000 }] }] },
        "status": {
            "phase": "Running", "podIP": format!("10.0.0.{n}"),
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

async fn watching(ns: &[u8]) -> Watching {
    let api = ScriptedApi::start().await;
    ns.iter().for_each(|&n| api.put("pods", pod(n)));
    start(api, pods(), TIMINGS)
}

#[tokio::test]
async fn pods_are_listed_by_label_and_watched_from_that_version() {
    let mut watching = watching(&[1]).await;
    watching.expect(&["1:8000"]).await;
    let list = watching.api.request(&["/api/v1/namespaces/serving/pods?"]).await;
    assert!(list.contains("labelSelector=app%3Dvllm%2Ctier%20in%20%28a%2C%20b%29&limit="), "{list}");
    let watch = watching.api.request(&["watch=true"]).await;
    assert!(watch.contains("allowWatchBookmarks=true&timeoutSeconds=120&resourceVersion=101"), "{watch}");
    watching.api.put("pods", pod(2));
    watching.expect(&["1:8000", "2:8000"]).await;
    watching.api.delete("pods", "vllm-1");
    watching.expect(&["2:8000"]).await;
}

#[tokio::test]
async fn a_terminating_pod_leaves_before_it_is_deleted() {
    let mut watching = watching(&[1, 2]).await;
    watching.expect(&["1:8000", "2:8000"]).await;
    let terminating = with(pod(1), "/metadata/deletionTimestamp", json!("2026-11-17T05:00:00Z"));
    watching.api.put("pods", terminating);
    watching.expect(&["2:8000"]).await;
    watching.api.delete("pods", "vllm-1");
    watching.api.put("pods", pod(3));
    watching.expect(&["2:8000", "3:8000"]).await;
}

#[tokio::test]
async fn a_burst_of_events_is_a_few_changes() {
    let mut watching = watching(&[1]).await;
    watching.expect(&["1:8000"]).await;
    watching.api.request(&["watch=true"]).await;
    (2..=250).for_each(|n| watching.api.put("pods", pod(n)));
    let mut changes = 1;
    while watching.next().await.len() < 250 {
        changes += 1;
    }
    assert!(changes < 50, "{changes} changes of 249 pods");
}

#[tokio::test]
async fn an_evicted_pod_leaves_at_once() {
    let mut watching = watching(&[1, 2]).await;
    watching.expect(&["1:8000", "2:8000"]).await;
    watching.api.put("pods", with(pod(1), "/status", json!({ "phase": "Failed", "reason": "Evicted" })));
    watching.expect(&["2:8000"]).await;
}

#[tokio::test]
async fn an_unready_pod_stays_listed_and_a_replaced_one_has_another_identity() {
    let mut watching = watching(&[1]).await;
    watching.expect(&["1:8000"]).await;
    watching.api.put("pods", with(pod(1), "/status/conditions/0/status", json!("False")));
    watching.expect(&["!1:8000"]).await;
    watching.api.put("pods", pod(1));
    watching.expect(&["1:8000"]).await;
    let again = with(pod(1), "/metadata/uid", json!("uid-9"));
    watching.api.put("pods", again);
    let listing = timeout(SOON, watching.listings.recv()).await.unwrap().unwrap();
    assert_eq!(listing.workers[0].incarnation.as_deref(), Some("uid-9"));
}

#[tokio::test]
async fn ports_follow_the_annotation() {
    let mut watching = watching(&[1]).await;
    watching.expect(&["1:8000"]).await;
    watching
        .api
        .put("pods", with(pod(1), "/metadata/annotations", json!({ "warmroute/ports": "8000,8001" })));
    watching.expect(&["1:8000", "1:8001"]).await;
    watching.api.put("pods", with(pod(1), "/metadata/annotations", json!({ "warmroute/ports": "8001" })));
    watching.expect(&["1:8001"]).await;
}

#[tokio::test]
async fn a_severed_watch_goes_on_without_a_list_and_loses_nothing() {
    let mut watching = watching(&[1]).await;
    watching.expect(&["1:8000"]).await;
    watching.api.request(&["watch=true"]).await;
    watching.api.set_down(true);
    watching.api.put("pods", pod(2));
    watching.api.delete("pods", "vllm-1");
    // Several attempts find no server.
    for _ in 0..3 {
        watching.api.request(&["watch=true"]).await;
    }
    assert!(watching.listings.try_recv().is_err(), "the last set stands while the API server is away");
    watching.api.set_down(false);
    // Both events are in one answer, or in two.
    let mut workers = watching.next().await;
    if workers.len() == 2 {
        workers = watching.next().await;
    }
    assert_eq!(workers, ["2:8000"]);
    let lists = watching.api.take_requests();
    assert!(lists.iter().all(|request| request.contains("watch=true")), "{lists:?}");
}

#[tokio::test]
async fn an_expired_watch_lists_again_and_finds_what_was_lost() {
    let mut watching = watching(&[1, 2]).await;
    watching.expect(&["1:8000", "2:8000"]).await;
    watching.api.request(&["watch=true"]).await;
    watching.api.delete_silently("pods", "vllm-1");
    watching.api.expire();
    watching.expect(&["2:8000"]).await;
    watching.api.request(&["limit="]).await;
    // An answer instead of an event.
    watching.api.request(&["watch=true"]).await;
    watching.api.delete_silently("pods", "vllm-2");
    watching.api.answer_once("410 Gone", "", "too old resource version");
    watching.api.sever();
    watching.expect(&[]).await;
    // An event in the answer to a watch from an old version.
    watching.api.request(&["limit="]).await;
    watching.api.request(&["watch=true"]).await;
    watching.api.put("pods", pod(3));
    watching.expect(&["3:8000"]).await;
    watching.api.delete_silently("pods", "vllm-3");
    watching.api.compact();
    watching.api.sever();
    watching.expect(&[]).await;
}

/// The lists succeed, and are no reason to ask again without a pause.
#[tokio::test]
async fn an_api_server_whose_watches_always_expire_is_listed_ever_less_often() {
    let api = ScriptedApi::start().await;
    api.expire_all_watches();
    let begun = std::time::Instant::now();
    let mut watching = start(api, pods(), WatchTimings { pause_max: Duration::from_secs(60), ..TIMINGS });
    for _ in 0..5 {
        watching.api.request(&["limit="]).await;
    }
    // One list at once, then after at least half of 100, 200 and 400 ms.
    assert!(begun.elapsed() >= Duration::from_millis(350), "{:?}", begun.elapsed());
}

/// Some bytes before the end are no reason to ask again without a pause.
#[tokio::test]
async fn watches_that_end_after_an_event_are_opened_ever_less_often() {
    let api = ScriptedApi::start().await;
    api.cut_all_watches();
    let begun = std::time::Instant::now();
    let timings =
        WatchTimings { pause_max: Duration::from_secs(60), short: Duration::from_secs(60), ..TIMINGS };
    let mut watching = start(api, pods(), timings);
    for _ in 0..5 {
        watching.api.request(&["watch=true"]).await;
    }
    // After at least half of 50, 100, 200 and 400 ms.
    assert!(begun.elapsed() >= Duration::from_millis(375), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_role_without_watch_is_reported_and_the_set_is_listed_now_and_then() {
    let api = ScriptedApi::start().await;
    api.put("pods", pod(1));
    api.forbid_watches();
    let report = serving(access(&api), pods()).list_once().await.unwrap();
    assert_eq!(report.workers.len(), 1);
    assert!(report.unwatched[0].contains("a role needs list and watch on pods"), "{report:?}");
    let mut watching = start(api, pods(), WatchTimings { poll: Duration::from_millis(30), ..TIMINGS });
    watching.expect(&["1:8000"]).await;
    watching.api.put("pods", pod(2));
    watching.expect(&["1:8000", "2:8000"]).await;
}

/// The pods of the old selector still run, while the new ones may need minutes.
#[tokio::test]
async fn a_new_selector_keeps_the_old_pods_until_others_can_replace_them() {
    let api = ScriptedApi::start().await;
    api.put("inferencepools", pool(json!({ "app": "llama" }), &[8000]));
    api.put("pods", pod(1));
    let mut watching = start(api, KubernetesTarget::Pool { name: "llama".into() }, TIMINGS);
    watching.expect(&["1:8000"]).await;
    watching.api.put("inferencepools", pool(json!({ "app": "llama" }), &[8001]));
    assert_eq!(watching.next_with_departure().await, (vec!["1:8001".to_owned()], Departure::WhenReplaced));
    watching.api.delete("pods", "vllm-1");
    assert_eq!(watching.next_with_departure().await, (Vec::new(), Departure::AtOnce));
}

#[tokio::test]
async fn bookmarks_advance_the_version() {
    let mut watching = watching(&[1]).await;
    watching.expect(&["1:8000"]).await;
    watching.api.request(&["watch=true"]).await;
    watching.api.bookmark("pods");
    watching.api.put("pods", pod(2));
    watching.expect(&["1:8000", "2:8000"]).await;
    watching.api.bookmark("pods");
    watching.api.put("deployments", json!({ "metadata": { "name": "other" } }));
    watching.api.sever();
    let watch = watching.api.request(&["watch=true"]).await;
    assert!(watch.contains("resourceVersion=104"), "{watch}");
}

#[tokio::test]
async fn a_silent_watch_is_opened_again() {
    let api = ScriptedApi::start().await;
    let timings = WatchTimings { idle_max: Duration::from_millis(30), ..TIMINGS };
    let mut watching = start(api, pods(), timings);
    watching.expect(&[]).await;
    for _ in 0..3 {
        watching.api.request(&["watch=true"]).await;
    }
    watching.api.put("pods", pod(1));
    watching.expect(&["1:8000"]).await;
}

#[tokio::test]
async fn a_list_that_falls_silent_is_asked_for_again() {
    let api = ScriptedApi::start().await;
    api.put("pods", pod(1));
    api.stall_once();
    let timings = WatchTimings { idle_max: Duration::from_millis(100), ..TIMINGS };
    let mut watching = start(api, pods(), timings);
    watching.expect(&["1:8000"]).await;
}

#[tokio::test]
async fn a_list_now_and_then_finds_a_pod_that_vanished_without_an_event() {
    let api = ScriptedApi::start().await;
    api.put("pods", pod(1));
    let timings = WatchTimings { relist: Duration::from_millis(100), ..TIMINGS };
    let mut watching = start(api, pods(), timings);
    watching.expect(&["1:8000"]).await;
    watching.api.delete_silently("pods", "vllm-1");
    watching.expect(&[]).await;
}

/// An API server that is too busy for lists still sends events.
#[tokio::test]
async fn a_watch_goes_on_while_the_list_that_is_due_fails() {
    let api = ScriptedApi::start().await;
    api.put("pods", pod(1));
    let timings =
        WatchTimings { relist: Duration::from_millis(100), poll: Duration::from_millis(50), ..TIMINGS };
    let mut watching = start(api, pods(), timings);
    watching.expect(&["1:8000"]).await;
    watching.api.request(&["watch=true"]).await;
    watching.api.refuse_lists(true);
    // The list is due, and refused, and due again.
    for _ in 0..2 {
        watching.api.request(&["limit="]).await;
    }
    watching.api.put("pods", pod(2));
    watching.expect(&["1:8000", "2:8000"]).await;
    watching.api.delete_silently("pods", "vllm-1");
    watching.api.refuse_lists(false);
    watching.expect(&["2:8000"]).await;
}

#[tokio::test]
async fn long_lists_come_in_pages() {
    let api = ScriptedApi::start().await;
    (1..=5).for_each(|n| api.put("pods", pod(n)));
    api.page_len(2);
    let mut watching = start(api, pods(), TIMINGS);
    watching.expect(&["1:8000", "2:8000", "3:8000", "4:8000", "5:8000"]).await;
    watching.api.request(&["continue=2"]).await;
    watching.api.request(&["continue=4"]).await;
}

#[tokio::test]
async fn a_rotated_token_is_read_again() {
    let file = std::env::temp_dir().join(format!("warmroute-token-{}", std::process::id()));
    std::fs::write(&file, "old\n").unwrap();
    let api = ScriptedApi::start().await;
    api.accept_tokens(&["old"]);
    api.put("pods", pod(1));
    let access = KubernetesAccess { token: Some(Source::File(file.clone())), ..access(&api) };
    let mut watching = start_with(api, access, pods(), TIMINGS);
    watching.expect(&["1:8000"]).await;
    watching.api.request(&["watch=true"]).await;
    // The API server stops accepting the old token before the new one is in the pod.
    watching.api.accept_tokens(&["new"]);
    watching.api.sever();
    watching.api.request(&["watch=true"]).await;
    watching.api.put("pods", pod(2));
    std::fs::write(&file, "new\n").unwrap();
    watching.expect(&["1:8000", "2:8000"]).await;
    std::fs::remove_file(&file).unwrap();
}

#[tokio::test]
async fn failures_say_what_to_do() {
    let api = ScriptedApi::start().await;
    let watched = Watched { namespace: None, filter: String::new() };
    let mut reflector = Reflector::<Pod>::new(access(&api), watched, TIMINGS);
    for (status, headers, message, shown) in [
        (
            "403 Forbidden",
            "",
            "pods is forbidden: User \"x\" cannot list resource \"pods\"",
            "a right is missing (403): pods is forbidden: User \"x\" cannot list resource \"pods\"; a role needs list and watch on pods",
        ),
        ("404 Not Found", "", "page not found", "the API server has no pods (404): page not found"),
        ("429 Too Many Requests", "retry-after: 1\r\n", "", "the API server is busy (429 Too Many Requests)"),
        ("401 Unauthorized", "", "Unauthorized", "refuses the credentials (401): Unauthorized"),
        ("500 Internal Server Error", "", "etcd", "answers 500 Internal Server Error: etcd"),
    ] {
        api.answer_once(status, headers, message);
        let failure = reflector.step().await.unwrap_err().to_string();
        assert!(failure.contains(shown), "{failure}");
    }
    reflector.step().await.unwrap();
    assert_eq!(reflector.changed().await.count(), 0);
}

#[tokio::test]
async fn a_busy_api_server_is_asked_again() {
    let api = ScriptedApi::start().await;
    api.put("pods", pod(1));
    api.answer_once("429 Too Many Requests", "retry-after: 0\r\n", "");
    api.answer_once("503 Service Unavailable", "", "");
    start(api, pods(), TIMINGS).expect(&["1:8000"]).await;
}

#[tokio::test]
async fn a_busy_api_server_is_left_alone_for_as_long_as_it_asks() {
    let api = ScriptedApi::start().await;
    api.put("pods", pod(1));
    api.answer_once("429 Too Many Requests", "retry-after: 1\r\n", "");
    let begun = std::time::Instant::now();
    start(api, pods(), WatchTimings { pause_max: Duration::from_secs(10), ..TIMINGS })
        .expect(&["1:8000"])
        .await;
    // Its own first pause would be a tenth of a second at most.
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn endpoints_of_a_service_are_followed() {
    let api = ScriptedApi::start().await;
    let slice = |name: &str, addresses: &[(u8, bool)]| {
        let endpoint = |&(n, is_ready): &(u8, bool)| json!({ "addresses": [format!("10.0.0.{n}")], "conditions": { "ready": is_ready } });
        let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
        json!({
            "metadata": { "name": name, "namespace": "serving" },
            "endpoints": endpoints, "ports": [{ "name": "", "port": 8000 }],
        })
    };
    api.put("endpointslices", slice("a", &[(1, true)]));
    api.put("endpointslices", slice("b", &[(2, true)]));
    let mut watching = start(api, KubernetesTarget::Service { name: "llama".into() }, TIMINGS);
    watching.expect(&["1:8000", "2:8000"]).await;
    let list = watching.api.request(&["/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices?"]).await;
    assert!(list.contains("labelSelector=kubernetes.io%2Fservice-name%3Dllama"), "{list}");
    watching.api.put("endpointslices", slice("b", &[(2, false), (3, true)]));
    watching.expect(&["1:8000", "!2:8000", "3:8000"]).await;
    watching.api.delete("endpointslices", "b");
    watching.expect(&["1:8000"]).await;
}

#[tokio::test]
async fn one_list_finds_workers_or_says_what_is_missing() {
    let api = ScriptedApi::start().await;
    let list = async |target| {
        serving(access(&api), target).list_once().await.map(|report| (report.workers.len(), report.unusable))
    };
    let of_pool = || KubernetesTarget::Pool { name: "llama".into() };
    assert_eq!(list(of_pool()).await.unwrap_err().why, "there is no InferencePool named llama");
    api.put("inferencepools", pool(json!({ "app": "llama" }), &[8000, 8001]));
    api.put("pods", pod(1));
    api.put("pods", with(pod(2), "/metadata/annotations", json!({ "warmroute/ranks": "x" })));
    let (workers, unusable) = list(of_pool()).await.unwrap();
    assert_eq!((workers, unusable.len()), (2, 1));
    assert!(unusable[0].starts_with("serving/vllm-2: annotation warmroute/ranks"), "{unusable:?}");
    api.answer_once("403 Forbidden", "", "User \"x\" cannot list resource \"pods\"");
    let problem = list(pods()).await.unwrap_err();
    assert!(
        problem.why.contains("a right is missing (403)") && problem.remedy.contains("a Role"),
        "{problem:?}"
    );
    assert_eq!(list(KubernetesTarget::Service { name: "llama".into() }).await.unwrap(), (0, Vec::new()));
}

fn pool(labels: Value, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| json!({ "number": port })).collect();
    json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": { "name": "llama", "namespace": "serving" },
        "spec": { "selector": { "matchLabels": labels }, "targetPorts": ports },
    })
}

#[tokio::test]
async fn the_pods_of_a_pool_listen_on_all_its_ports_and_follow_its_changes() {
    let api = ScriptedApi::start().await;
    api.put("pods", pod(1));
    let mut watching = start(api, KubernetesTarget::Pool { name: "llama".into() }, TIMINGS);
    watching.expect(&[]).await;
    let list = watching.api.request(&["inferencepools?"]).await;
    assert!(list.starts_with("/apis/inference.networking.k8s.io/v1/namespaces/serving/"), "{list}");
    assert!(list.contains("fieldSelector=metadata.name%3Dllama"), "{list}");
    watching.api.put("inferencepools", pool(json!({ "app": "llama" }), &[8000, 8001]));
    watching.expect(&["1:8000", "1:8001"]).await;
    watching.api.request(&["/pods?labelSelector=app%3Dllama"]).await;
    watching.api.put("inferencepools", pool(json!({ "app": "llama", "v": "2" }), &[8001]));
    watching.expect(&["1:8001"]).await;
    watching.api.request(&["/pods?labelSelector=app%3Dllama%2Cv%3D2"]).await;
    watching.api.put("inferencepools", pool(json!({}), &[8001]));
    watching.expect(&[]).await;
    watching.api.put("inferencepools", pool(json!({ "app": "llama" }), &[8000]));
    watching.expect(&["1:8000"]).await;
    watching.api.delete("inferencepools", "llama");
    watching.expect(&[]).await;
}

/// A certificate authority, a server certificate for 127.0.0.1 and a client certificate, in files.
fn certificates(folder: &std::path::Path) -> [std::path::PathBuf; 5] {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    std::fs::create_dir_all(folder).unwrap();
    let write = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = write("ca.crt", params.self_signed(&ca_key).unwrap().pem());
    let issuer = Issuer::new(params, ca_key);
    let issue = |names: &[&str]| {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let (server, server_key) = issue(&["127.0.0.1"]);
    let (client, client_key) = issue(&["client"]);
    [
        ca,
        write("server.crt", server),
        write("server.key", server_key),
        write("client.crt", client),
        write("client.key", client_key),
    ]
}

#[tokio::test]
async fn a_kubeconfig_with_certificates_reaches_a_server_with_tls() {
    let folder = std::env::temp_dir().join(format!("warmroute-kubeconfig-{}", std::process::id()));
    let [ca, server, server_key, client, client_key] = certificates(&folder);
    let files = TlsFiles { ca: Some(ca), certificates: Some(server), key: Some(server_key) };
    let acceptor = Acceptor::new(&files, AppProtocol::Http).unwrap();
    let api = ScriptedApi::start_with(acceptor).await;
    api.put("pods", pod(1));
    let encode = |file: &std::path::Path| {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(std::fs::read(file).unwrap())
    };
    let kubeconfig = format!(
        "current-context: c\ncontexts:\n- context:\n    cluster: k\n    user: u\n  name: c\nclusters:\n- cluster:\n    \
         certificate-authority: ca.crt\n    server: https://127.0.0.1:{}\n  name: k\nusers:\n- name: u\n  user:\n    \
         client-certificate-data: {}\n    client-key-data: {}\n",
        api.port,
        encode(&client),
        encode(&client_key)
    );
    let file = folder.join("config");
    std::fs::write(&file, kubeconfig).unwrap();
    let access = KubernetesAccess::find(Some(&file)).unwrap();
    let mut watching = start_with(api, access, pods(), TIMINGS);
    watching.expect(&["1:8000"]).await;
    drop(watching);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The CA bundle of a pod is replaced while its process runs.
#[tokio::test]
async fn a_rotated_ca_bundle_is_read_again() {
    let folder = std::env::temp_dir().join(format!("warmroute-ca-{}", std::process::id()));
    let [ca, server, server_key, ..] = certificates(&folder);
    let [old_ca, ..] = certificates(&folder.join("old"));
    let files = TlsFiles { ca: None, certificates: Some(server), key: Some(server_key) };
    let acceptor = Acceptor::new(&files, AppProtocol::Http).unwrap();
    let api = ScriptedApi::start_with(acceptor).await;
    api.put("pods", pod(1));
    let url = format!("https://127.0.0.1:{}", api.port);
    let access = KubernetesAccess { url, ca: Some(Source::File(old_ca.clone())), ..access(&api) };
    let source = serving(access, pods());
    assert!(source.list_once().await.is_err(), "the server's certificate is of another authority");
    std::fs::copy(ca, old_ca).unwrap();
    assert_eq!(source.list_once().await.unwrap().workers.len(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
}
