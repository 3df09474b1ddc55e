//! A rolling update as Kubernetes does it, with processes: a Service that forwards connections to ready routers, a new
//! router that is ready before an old one stops, and an old one that still accepts while proxies learn that it stops. The
//! chart sets this order (`maxUnavailable: 0`, the readiness probe, `preStop`, the drain timeout).

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use parking_lot::RwLock;

use crate::harness::client::{authority, get};
use crate::harness::eventually;
use crate::harness::load::Load;
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::temp_folder::TempFolder;

/// A Service: connections go to one endpoint after another, and stay there, as kube-proxy does it.
struct Service {
    url: String,
    endpoints: Arc<RwLock<Vec<String>>>,
}

impl Service {
    fn open(endpoints: Vec<String>) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let endpoints = Arc::new(RwLock::new(endpoints));
        let (known, turns) = (Arc::clone(&endpoints), AtomicUsize::new(0));
        thread::spawn(move || {
            for client in listener.incoming() {
                let at = {
                    let known = known.read();
                    known[turns.fetch_add(1, Relaxed) % known.len()].clone()
                };
                let Ok(router) = TcpStream::connect(at) else { continue };
                forward(client.unwrap(), router);
            }
        });
        Service { url, endpoints }
    }

    fn add(&self, router: &Gateway) {
        self.endpoints.write().push(authority(router.url()).to_owned());
    }

    fn remove(&self, router: &Gateway) {
        self.endpoints.write().retain(|at| at != authority(router.url()));
    }
}

/// Copies bytes both ways until both ends have closed.
fn forward(client: TcpStream, router: TcpStream) {
    for (mut from, mut to) in [
        (client.try_clone().unwrap(), router.try_clone().unwrap()),
        (router.try_clone().unwrap(), client.try_clone().unwrap()),
    ] {
        from.set_nodelay(true).unwrap();
        thread::spawn(move || {
            _ = std::io::copy(&mut from, &mut to);
            _ = to.shutdown(Shutdown::Write);
        });
    }
}

/// Starts a router of the mesh, and waits until Kubernetes would send it requests.
fn ready_router(urls: &[&str], secret: &str, peer: Option<&Gateway>) -> Gateway {
    let mut flags = vec!["--share", "mesh", "--share-secret-file", secret, "--mesh-listen", "127.0.0.1:0"];
    let seed = peer.map(|peer| {
        get(peer.admin(), "/peers").json()["transport"]["listening"].as_str().unwrap().to_owned()
    });
    if let Some(seed) = &seed {
        flags.extend(["--mesh-peers", seed]);
    }
    let router = Gateway::start(urls, &flags);
    eventually("the readiness probe succeeds", || {
        (get(router.admin(), "/readyz").status == 200).then_some(())
    });
    router
}

#[test]
fn a_rolling_update_under_load_fails_no_request() {
    let engines = [engine(&[]), engine(&[])];
    let urls: Vec<&str> = engines.iter().map(Process::url).collect();
    let folder = TempFolder::new("rolling");
    let secret = folder.file("secret");
    std::fs::write(&secret, "a secret of thirty-two bytes or more").unwrap();
    let mut routers = vec![ready_router(&urls, &secret, None)];
    routers.push(ready_router(&urls, &secret, routers.first()));
    let service = Service::open(routers.iter().map(|router| authority(router.url()).to_owned()).collect());
    let load = Load::start(&service.url, 8);
    for _ in 0..4 {
        load.wait_for_more(40);
        let new = ready_router(&urls, &secret, routers.last());
        service.add(&new);
        routers.push(new);
        let old = routers.remove(0);
        // Proxies learn of the change after the router does: connections still arrive for a while (preStop).
        load.wait_for_more(20);
        service.remove(&old);
        load.wait_for_more(20);
        old.process.signal("-TERM");
        assert!(old.process.wait().success(), "it finished what it had begun");
    }
    load.wait_for_more(40);
    let (asked, failed) = load.stop();
    println!("{asked} requests, 4 routers replaced, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {asked} failed: {failed:#?}", failed.len());
}
