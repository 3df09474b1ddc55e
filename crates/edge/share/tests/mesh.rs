//! A mesh over real sockets: routers find each other, crash, stall, are partitioned and return;
//! unauthenticated clients get nothing.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use support::{
    DialCounter, Fault, Proxy, config, next, short_timeouts, start, wait_until, wait_until_connected,
    wait_until_received,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warmroute_share::{
    Link, MAX_MESSAGE_BYTES, MeshConfig, MeshFailure, MeshTimings, Secret, Versions, mesh, probe_mesh,
};
use warmroute_types::{RouterId, To};

/// A mesh of `count` routers that all know the first one.
fn start_mesh(count: u64) -> Vec<Link> {
    let seed = start(1, &[]);
    let address = support::address(&seed);
    let others = (2..=count).map(|me| start(me, &[address.as_str()]));
    std::iter::once(seed).chain(others).collect()
}

#[tokio::test]
async fn five_routers_find_each_other_through_one_seed_and_exchange_messages() {
    let mut links = start_mesh(5);
    wait_until_connected(&links).await;
    for link in &links {
        link.outgoing.send(To::Everyone, format!("of {}", link.status.me().0).into_bytes()).unwrap();
    }
    for link in &mut links {
        let mut received = Vec::new();
        for _ in 0..4 {
            let message = next(link).await;
            assert_eq!(message.bytes, format!("of {}", message.from.0).into_bytes());
            received.push(message.from.0);
        }
        received.sort_unstable();
        let others: Vec<u64> = (1..=5).filter(|other| *other != link.status.me().0).collect();
        assert_eq!(received, others);
    }
    links[0].outgoing.send(To::One(RouterId(3)), &b"for you"[..]).unwrap();
    assert_eq!(next(&mut links[2]).await.bytes, b"for you");
    links[0].outgoing.send(To::One(RouterId(99)), &b"for an unknown router"[..]).unwrap();
    wait_until(&links[0].status, |status| status.traffic().dropped_out == 1).await;
    for link in &mut links {
        assert_eq!(link.incoming.try_recv(), None, "no message is repeated or misdirected");
    }
}

#[tokio::test]
async fn the_largest_message_arrives_and_a_larger_one_is_rejected() {
    let mut links = start_mesh(2);
    wait_until_connected(&links).await;
    let large = vec![7; MAX_MESSAGE_BYTES];
    links[0].outgoing.send(To::Everyone, large.clone()).unwrap();
    assert!(next(&mut links[1]).await.bytes == large);
    let error = links[0].outgoing.send(To::Everyone, vec![7; MAX_MESSAGE_BYTES + 1]).unwrap_err();
    assert_eq!(error.to_string(), "the message has 8388609 bytes, more than the limit of 8388608");
    assert_eq!(links[0].status.traffic().refused, 1);
}

#[tokio::test]
async fn a_killed_router_is_gone_at_once_and_its_successor_is_new() {
    let mut links = start_mesh(3);
    wait_until_connected(&links).await;
    drop(links.pop());
    for link in &links {
        wait_until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    }
    links.push(start(4, &[support::address(&links[1]).as_str()]));
    wait_until_connected(&links).await;
}

/// Waits until both other routers received the goodbye, and then for as many dials as would cause a report.
#[tokio::test]
async fn a_router_that_leaves_causes_no_report_and_is_forgotten_unless_listed() {
    let mut links = start_mesh(3);
    wait_until_connected(&links).await;
    let clock = DialCounter::start().await;
    let leaving = links.pop().unwrap();
    leaving.leave.leave().await;
    drop(leaving);
    for link in &links {
        wait_until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    }
    // The seed leaves, too. The second router lists it and keeps dialing it without a report.
    let (seed, second) = (links.remove(0), links.remove(0));
    let listen_address = seed.status.listening().unwrap();
    seed.leave.leave().await;
    drop(seed);
    wait_until(&second.status, |status| status.peers().is_empty()).await;
    let witness = start(5, &[support::address(&second).as_str(), clock.address.as_str()]);
    clock.wait_for_dials(10).await;
    assert_eq!(second.status.problems(), [], "no problem is reported");
    assert_eq!(witness.status.peers().keys().collect::<Vec<_>>(), [&RouterId(2)]);
    let again = support::wait_until_ready(|| {
        mesh(MeshConfig { listen: listen_address, ..config(&[]) }, RouterId(7)).ok()
    })
    .await;
    wait_until(&second.status, |status| status.peers().contains_key(&RouterId(7))).await;
    drop(again);
    wait_until(&second.status, |status| support::reported(status, "unreachable")).await;
}

