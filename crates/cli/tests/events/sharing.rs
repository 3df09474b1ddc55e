//! Several routers in front of the same engines, as processes that find each other.

use crate::harness::client::{Call, chat, chat_stream, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run};
use crate::harness::temp_folder::TempFolder;
use serde_json::{Value, json};

/// Three routers of one mesh; the second and third know only the first.
fn mesh(engines: &[Process], folder: &TempFolder) -> Vec<Gateway> {
    let secret = folder.file("secret");
    std::fs::write(&secret, "a secret that only these routers know\n").unwrap();
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    // A policy that always follows the cache; expected-TTFT would ignore a difference of one millisecond.
    let policy = ["--policy", "sticky_least_loaded"];
    let shared = ["--share", "mesh", "--share-secret-file", &secret, "--mesh-listen", "127.0.0.1:0"];
    let shared = [&shared[..], &policy].concat();
    let first = Gateway::over(&urls, &shared);
    let seed = peers(&first)["transport"]["listening"].as_str().unwrap().to_owned();
    let others = (0..2).map(|_| {
        let flags: Vec<&str> = shared.iter().copied().chain(["--mesh-peers", &seed]).collect();
        Gateway::over(&urls, &flags)
    });
    let all: Vec<Gateway> = std::iter::once(first).chain(others.collect::<Vec<_>>()).collect();
    all.iter().for_each(|router| wait_for_peers(router, 2));
    all
}

fn peers(router: &Gateway) -> Value {
    get(router.admin(), "/peers").json()
}

fn wait_for_peers(router: &Gateway, count: usize) {
    eventually("everybody is heard", || {
        let page = peers(router);
        let heard = page["peers"].as_array()?;
        (heard.len() == count && heard.iter().all(|peer| peer["missing_batches"] == 0)).then_some(())
    });
}

/// A conversation's turn, long enough for its cache to matter.
fn turn(topic: &str, words: usize) -> String {
    let text = format!("{topic} ").repeat(words);
    json!({"model": "llama-3.1-8b", "max_tokens": 2, "messages": [{"role": "user", "content": text}]})
        .to_string()
}

