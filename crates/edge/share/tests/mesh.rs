//! A mesh over real sockets: routers find each other, are killed, hang, are cut off and come back; strangers get nothing.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod near;

use std::path::{Path, PathBuf};

use near::{Counter, Fault, Proxy, config, everybody_knows, hears, impatient, next, start, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warmroute_share::{
    Link, MAX_MESSAGE_BYTES, MeshConfig, MeshFailure, MeshPace, MeshTls, Secret, Versions, mesh, visit_mesh,
};
use warmroute_types::{RouterId, To};
use warmroute_wire::Identity;

/// One seed, and as many more as make the mesh.
fn mesh_of(count: u64) -> Vec<Link> {
    let seed = start(1, &[]);
    let address = near::address(&seed);
    let others = (2..=count).map(|me| start(me, &[address.as_str()]));
    std::iter::once(seed).chain(others).collect()
}

#[tokio::test]
async fn five_routers_find_each_other_by_one_and_hear_each_other() {
    let mut links = mesh_of(5);
    everybody_knows(&links).await;
    for link in &links {
        link.outgoing.send(To::Everyone, format!("of {}", link.status.me().0).into_bytes()).unwrap();
    }
    for link in &mut links {
        let mut heard = Vec::new();
        for _ in 0..4 {
            let message = next(link).await;
            assert_eq!(message.bytes, format!("of {}", message.from.0).into_bytes());
            heard.push(message.from.0);
        }
        heard.sort_unstable();
        let others: Vec<u64> = (1..=5).filter(|other| *other != link.status.me().0).collect();
        assert_eq!(heard, others);
    }
    links[0].outgoing.send(To::One(RouterId(3)), &b"for you"[..]).unwrap();
    assert_eq!(next(&mut links[2]).await.bytes, b"for you");
    links[0].outgoing.send(To::One(RouterId(99)), &b"for nobody"[..]).unwrap();
    until(&links[0].status, |status| status.traffic().dropped_out == 1).await;
    for link in &mut links {
        assert_eq!(link.incoming.try_recv(), None, "nothing comes twice, and nothing to others");
    }
}

#[tokio::test]
async fn the_largest_message_arrives_and_a_larger_one_is_refused() {
    let mut links = mesh_of(2);
    everybody_knows(&links).await;
    let large = vec![7; MAX_MESSAGE_BYTES];
    links[0].outgoing.send(To::Everyone, large.clone()).unwrap();
    assert!(next(&mut links[1]).await.bytes == large);
    let error = links[0].outgoing.send(To::Everyone, vec![7; MAX_MESSAGE_BYTES + 1]).unwrap_err();
    assert_eq!(error.to_string(), "a message of 8388609 bytes; at most 8388608 go at once");
    assert_eq!(links[0].status.traffic().refused, 1);
}

#[tokio::test]
async fn one_that_is_killed_is_gone_at_once_and_its_successor_is_another() {
    let mut links = mesh_of(3);
    everybody_knows(&links).await;
    drop(links.pop());
    for link in &links {
        until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    }
    links.push(start(4, &[near::address(&links[1]).as_str()]));
    everybody_knows(&links).await;
}

/// Until the other two have heard it, and for as many tries after that as would tell of it.
#[tokio::test]
async fn one_that_says_goodbye_is_not_missed_and_forgotten_unless_it_is_listed() {
    let mut links = mesh_of(3);
    everybody_knows(&links).await;
    let clock = Counter::start().await;
    let leaver = links.pop().unwrap();
    leaver.leave.say_goodbye().await;
    drop(leaver);
    for link in &links {
        until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    }
    // The seed leaves, too: it is in the list of the second one, which goes on dialing it without a word.
    let (seed, second) = (links.remove(0), links.remove(0));
    let seat = seed.status.listening().unwrap();
    seed.leave.say_goodbye().await;
    drop(seed);
    until(&second.status, |status| status.peers().is_empty()).await;
    let witness = start(5, &[near::address(&second).as_str(), clock.address.as_str()]);
    clock.more(10).await;
    assert_eq!(second.status.troubles(), [], "nobody is missed");
    assert_eq!(witness.status.peers().keys().collect::<Vec<_>>(), [&RouterId(2)]);
    let again =
        near::until_ready(|| mesh(MeshConfig { listen: seat, ..config(&[]) }, RouterId(7)).ok()).await;
    until(&second.status, |status| status.peers().contains_key(&RouterId(7))).await;
    drop(again);
    until(&second.status, |status| near::told(status, "nobody answers there")).await;
}

#[tokio::test]
async fn routers_that_start_together_do_not_complain_of_each_other() {
    let (late, clock) = (near::free_port().await, Counter::start().await);
    let pace = MeshPace { settle: near::PATIENCE, ..near::quick() };
    let early = MeshConfig { pace, ..config(&[late.to_string().as_str(), clock.address.as_str()]) };
    let early = mesh(early, RouterId(1)).unwrap();
    clock.more(10).await;
    assert!(!near::told(&early.status, &late.to_string()), "{:?}", early.status.troubles());
    let late = mesh(MeshConfig { listen: late, ..config(&[]) }, RouterId(2)).unwrap();
    everybody_knows(&[early, late]).await;
}

#[tokio::test]
async fn a_visitor_learns_what_is_wrong_and_nobody_sees_a_router() {
    let seed = start(1, &[]);
    let (at, nobody) = (near::address(&seed), near::nobody().await);
    let visits =
        visit_mesh(&config(&[at.as_str(), nobody.as_str(), "no.such.host.invalid:1"])).await.unwrap();
    let [there, absent, unresolved] = &visits[..] else { panic!("{visits:?}") };
    let met = there.found.as_ref().unwrap();
    assert_eq!(
        (met.router, met.address.as_str(), met.version),
        (RouterId(1), at.as_str(), Versions::OURS.newest)
    );
    assert!(matches!(absent.found, Err(MeshFailure::Nobody(_))), "{absent:?}");
    assert!(matches!(unresolved.found, Err(MeshFailure::Unresolved(_))), "{unresolved:?}");
    let newer = Versions { oldest: 200, newest: 201 };
    let visits = visit_mesh(&MeshConfig { versions: newer, ..config(&[at.as_str()]) }).await.unwrap();
    assert!(matches!(visits[0].found, Err(MeshFailure::Versions { .. })), "{visits:?}");
    // A friend that comes afterwards is the first that was ever seen.
    let _friend = start(2, &[at.as_str()]);
    until(&seed.status, |status| status.peers().len() == 1).await;
    assert_eq!(seed.status.peers().keys().collect::<Vec<_>>(), [&RouterId(2)]);
    assert_eq!(seed.status.traffic().reconnects, 0);
    let stranger =
        MeshConfig { secret: Some(Secret::new("quite another secret").into()), ..config(&[at.as_str()]) };
    let visits = visit_mesh(&stranger).await.unwrap();
    assert!(matches!(visits[0].found, Err(MeshFailure::Secret)), "{visits:?}");
}

#[tokio::test]
async fn two_that_advertise_one_address_are_told() {
    let twin = |me, at: &str, peers: &[&str]| {
        mesh(MeshConfig { advertise: Some(at.to_owned()), ..config(peers) }, RouterId(me)).unwrap()
    };
    let seed = start(1, &[]);
    let (at, seat) = (near::nobody().await, near::address(&seed));
    let _twins = [twin(2, &at, &[seat.as_str()]), twin(3, &at, &[seat.as_str()])];
    let words = format!("both say that they are at {at}");
    until(&seed.status, |status| near::told(status, &words)).await;
    assert!(near::told(&seed.status, "mesh-advertise"));
}

#[tokio::test]
async fn a_secret_is_replaced_without_a_moment_in_which_routers_are_strangers() {
    let with = |me, secrets: [&str; 2], peers: &[&str]| {
        let secrets = secrets.map(|text| Secret::new(format!("{text}, of sixteen bytes or more")));
        mesh(MeshConfig { secret: Some(secrets.into()), ..config(peers) }, RouterId(me)).unwrap()
    };
    let mut before = with(1, ["old", "new"], &[]);
    let mut after = with(2, ["new", "old"], &[near::address(&before).as_str()]);
    hears(&before, &mut after, "of the one before").await;
    hears(&after, &mut before, "of the one after").await;
    assert_eq!(before.status.traffic().refused, 0);
}

#[tokio::test]
async fn without_the_seed_the_others_stay_together_and_find_it_again() {
    let mut links = mesh_of(3);
    everybody_knows(&links).await;
    let seat = links[0].status.listening().unwrap();
    drop(links.remove(0));
    for link in &links {
        until(&link.status, |status| status.peers().len() == 1).await;
    }
    let again =
        near::until_ready(|| mesh(MeshConfig { listen: seat, ..config(&[]) }, RouterId(7)).ok()).await;
    links.push(again);
    everybody_knows(&links).await;
}

/// Its connections stay and its port accepts, as with a stopped process: the kernel does that. It reads and says nothing any more.
#[tokio::test]
async fn one_that_hangs_costs_the_others_nothing() {
    let seed = mesh(MeshConfig { pace: impatient(), ..config(&[]) }, RouterId(1)).unwrap();
    let hangs = near::Stoppable::start(2, near::address(&seed));
    let mut third = start(3, &[near::address(&seed).as_str()]);
    until(&seed.status, |status| status.peers().len() == 2).await;
    hangs.stop();
    // More than sockets and queues together hold, while the third goes on hearing.
    let message: std::sync::Arc<[u8]> = vec![7; 1 << 20].into();
    for _ in 0..64 {
        seed.outgoing.send(To::Everyone, message.clone()).unwrap();
        hears(&seed, &mut third, "and a word").await;
    }
    until(&seed.status, |status| !status.peers().contains_key(&RouterId(2))).await;
    assert!(seed.status.traffic().dropped_out > 0, "what could not go was counted");
    hangs.go_on();
    until(&seed.status, |status| status.peers().contains_key(&RouterId(2))).await;
}

#[tokio::test]
async fn a_cut_network_heals() {
    // Both advertise a place that nobody answers at, so that the only way between the two is through the proxy.
    let nowhere = Some(near::nobody().await);
    let cut = |peers: &[&str]| MeshConfig { advertise: nowhere.clone(), pace: impatient(), ..config(peers) };
    let mut seed = mesh(cut(&[]), RouterId(1)).unwrap();
    let proxy = Proxy::start(seed.status.listening().unwrap()).await;
    let other = mesh(cut(&[proxy.address().as_str()]), RouterId(2)).unwrap();
    until(&seed.status, |status| status.peers().len() == 1).await;
    proxy.set(Fault::Hang);
    until(&seed.status, |status| status.peers().is_empty()).await;
    until(&other.status, |status| status.peers().is_empty()).await;
    proxy.set(Fault::None);
    hears(&other, &mut seed, "healed").await;
    assert!(seed.status.traffic().reconnects >= 1);
}

#[tokio::test]
async fn another_secret_is_refused_in_plain_words_and_not_tried_again_and_again() {
    let seed = start(1, &[]);
    let clock = Counter::start().await;
    let stranger = config(&[near::address(&seed).as_str(), clock.address.as_str()]);
    let stranger = MeshConfig { secret: Some(Secret::new("quite another secret").into()), ..stranger };
    let stranger = mesh(stranger, RouterId(2)).unwrap();
    until(&stranger.status, |status| near::told(status, "it has another secret")).await;
    until(&seed.status, |status| near::told(status, "was turned away: it has another secret")).await;
    assert!(seed.status.peers().is_empty() && stranger.status.peers().is_empty());
    clock.more(10).await;
    assert_eq!(seed.status.traffic().refused, 1, "one try, and then a long pause");
}

#[tokio::test]
async fn versions_that_overlap_share_and_others_say_so_without_a_storm() {
    let speaks = |me, oldest, newest, peers: &[&str]| {
        mesh(MeshConfig { versions: Versions { oldest, newest }, ..config(peers) }, RouterId(me)).unwrap()
    };
    let old = speaks(1, 1, 1, &[]);
    let at = near::address(&old);
    let mut next = speaks(2, 1, 2, &[at.as_str()]);
    until(&next.status, |status| status.peers().len() == 1).await;
    assert_eq!(next.status.peers()[&RouterId(1)].version, 1);
    old.outgoing.send(To::Everyone, &b"old to new"[..]).unwrap();
    assert_eq!(near::next(&mut next).await.bytes, b"old to new");
    let clock = Counter::start().await;
    let newest = speaks(3, 2, 3, &[at.as_str(), near::address(&next).as_str(), clock.address.as_str()]);
    let words = "it speaks version 1, this router 2 to 3: upgrade one of them";
    until(&newest.status, |status| near::told(status, words)).await;
    until(&newest.status, |status| status.peers().contains_key(&RouterId(2))).await;
    assert_eq!(newest.status.peers()[&RouterId(2)].version, 2);
    // Each knows of the other by gossip, too, and may try once.
    clock.more(10).await;
    assert!(old.status.traffic().refused <= 3, "{:?}", old.status.traffic());
    assert!(!old.status.peers().contains_key(&RouterId(3)));
}

#[tokio::test]
async fn strangers_who_say_nothing_or_nonsense_keep_nobody_out() {
    let seed = start(1, &[]);
    let at = seed.status.listening().unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(at).await.unwrap());
    }
    for garbage in [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &[0; 64], &[0xff; 64], &[1, 0, 4, 1, 2, 3, 4]]
    {
        let mut stranger = TcpStream::connect(at).await.unwrap();
        stranger.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        // Reset or closed, and not a byte of ours.
        _ = stranger.read_to_end(&mut answer).await;
        assert_eq!(answer, b"", "{garbage:?}");
    }
    let friend = start(2, &[near::address(&seed).as_str()]);
    everybody_knows(&[seed, friend]).await;
    drop(idle);
}

