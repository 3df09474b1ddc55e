use serde_json::{Value, json};

use super::super::objects::ApiObject;
use super::*;

/// Changes an object before it is parsed.
type Edit<'a> = &'a dyn Fn(&mut Value);
/// The ports that workers listen on, or the reason why there are none.
type Ports = Result<&'static [u16], &'static str>;

fn pod(change: Edit<'_>) -> Pod {
    let mut pod = json!({
        "metadata": { "name": "llama-0", "namespace": "serving", "uid": "u1", "annotations": {} },
        "spec": { "containers": [{ "name": "vllm", "ports": [{ "name": "http", "containerPort": 8000 }] }] },
        "status": {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "conditions": [{ "type": "PodScheduled", "status": "True" }, { "type": "Ready", "status": "True" }],
        },
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

/// Workers as `URL@RANK`, with `!` in front of those that are not ready.
fn shown(workers: &[ListedWorker]) -> Vec<String> {
    let show = |worker: &ListedWorker| {
        let mark = if worker.readiness == SourceReadiness::NotReady { "!" } else { "" };
        format!("{mark}{}", worker.address)
    };
    workers.iter().map(show).collect()
}

fn result<T: ListsWorkers + ApiObject>(
    objects: &[T],
    defaults: &WorkerDefaults,
) -> Result<Vec<String>, String> {
    let (workers, unusable) = worker_set(objects.iter(), defaults);
    match unusable.first() {
        Some(bad) => Err(bad.to_string()),
        None => Ok(shown(&workers)),
    }
}

fn ports(text: &str) -> WorkerDefaults {
    WorkerDefaults { ports: parse_ports("test", text).unwrap(), ranks: None, pool: None }
}

#[test]
fn the_state_of_a_pod_decides() {
    let cases: [(&str, Edit<'_>, &[&str]); 8] = [
        ("ready", &|_| (), &["http://10.1.2.3:8000"]),
        (
            "not ready: the readiness probe fails",
            &|pod| pod["status"]["conditions"][1]["status"] = json!("False"),
            &["!http://10.1.2.3:8000"],
        ),
        ("no condition yet", &|pod| pod["status"]["conditions"] = json!(null), &["!http://10.1.2.3:8000"]),
        (
            "terminating, though still ready",
            &|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-17T05:00:00Z"),
            &[],
        ),
        ("no address yet", &|pod| pod["status"]["podIP"] = json!(""), &[]),
        (
            "evicted: Failed, and the address is gone",
            &|pod| pod["status"] = json!({ "phase": "Failed", "reason": "Evicted" }),
            &[],
        ),
        ("ended, with its address", &|pod| pod["status"]["phase"] = json!("Succeeded"), &[]),
        ("IPv6", &|pod| pod["status"]["podIP"] = json!("fd00::7"), &["http://[fd00::7]:8000"]),
    ];
    for (name, change, workers) in cases {
        assert_eq!(result(&[pod(change)], &WorkerDefaults::default()).unwrap(), workers, "{name}");
    }
}

#[test]
fn ports_come_from_annotations_options_or_the_pod() {
    let annotated = |key: &'static str, value: &'static str| {
        move |pod: &mut Value| pod["metadata"]["annotations"] = json!({ key: value })
    };
    let several = |pod: &mut Value| {
        pod["spec"]["containers"] = json!([
            { "ports": [{ "name": "metrics", "containerPort": 9000 }, { "name": "grpc", "containerPort": 50051 }] },
            { "ports": [{ "name": "dns", "containerPort": 53, "protocol": "UDP" }] },
        ]);
    };
    let cases: [(Edit<'_>, &str, Ports); 11] = [
        (&|_| (), "", Ok(&[8000])),
        (&|_| (), "9000", Ok(&[9000])),
        (&|_| (), "http", Ok(&[8000])),
        (&|_| (), "grpc", Err("serving/llama-0: no port is named grpc: set service-discovery-port")),
        (&several, "", Err("2 ports are declared and none is named http")),
        (&several, "metrics", Ok(&[9000])),
        (&annotated(PORTS, "8001, 8000,8001"), "9000", Ok(&[8000, 8001])),
        (&annotated("smg.ai/worker-ports", "8005"), "", Ok(&[8005])),
        (&annotated(PORTS, "eighty,0"), "", Err("annotation warmroute/ports: `0` is not a port")),
        (&annotated("llm-d.ai/active-ports", "8001"), "8000,8001,8002", Ok(&[8001])),
        (&|pod| pod["spec"]["containers"] = json!(null), "", Err("0 ports are declared")),
    ];
    for (change, option, expected) in cases {
        let found = result(&[pod(change)], &ports(option));
        match expected {
            Ok(numbers) => {
                let urls: Vec<String> =
                    numbers.iter().map(|port| format!("http://10.1.2.3:{port}")).collect();
                assert_eq!(found.unwrap(), urls, "{option}");
            }
            Err(why) => assert!(found.clone().unwrap_err().contains(why), "{found:?}"),
        }
    }
}

#[test]
fn models_ranks_scheme_and_events_come_from_annotations() {
    let annotated = pod(&|pod| {
        pod["metadata"]["annotations"] = json!({
            MODELS: "llama, llama-lora",
            RANKS: "2",
            SCHEME: "https",
            KV_EVENTS: "tcp://*:5557",
            KV_EVENTS_REPLAY: "tcp://*:5558",
        });
    });
    let defaults = WorkerDefaults { ranks: Some(8), ..WorkerDefaults::default() };
    let (workers, unusable) = worker_set([&annotated].into_iter(), &defaults);
    assert_eq!(unusable, []);
    assert_eq!(shown(&workers), ["https://10.1.2.3:8000@0", "https://10.1.2.3:8000@1"]);
    assert_eq!(workers[0].models.as_deref().unwrap(), ["llama", "llama-lora"]);
    let events = workers[1].kv_events.as_ref().unwrap();
    assert_eq!((events.endpoint.as_str(), events.replay.as_deref()), ("tcp://*:5557", Some("tcp://*:5558")));
    assert_eq!(workers[0].incarnation.as_deref(), Some("u1"));
    assert_eq!(
        result(&[pod(&|_| ())], &defaults).unwrap().len(),
        8,
        "the option applies without an annotation"
    );
    for (key, value, why) in [
        (RANKS, "many", "`many` is not a number of ranks"),
        (RANKS, "0", "`0` is not a number of ranks from 1 on"),
        (SCHEME, "grpc", "expected http or https"),
    ] {
        let wrong = pod(&|pod| pod["metadata"]["annotations"] = json!({ key: value }));
        let error = result(&[wrong], &defaults).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_pod_that_cannot_be_used_does_not_hide_the_others() {
    let other = pod(&|pod| {
        pod["metadata"]["name"] = json!("llama-1");
        pod["status"]["podIP"] = json!("10.1.2.4");
    });
    let wrong = pod(&|pod| pod["metadata"]["annotations"] = json!({ PORTS: "!" }));
    let (workers, unusable) = worker_set([&wrong, &other].into_iter(), &WorkerDefaults::default());
    assert_eq!(shown(&workers), ["http://10.1.2.4:8000"]);
    assert_eq!((unusable.len(), unusable[0].name.as_str()), (1, "llama-0"));
}

/// A slice as the API server writes it, with one endpoint of each kind.
fn slice(change: Edit<'_>) -> EndpointSlice {
    let endpoint = |address: &str, uid: &str, conditions: Value| json!({ "addresses": [address, "10.9.9.9"], "conditions": conditions, "targetRef": { "kind": "Pod", "uid": uid } });
    let mut slice = json!({
        "addressType": "IPv4",
        "metadata": { "name": "llama-x7", "namespace": "serving", "labels": { "kubernetes.io/service-name": "llama" } },
        "endpoints": [
            endpoint("10.0.0.1", "a", json!({ "ready": true, "serving": true, "terminating": false })),
            endpoint("10.0.0.2", "b", json!({ "ready": false, "serving": false, "terminating": false })),
            endpoint("10.0.0.3", "c", json!({ "ready": false, "serving": true, "terminating": true })),
            // With publishNotReadyAddresses a terminating endpoint is ready.
            endpoint("10.0.0.4", "d", json!({ "ready": true, "serving": true, "terminating": true })),
            endpoint("10.0.0.5", "e", json!({})),
        ],
        "ports": [{ "name": "http", "port": 8000, "protocol": "TCP" }, { "name": "metrics", "port": 9090 }],
    });
    change(&mut slice);
    serde_json::from_value(slice).unwrap()
}

#[test]
fn endpoints_of_a_service_become_workers() {
    let defaults = WorkerDefaults::default();
    let found = result(&[slice(&|_| ())], &defaults).unwrap();
    assert_eq!(found, ["http://10.0.0.1:8000", "!http://10.0.0.2:8000", "http://10.0.0.5:8000"]);
    let (workers, _) = worker_set([&slice(&|_| ())].into_iter(), &ports("metrics"));
    assert_eq!(shown(&workers)[0], "http://10.0.0.1:9090");
    assert_eq!(workers[0].incarnation.as_deref(), Some("a"), "the pod's UID");
    let empty = slice(&|slice| {
        slice["endpoints"] = json!(null);
        slice["ports"] = json!(null);
    });
    assert_eq!(result(&[empty], &defaults).unwrap(), [""; 0], "a Service without pods");
    let unnamed = slice(&|slice| slice["ports"] = json!([{ "name": null, "port": 8000 }]));
    assert_eq!(result(&[unnamed], &defaults).unwrap().len(), 3);
}

#[test]
fn an_endpoint_in_two_slices_is_one_worker_and_the_ready_one_counts() {
    let ready = |is_ready: bool| {
        slice(&move |slice| {
            slice["endpoints"] = json!([{ "addresses": ["10.0.0.1"], "conditions": { "ready": is_ready } }]);
        })
    };
    for slices in [[ready(true), ready(false)], [ready(false), ready(true)]] {
        assert_eq!(result(&slices, &WorkerDefaults::default()).unwrap(), ["http://10.0.0.1:8000"]);
    }
}

/// A dual-stack Service has a slice for each address family.
#[test]
fn a_pod_with_two_addresses_is_one_worker() {
    let family = |address: &'static str, conditions: Value| {
        let endpoint = json!({
            "addresses": [address], "conditions": conditions, "targetRef": { "kind": "Pod", "uid": "a" },
        });
        slice(&move |slice| slice["endpoints"] = json!([endpoint]))
    };
    let ready = json!({ "ready": true });
    let both = |ipv4: &Value, ipv6: &Value| {
        let slices = [family("10.0.0.1", ipv4.clone()), family("fd00::1", ipv6.clone())];
        result(&slices, &WorkerDefaults::default()).unwrap()
    };
    assert_eq!(both(&ready, &ready), ["http://10.0.0.1:8000"]);
    // The slices are not updated at once: the pod keeps its address meanwhile.
    assert_eq!(both(&json!({ "ready": false }), &ready), ["!http://10.0.0.1:8000"]);
    let terminating = json!({ "ready": false, "terminating": true });
    assert_eq!(both(&terminating, &ready), [""; 0], "it leaves with both addresses");
    let only = result(&[family("fd00::1", ready)], &WorkerDefaults::default()).unwrap();
    assert_eq!(only, ["http://[fd00::1]:8000"]);
}

#[test]
fn ports_are_numbers_or_names() {
    assert_eq!("8000".parse(), Ok(WorkerPort::Number(8000)));
    assert_eq!("http-api".parse(), Ok(WorkerPort::Name("http-api".into())));
    for bad in ["0", "65536", "HTTP", "a b", "much-too-long-name", ""] {
        assert!(bad.parse::<WorkerPort>().is_err(), "{bad}");
    }
}

#[test]
fn the_port_of_a_sidecar_counts_and_that_of_another_init_container_does_not() {
    let with_init = |restart_policy: Value| {
        pod(&|pod| {
            pod["spec"] = json!({
                "containers": [{ "ports": [{ "name": "engine", "containerPort": 8200 }] }],
                "initContainers": [{ "restartPolicy": restart_policy, "ports": [{ "name": "http", "containerPort": 8000 }] }],
            });
        })
    };
    let defaults = WorkerDefaults::default();
    assert_eq!(result(&[with_init(json!("Always"))], &defaults), Ok(vec!["http://10.1.2.3:8000".to_owned()]));
    assert_eq!(result(&[with_init(json!(null))], &defaults), Ok(vec!["http://10.1.2.3:8200".to_owned()]));
}
