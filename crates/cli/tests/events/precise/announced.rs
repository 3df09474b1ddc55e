//! APIs that are precise by the version that an engine announces.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use super::*;
use crate::harness::script::read_request;

/// Starts an address at which the engine answers as this version of vLLM.
fn announce(engine: &Process, version: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let engine = engine.url().to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let engine = engine.clone();
            std::thread::spawn(move || forward(stream.unwrap(), &engine, version));
        }
    });
    url
}

fn forward(mut stream: TcpStream, engine: &str, version: &str) {
    let Some((head, body)) = read_request(&mut stream) else { return };
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let (status, body) = match path {
        "/version" => (200, json!({"version": version}).to_string()),
        // Its samples have blocks that the simulated engine renders in its own way.
        "/v1/messages/count_tokens" => (404, String::new()),
        _ => {
            let answer =
                Call::send(engine, method, path, &["content-type: application/json"], &body).finish();
            (answer.status, answer.text())
        }
    };
    let length = body.len();
    _ = write!(
        stream,
        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
}

#[test]
fn salts_of_messages_are_predicted_as_the_engine_separates_them() {
    let folder = format!("{}/model-announced", env!("CARGO_TARGET_TMPDIR"));
    let events = ["--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0", "--write-model", &folder];
    let engines = vec![engine(&events)];
    let gateway = Gateway::start(&[&announce(&engines[0], "0.27.0")], &["--model-path", &folder]);
    let mut cluster = Cluster { engines, gateway, told: 0 };
    cluster.wait_for_view("reported");
    let worker = &cluster.gateway.workers()[0];
    assert_eq!(worker["apis"]["/v1/messages"], "precise", "{worker}");
    let text = "What may each tenant read of the other's cache? ".repeat(20);
    let mut found = Vec::new();
    for salt in [None, None, Some("x"), Some("x"), Some("y"), None] {
        let mut body =
            json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]});
        salt.into_iter().for_each(|salt| body["cache_salt"] = json!(salt));
        let response = post(cluster.gateway.url(), "/v1/messages", &body.to_string());
        assert_eq!(response.status, 200, "{}", response.text());
        let usage = &response.json()["usage"];
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
        let predicted: u64 = response.header("x-warmroute-cached-tokens").unwrap().parse().unwrap();
        assert_eq!(predicted, cached, "{salt:?}: {}", response.text());
        found.push(cached > 0);
        let prompt = usage["input_tokens"].as_u64().unwrap() + cached;
        cluster.told += prompt / BLOCK - cached / BLOCK;
        cluster.settle();
    }
    assert_eq!(found, [false, true, false, true, false, true]);
}