#[tokio::test]
async fn routers_that_start_together_report_no_problem() {
    let (late, clock) = (support::free_port().await, DialCounter::start().await);
    let timings = MeshTimings { settle: support::TEST_TIMEOUT, ..support::fast_timings() };
    let early = MeshConfig { timings, ..config(&[late.to_string().as_str(), clock.address.as_str()]) };
    let early = mesh(early, RouterId(1)).unwrap();
    clock.wait_for_dials(10).await;
    assert!(!support::reported(&early.status, &late.to_string()), "{:?}", early.status.problems());
    let late = mesh(MeshConfig { listen: late, ..config(&[]) }, RouterId(2)).unwrap();
    wait_until_connected(&[early, late]).await;
}

#[tokio::test]
async fn a_mesh_probe_finds_problems_and_is_not_counted_as_a_peer() {
    let seed = start(1, &[]);
    let (at, unused_address) = (support::address(&seed), support::unused_address().await);
    let probes =
        probe_mesh(&config(&[at.as_str(), unused_address.as_str(), "no.such.host.invalid:1"])).await.unwrap();
    let [there, absent, unresolved] = &probes[..] else { panic!("{probes:?}") };
    let probed = there.found.as_ref().unwrap();
    assert_eq!(
        (probed.router, probed.address.as_str(), probed.version),
        (RouterId(1), at.as_str(), Versions::OURS.newest)
    );
    assert!(matches!(absent.found, Err(MeshFailure::Unreachable(_))), "{absent:?}");
    assert!(matches!(unresolved.found, Err(MeshFailure::Unresolved(_))), "{unresolved:?}");
    let newer = Versions { oldest: 200, newest: 201 };
    let probes = probe_mesh(&MeshConfig { versions: newer, ..config(&[at.as_str()]) }).await.unwrap();
    assert!(matches!(probes[0].found, Err(MeshFailure::IncompatibleVersions { .. })), "{probes:?}");
    // A router that joins later is the first peer that was ever counted.
    let _friend = start(2, &[at.as_str()]);
    wait_until(&seed.status, |status| status.peers().len() == 1).await;
    assert_eq!(seed.status.peers().keys().collect::<Vec<_>>(), [&RouterId(2)]);
    assert_eq!(seed.status.traffic().reconnects, 0);
    let other = MeshConfig { secret: Secret::new("quite another secret").into(), ..config(&[at.as_str()]) };
    let probes = probe_mesh(&other).await.unwrap();
    assert!(matches!(probes[0].found, Err(MeshFailure::WrongSecret)), "{probes:?}");
}

#[tokio::test]
async fn two_routers_with_one_advertised_address_are_reported() {
    let router_at = |me, at: &str, peers: &[&str]| {
        mesh(MeshConfig { advertise: Some(at.to_owned()), ..config(peers) }, RouterId(me)).unwrap()
    };
    let seed = start(1, &[]);
    let (at, listen_address) = (support::unused_address().await, support::address(&seed));
    let _routers =
        [router_at(2, &at, &[listen_address.as_str()]), router_at(3, &at, &[listen_address.as_str()])];
    let words = format!("advertise the same address {at}");
    wait_until(&seed.status, |status| support::reported(status, &words)).await;
    assert!(support::reported(&seed.status, "mesh-advertise"));
}

#[tokio::test]
async fn replacing_the_secret_never_separates_routers() {
    let with = |me, secrets: [&str; 2], peers: &[&str]| {
        let secrets = secrets.map(|text| Secret::new(format!("{text}, of sixteen bytes or more")));
        mesh(MeshConfig { secret: secrets.into(), ..config(peers) }, RouterId(me)).unwrap()
    };
    let mut before = with(1, ["old", "new"], &[]);
    let mut after = with(2, ["new", "old"], &[support::address(&before).as_str()]);
    wait_until_received(&before, &mut after, "of the one before").await;
    wait_until_received(&after, &mut before, "of the one after").await;
    assert_eq!(before.status.traffic().refused, 0);
}

#[tokio::test]
async fn routers_stay_connected_without_the_seed_and_find_its_successor() {
    let mut links = start_mesh(3);
    wait_until_connected(&links).await;
    let listen_address = links[0].status.listening().unwrap();
    drop(links.remove(0));
    for link in &links {
        wait_until(&link.status, |status| status.peers().len() == 1).await;
    }
    let again = support::wait_until_ready(|| {
        mesh(MeshConfig { listen: listen_address, ..config(&[]) }, RouterId(7)).ok()
    })
    .await;
    links.push(again);
    wait_until_connected(&links).await;
}