/// Whoever repeats, changes or invents bytes on a connection between two of ours ends it, and nothing of it is heard.
#[tokio::test]
async fn repeated_and_invented_frames_end_the_connection_and_are_not_heard() {
    for fault in [Fault::Repeat, Fault::Invent, Fault::Oversize] {
        let mut seed = start(1, &[]);
        let proxy = Proxy::start(seed.status.listening().unwrap()).await;
        let advertise = Some(near::nobody().await);
        let other = MeshConfig { advertise, ..config(&[proxy.address().as_str()]) };
        let other = mesh(other, RouterId(2)).unwrap();
        until(&other.status, |status| status.peers().len() == 1).await;
        other.outgoing.send(To::Everyone, &b"once"[..]).unwrap();
        assert_eq!(next(&mut seed).await.bytes, b"once");
        proxy.set(fault);
        until(&seed.status, |status| near::told(status, "it sent a frame")).await;
        proxy.set(Fault::None);
        until(&seed.status, |status| status.peers().len() == 1).await;
        assert_eq!(seed.incoming.try_recv(), None, "{fault:?}");
    }
}

#[tokio::test]
async fn a_flood_drops_the_oldest_and_memory_stays() {
    let links = mesh_of(2);
    everybody_knows(&links).await;
    // Nobody takes what comes: the receiver's buffer fills, and keeps the newest.
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
    until(&sender.status, |status| accounted(&status.traffic(), &receiver.status.traffic())).await;
    let mut held = Vec::new();
    while let Some(message) = receiver.incoming.try_recv() {
        held.push(message.bytes);
    }
    assert!(held.iter().map(Vec::len).sum::<usize>() <= 2 * MAX_MESSAGE_BYTES);
    assert_eq!(held.last().unwrap(), b"last", "the newest stays");
    let dropped = sender.status.traffic().dropped_out + receiver.status.traffic().dropped_in;
    assert_eq!(held.len() as u64 + dropped, 401, "and every other one is counted");
}