fn ask(router: &Gateway, body: &str) -> (String, u32) {
    let answer = post(router.url(), "/v1/chat/completions", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let cached = answer.header("x-warmroute-cached-tokens").unwrap().parse().unwrap();
    (answer.header("x-warmroute-worker").unwrap().to_owned(), cached)
}

/// Whether a router expects a prompt in some worker's cache. The preview leaves no trace.
fn knows(router: &Gateway, body: &str) -> Option<()> {
    let page = post(router.admin(), "/explain", body).json();
    let holds = |one: &Value| one["overlap_tokens"].as_u64().is_some_and(|tokens| tokens > 0);
    page["candidates"].as_array()?.iter().any(holds).then_some(())
}

/// The requests in flight that all routers know of, by router.
fn in_flight(router: &Gateway) -> u64 {
    router.workers().iter().map(|worker| worker["in_flight"].as_u64().unwrap()).sum()
}

fn follow_a_conversation(routers: &[Gateway]) {
    for (number, topic) in
        ["kettles", "herons", "violins", "gravel", "saffron", "lanterns"].iter().enumerate()
    {
        let (first, cached) = ask(&routers[number % 3], &turn(topic, 400));
        assert_eq!(cached, 0);
        let (next, again) = (&routers[(number + 1) % 3], &routers[(number + 2) % 3]);
        for router in [next, again] {
            eventually("the others have heard", || knows(router, &turn(topic, 500)));
            let (worker, cached) = ask(router, &turn(topic, 500));
            assert_eq!(worker, first, "{topic}: another router found it");
            assert!(cached > 300, "{topic}: {cached}");
        }
    }
}

#[test]
fn a_conversation_is_found_by_every_router_of_a_mesh() {
    let engines: Vec<Process> = (0..4).map(|_| engine(&[])).collect();
    let folder = TempFolder::new("mesh");
    let routers = mesh(&engines, &folder);
    follow_a_conversation(&routers);
    let page = get(routers[0].admin(), "/metrics").text();
    assert!(page.contains("\nwarmroute_peers 2\n"), "{page}");
    let documentation = include_str!("../../../../docs/metrics.md");
    let undocumented: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .filter(|name| !documentation.contains(name))
        .collect();
    assert_eq!(undocumented, [""; 0]);
    let text = peers(&routers[0]).to_string();
    assert!(!text.contains("kettles") && !page.contains("kettles"));
}

#[test]
fn a_router_that_is_killed_is_forgotten_with_all_it_had() {
    // Slow enough that its requests are in flight when it dies.
    let engines: Vec<Process> =
        (0..2).map(|_| Process::start(&["engine", "--port", "0", "--speed", "0.2"])).collect();
    let folder = TempFolder::new("killed");
    let mut routers = mesh(&engines, &folder);
    let dying = routers.remove(1);
    let calls: Vec<Call> = (0..6)
        .map(|_| {
            let mut call = Call::send(
                dying.url(),
                "POST",
                "/v1/chat/completions",
                &[],
                chat_stream("llama-3.1-8b", 400).as_bytes(),
            );
            call.read_until("200 OK");
            call
        })
        .collect();
    routers.iter().for_each(|router| {
        eventually("its bookings are known", || (in_flight(router) == 6).then_some(()));
    });
    // With SIGKILL.
    drop(dying);
    let killed = std::time::Instant::now();
    routers.iter().for_each(|router| {
        eventually("its bookings are gone", || (in_flight(router) == 0).then_some(()));
        wait_for_peers(router, 1);
    });
    println!("forgotten after {:?} (bound 2 s)", killed.elapsed());
    drop(calls);
    assert_eq!(post(routers[0].url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
}

/// First a router that no other lists leaves, then one that another lists.
#[test]
fn a_stopped_router_leaves_without_warnings() {
    let (engine, folder) = (engine(&[]), TempFolder::new("goodbye"));
    let secret = folder.file("secret");
    std::fs::write(&secret, "a secret that only these routers know\n").unwrap();
    let shared = ["--share", "mesh", "--share-secret-file", &secret, "--mesh-listen", "127.0.0.1:0"];
    let start = |name: &str, more: &[&str]| {
        let flags = [&["--worker-urls", engine.url()], &shared[..], more].concat();
        let log = std::fs::File::create(folder.file(name)).unwrap();
        Gateway { process: Process::serve(&flags, log.into()) }
    };
    let log = |name: &str| std::fs::read_to_string(folder.file(name)).unwrap();
    let listening = |router: &Gateway| peers(router)["transport"]["listening"].as_str().unwrap().to_owned();
    let first = start("first", &[]);
    let seed = listening(&first);
    let second = start("second", &["--mesh-peers", &seed]);
    [&first, &second].into_iter().for_each(|router| wait_for_peers(router, 1));
    second.process.signal("-TERM");
    assert!(second.process.wait().success());
    eventually("it has been heard", || log("first").contains("it said goodbye").then_some(()));
    // Until the new router has connected, failed dials would have been logged many times.
    let third = start("third", &["--mesh-peers", &seed]);
    [&first, &third].into_iter().for_each(|router| wait_for_peers(router, 1));
    assert_eq!(peers(&first)["transport"]["troubles"], json!([]), "{}", log("first"));
    first.process.signal("-TERM");
    assert!(first.process.wait().success());
    eventually("it has been heard", || log("third").contains("it said goodbye").then_some(()));
    let fourth = start("fourth", &["--mesh-peers", &listening(&third)]);
    [&third, &fourth].into_iter().for_each(|router| wait_for_peers(router, 1));
    assert_eq!(peers(&third)["transport"]["troubles"], json!([]), "{}", log("third"));
    for name in ["first", "second", "third"] {
        let text = log(name);
        let complaints = text.lines().filter(|line| line.contains("sharing with other routers"));
        assert_eq!(complaints.collect::<Vec<_>>(), [""; 0]);
    }
}

/// Replaces the file names in the documentation by test files.
#[test]
fn every_set_up_of_the_documentation_is_accepted() {
    let page = include_str!("../../../../docs/many-routers.md");
    let (folder, key) = (TempFolder::new("documented"), rcgen::KeyPair::generate().unwrap());
    let cert = rcgen::CertificateParams::new(vec!["routers".to_owned()]).unwrap().self_signed(&key).unwrap();
    let files = [
        ("/secrets/share", "a secret that only these routers know"),
        ("secret", "a secret that only these routers know"),
        ("password", "open sesame"),
        ("ca.pem", &cert.pem()),
        ("router.pem", &cert.pem()),
        ("router.key", &key.serialize_pem()),
    ]
    .map(|(named, text)| {
        let here = folder.file(named.rsplit('/').next().unwrap());
        std::fs::write(&here, text).unwrap();
        (named, here)
    });
    let here = |word: &str| {
        files.iter().find(|(named, _)| *named == word).map_or(word.to_owned(), |(_, here)| here.clone())
    };
    let checked = |text: &str, flags: &[String]| {
        let config = folder.file("config.toml");
        std::fs::write(&config, text).unwrap();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let output =
            run(&[&["check", config.as_str(), "--worker-urls", "http://127.0.0.1:1"], &flags[..]].concat());
        assert!(output.status.success(), "{text}{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let lines = page.lines().filter_map(|line| line.strip_prefix("warmroute serve … "));
    let lines: Vec<Vec<String>> = lines.map(|line| line.split(' ').map(here).collect()).collect();
    let blocks: Vec<&str> =
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(lines.len() >= 4 && blocks.len() >= 2, "{lines:?} {blocks:?}");
    lines.iter().for_each(|flags| checked("", flags));
    for block in blocks {
        let placed = files.iter().fold(block.to_owned(), |text, (named, here)| {
            text.replace(&format!("\"{named}\""), &format!("\"{here}\""))
        });
        checked(&placed, &[]);
    }
}

#[test]
fn routers_with_another_secret_are_refused() {
    let engine = engine(&[]);
    let folder = TempFolder::new("strangers");
    let (ours, theirs) = (folder.file("ours"), folder.file("theirs"));
    std::fs::write(&ours, "a secret that only these routers know").unwrap();
    std::fs::write(&theirs, "another secret of sixteen bytes and more").unwrap();
    let flags = |secret| ["--share", "mesh", "--share-secret-file", secret, "--mesh-listen", "127.0.0.1:0"];
    let first = Gateway::over(&[engine.url()], &flags(&ours));
    let seed = peers(&first)["transport"]["listening"].as_str().unwrap().to_owned();
    let stranger: Vec<&str> = flags(&theirs).into_iter().chain(["--mesh-peers", &seed]).collect();
    let stranger = Gateway::over(&[engine.url()], &stranger);
    let refused =
        |router: &Gateway| peers(router)["transport"]["refused"].as_u64().filter(|&count| count > 0);
    eventually("it was refused", || refused(&first));
    assert_eq!(peers(&first)["peers"], json!([]));
    assert_eq!(peers(&stranger)["peers"], json!([]));
    let trouble = peers(&stranger)["transport"]["last_trouble"]["text"].to_string();
    assert!(trouble.contains("secret"), "{trouble}");
}

#[test]
fn invalid_transports_are_refused_with_a_reason() {
    let folder = TempFolder::new("nonsense");
    let (secret, config) = (folder.file("secret"), folder.file("empty.toml"));
    std::fs::write(&config, "").unwrap();
    std::fs::write(&secret, "a secret that only these routers know").unwrap();
    for (share, why) in [
        (&["redis://127.0.0.1:1?password=hunter2"][..], "share-redis-password-file"),
        (&["redis://127.0.0.1:1/3"], "no database"),
        (&["redis://me:hunter2@127.0.0.1:1"], "share-redis-password-file"),
        (&["mesh", "redis://127.0.0.1:1"], "not both"),
    ] {
        let flags = ["check", &config, "--worker-urls", "http://127.0.0.1:1", "--share-secret-file", &secret];
        let output = run(&[&flags[..], &["--share"], share].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && told.contains(why) && !told.contains("hunter2"),
            "{share:?}: {told}"
        );
    }
}