/// Its connections stay open and its port accepts, as the kernel does for a stopped process, but it reads and
/// sends nothing.
#[tokio::test]
async fn a_stalled_router_does_not_affect_the_others() {
    let seed = mesh(MeshConfig { timings: short_timeouts(), ..config(&[]) }, RouterId(1)).unwrap();
    let paused_router = support::PausableRouter::start(2, support::address(&seed));
    let mut third = start(3, &[support::address(&seed).as_str()]);
    wait_until(&seed.status, |status| status.peers().len() == 2).await;
    paused_router.pause();
    // More than sockets and queues hold, while the third router still receives.
    let message: std::sync::Arc<[u8]> = vec![7; 1 << 20].into();
    for _ in 0..64 {
        seed.outgoing.send(To::Everyone, message.clone()).unwrap();
        wait_until_received(&seed, &mut third, "and a word").await;
    }
    wait_until(&seed.status, |status| !status.peers().contains_key(&RouterId(2))).await;
    assert!(seed.status.traffic().dropped_out > 0, "dropped messages are counted");
    paused_router.resume();
    wait_until(&seed.status, |status| status.peers().contains_key(&RouterId(2))).await;
}

#[tokio::test]
async fn a_partition_heals() {
    // Both advertise an unused address, so that they connect only through the proxy.
    let nowhere = Some(support::unused_address().await);
    let cut = |peers: &[&str]| MeshConfig {
        advertise: nowhere.clone(),
        timings: short_timeouts(),
        ..config(peers)
    };
    let mut seed = mesh(cut(&[]), RouterId(1)).unwrap();
    let proxy = Proxy::start(seed.status.listening().unwrap()).await;
    let other = mesh(cut(&[proxy.address().as_str()]), RouterId(2)).unwrap();
    wait_until(&seed.status, |status| status.peers().len() == 1).await;
    proxy.set(Fault::Hang);
    wait_until(&seed.status, |status| status.peers().is_empty()).await;
    wait_until(&other.status, |status| status.peers().is_empty()).await;
    proxy.set(Fault::None);
    wait_until_received(&other, &mut seed, "healed").await;
    assert!(seed.status.traffic().reconnects >= 1);
}

#[tokio::test]
async fn a_wrong_secret_is_reported_and_not_retried_soon() {
    let seed = start(1, &[]);
    let clock = DialCounter::start().await;
    let other = config(&[support::address(&seed).as_str(), clock.address.as_str()]);
    let other = MeshConfig { secret: Secret::new("quite another secret").into(), ..other };
    let other = mesh(other, RouterId(2)).unwrap();
    wait_until(&other.status, |status| {
        support::reported(status, "its secret differs: use the same share-secret-file on all routers")
    })
    .await;
    wait_until(&seed.status, |status| support::reported(status, "was rejected: its secret differs")).await;
    assert!(seed.status.peers().is_empty() && other.status.peers().is_empty());
    clock.wait_for_dials(10).await;
    assert_eq!(seed.status.traffic().refused, 1, "one attempt, then a long pause");
}

#[tokio::test]
async fn overlapping_versions_connect_and_others_are_reported_without_a_retry_storm() {
    let with_versions = |me, oldest, newest, peers: &[&str]| {
        mesh(MeshConfig { versions: Versions { oldest, newest }, ..config(peers) }, RouterId(me)).unwrap()
    };
    let old = with_versions(1, 1, 1, &[]);
    let at = support::address(&old);
    let mut next = with_versions(2, 1, 2, &[at.as_str()]);
    wait_until(&next.status, |status| status.peers().len() == 1).await;
    assert_eq!(next.status.peers()[&RouterId(1)].version, 1);
    old.outgoing.send(To::Everyone, &b"old to new"[..]).unwrap();
    assert_eq!(support::next(&mut next).await.bytes, b"old to new");
    let clock = DialCounter::start().await;
    let newest =
        with_versions(3, 2, 3, &[at.as_str(), support::address(&next).as_str(), clock.address.as_str()]);
    let words = "it supports version 1, this router 2 to 3: upgrade the older one";
    wait_until(&newest.status, |status| support::reported(status, words)).await;
    wait_until(&newest.status, |status| status.peers().contains_key(&RouterId(2))).await;
    assert_eq!(newest.status.peers()[&RouterId(2)].version, 2);
    // Each knows the other by gossip and may try once.
    clock.wait_for_dials(10).await;
    assert!(old.status.traffic().refused <= 3, "{:?}", old.status.traffic());
    assert!(!old.status.peers().contains_key(&RouterId(3)));
}

#[tokio::test]
async fn silent_and_garbage_clients_do_not_block_routers() {
    let seed = start(1, &[]);
    let at = seed.status.listening().unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(at).await.unwrap());
    }
    for garbage in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0; 64], &[0xff; 64], &[1, 0, 4, 1, 2, 3, 4]]
    {
        let mut other = TcpStream::connect(at).await.unwrap();
        other.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        // Reset or closed, without a byte in response.
        _ = other.read_to_end(&mut answer).await;
        assert_eq!(answer, b"", "{garbage:?}");
    }
    let friend = start(2, &[support::address(&seed).as_str()]);
    wait_until_connected(&[seed, friend]).await;
    drop(idle);
}