/// Two that dial each other at once, again and again: one connection is left, and it is the same one at both ends.
#[tokio::test]
async fn two_that_dial_each_other_end_with_one_connection() {
    for round in 0..10 {
        let (near, far) = (near::free_port().await, near::free_port().await);
        let open = |me, listen: std::net::SocketAddr, peer: std::net::SocketAddr| {
            mesh(MeshConfig { listen, ..config(&[peer.to_string().as_str()]) }, RouterId(me)).unwrap()
        };
        let mut links = [open(1, near, far), open(2, far, near)];
        everybody_knows(&links).await;
        let [near, far] = &mut links;
        hears(near, far, "settled").await;
        hears(far, near, "settled").await;
        // Nothing is lost any more, in either direction.
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
async fn oneself_among_the_peers_is_fine() {
    let at = near::free_port().await;
    let open =
        |me, listen, peers: &[&str]| mesh(MeshConfig { listen, ..config(peers) }, RouterId(me)).unwrap();
    let alone = open(1, at, &[at.to_string().as_str()]);
    let other = open(2, "127.0.0.1:0".parse().unwrap(), &[at.to_string().as_str()]);
    everybody_knows(&[alone, other]).await;
}

#[tokio::test]
async fn every_address_behind_a_name_is_a_router() {
    let seed = start(1, &[]);
    let port = seed.status.listening().unwrap().port();
    let by_name = start(2, &["no.such.host.invalid:1", format!("localhost:{port}").as_str()]);
    everybody_knows(&[seed, by_name]).await;
}

#[tokio::test]
async fn a_taken_port_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap();
    let error = mesh(MeshConfig { listen, ..config(&[]) }, RouterId(1)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on {listen}")), "{error}");
}

fn encrypted(folder: &Path, name: &str, server_name: Option<&str>) -> MeshTls {
    let authority = near::authority(folder);
    let (ca, certificates, key) = near::certificate(&authority, folder, name, &["routers.example"]);
    MeshTls { identity: Identity { certificates, key }, ca, server_name: server_name.map(str::to_owned) }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("warmroute-mesh-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[tokio::test]
async fn certificates_alone_are_enough_and_those_of_others_are_not() {
    let (ours, others) = (folder("ours"), folder("others"));
    let tls = encrypted(&ours, "router", Some("routers.example"));
    let open = |me, tls: &MeshTls, peers: &[&str]| {
        mesh(MeshConfig { secret: None, tls: Some(tls.clone()), ..config(peers) }, RouterId(me)).unwrap()
    };
    let seed = open(1, &tls, &[]);
    let at = near::address(&seed);
    let mut second = open(2, &tls, &[at.as_str()]);
    until(&seed.status, |status| status.peers().len() == 1).await;
    seed.outgoing.send(To::Everyone, &b"encrypted"[..]).unwrap();
    assert_eq!(next(&mut second).await.bytes, b"encrypted");
    let stranger = open(3, &encrypted(&others, "stranger", Some("routers.example")), &[at.as_str()]);
    until(&stranger.status, |status| status.trouble().is_some()).await;
    let unnamed = open(4, &MeshTls { server_name: None, ..tls.clone() }, &[at.as_str()]);
    until(&unnamed.status, |status| near::told(status, "certificate")).await;
    // Certificates at one end only: both say so, whoever dials.
    let plain = start(5, &[at.as_str()]);
    until(&plain.status, |status| near::told(status, "it speaks TLS and this router does not")).await;
    until(&seed.status, |status| near::told(status, "it does not speak TLS and this router does")).await;
    let dials = open(6, &tls, &[near::address(&plain).as_str()]);
    until(&dials.status, |status| near::told(status, "it does not speak TLS and this router does")).await;
    until(&plain.status, |status| near::told(status, "was turned away: it speaks TLS")).await;
    assert_eq!(seed.status.peers().keys().collect::<Vec<_>>(), [&RouterId(2)]);
    [ours, others].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
}
