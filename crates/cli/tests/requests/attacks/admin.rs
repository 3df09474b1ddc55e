//! The admin listener: pages in a browser, half-done changes, and the workers' key.

use serde_json::json;

use crate::harness::client::{Call, post};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

fn answering() -> Scripted {
    Scripted::new(|mut asked| asked.answer("{}"))
}

#[test]
fn a_web_page_reads_nothing() {
    let engine = answering();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let status = |path: &str, headers: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n\r\n");
        Call::raw(gateway.admin(), head.as_bytes()).finish().status
    };
    for path in ["/config", "/workers", "/metrics", "/explain", "/peers"] {
        assert_eq!(status(path, "host: rebound.example:29000"), 403, "{path}");
        assert_eq!(status(path, "host: 127.0.0.1\r\norigin: http://evil.example"), 403, "{path}");
        assert_eq!(status(path, "host: 127.0.0.1\r\nsec-fetch-site: cross-site"), 403, "{path}");
        assert_eq!(status(path, "host: 127.0.0.1"), 200, "{path}");
    }
}

#[test]
fn too_many_ranks_join_as_a_whole_or_not_at_all() {
    let engine = answering();
    let gateway = Gateway::over(&[&engine.url], &[]);
    for ranks in [65_535, 4_096] {
        let spec = json!({"url": "http://127.0.0.1:9", "ranks": ranks}).to_string();
        let refused = post(gateway.admin(), "/workers", &spec).status;
        assert!(matches!(refused, 400 | 409), "{refused}");
        assert_eq!(gateway.workers().len(), 1, "{ranks}");
    }
}

#[test]
fn the_workers_key_goes_to_no_worker_that_was_added_without_a_token() {
    let (engine, thief) = (answering(), answering());
    let gateway = Gateway::over(&[&engine.url], &["--worker-api-key", "worker-key"]);
    let spec = json!({"url": thief.url}).to_string();
    assert_eq!(post(gateway.admin(), "/workers", &spec).status, 403);
    assert_eq!((thief.probed(), gateway.workers().len()), (0, 1));
    let open =
        Gateway::over(&[&engine.url], &["--worker-api-key", "worker-key", "--client-worker-api", "open"]);
    assert_eq!(post(open.url(), &format!("/add_worker?url={}", thief.url), "").status, 403);
    assert_eq!(post(open.url(), "/workers", &spec).status, 403);
    assert_eq!(thief.probed(), 0);
}