/// Repeated, changed or forged bytes end the connection and deliver nothing.
#[tokio::test]
async fn repeated_and_forged_frames_end_the_connection_and_are_not_delivered() {
    for fault in [Fault::Repeat, Fault::Invent, Fault::Oversize] {
        let mut seed = start(1, &[]);
        let proxy = Proxy::start(seed.status.listening().unwrap()).await;
        let advertise = Some(support::unused_address().await);
        let other = MeshConfig { advertise, ..config(&[proxy.address().as_str()]) };
        let other = mesh(other, RouterId(2)).unwrap();
        wait_until(&other.status, |status| status.peers().len() == 1).await;
        other.outgoing.send(To::Everyone, &b"once"[..]).unwrap();
        assert_eq!(next(&mut seed).await.bytes, b"once");
        proxy.set(fault);
        wait_until(&seed.status, |status| support::reported(status, "it sent a frame")).await;
        proxy.set(Fault::None);
        wait_until(&seed.status, |status| status.peers().len() == 1).await;
        assert_eq!(seed.incoming.try_recv(), None, "{fault:?}");
    }
}

#[tokio::test]
async fn a_flood_drops_the_oldest_and_memory_is_bounded() {
    let links = start_mesh(2);
    wait_until_connected(&links).await;
    // The receiver takes nothing: its inbox fills and keeps the newest messages.
    let message: std::sync::Arc<[u8]> = vec![7; 256 << 10].into();
    for number in 0..400_u32 {
        links[0].outgoing.send(To::Everyone, message.clone()).unwrap();
        if number % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    links[0].outgoing.send(To::Everyone, &b"last"[..]).unwrap();
    let [sender, mut receiver]: [Link; 2] = links.try_into().unwrap();
    let accounted = |sent: &warmroute_share::Traffic, got: &warmroute_share::Traffic| {
        sent.dropped_out + got.messages_in == 401
    };
    wait_until(&sender.status, |status| accounted(&status.traffic(), &receiver.status.traffic())).await;
    let mut held = Vec::new();
    while let Some(message) = receiver.incoming.try_recv() {
        held.push(message.bytes);
    }
    assert!(held.iter().map(Vec::len).sum::<usize>() <= 2 * MAX_MESSAGE_BYTES);
    assert_eq!(held.last().unwrap(), b"last", "the newest stays");
    let dropped = sender.status.traffic().dropped_out + receiver.status.traffic().dropped_in;
    assert_eq!(held.len() as u64 + dropped, 401, "and every dropped message is counted");
}

/// Two routers that dial each other at once keep one connection, the same on both sides.
#[tokio::test]
async fn two_routers_that_dial_each_other_keep_one_connection() {
    for round in 0..10 {
        let (near, far) = (support::free_port().await, support::free_port().await);
        let open = |me, listen: std::net::SocketAddr, peer: std::net::SocketAddr| {
            mesh(MeshConfig { listen, ..config(&[peer.to_string().as_str()]) }, RouterId(me)).unwrap()
        };
        let mut links = [open(1, near, far), open(2, far, near)];
        wait_until_connected(&links).await;
        let [near, far] = &mut links;
        wait_until_received(near, far, "settled").await;
        wait_until_received(far, near, "settled").await;
        // From now on no message is lost in either direction.
        for number in 0..50_u8 {
            near.outgoing.send(To::Everyone, vec![number]).unwrap();
            far.outgoing.send(To::Everyone, vec![number]).unwrap();
        }
        for link in &mut links {
            let mut numbers = Vec::new();
            while numbers.len() < 50 {
                let message = next(link).await;
                numbers.extend((message.bytes != b"settled").then(|| message.bytes[0]));
            }
            assert_eq!(numbers, (0..50).collect::<Vec<u8>>(), "round {round}");
        }
    }
}

#[tokio::test]
async fn the_list_may_contain_this_router() {
    let at = support::free_port().await;
    let open =
        |me, listen, peers: &[&str]| mesh(MeshConfig { listen, ..config(peers) }, RouterId(me)).unwrap();
    let alone = open(1, at, &[at.to_string().as_str()]);
    let other = open(2, "127.0.0.1:0".parse().unwrap(), &[at.to_string().as_str()]);
    wait_until_connected(&[alone, other]).await;
}

#[tokio::test]
async fn every_address_behind_a_name_is_a_router() {
    let seed = start(1, &[]);
    let port = seed.status.listening().unwrap().port();
    let by_name = start(2, &["no.such.host.invalid:1", format!("localhost:{port}").as_str()]);
    wait_until_connected(&[seed, by_name]).await;
}

#[tokio::test]
async fn a_port_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap();
    let error = mesh(MeshConfig { listen, ..config(&[]) }, RouterId(1)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on {listen}")), "{error}");
}
