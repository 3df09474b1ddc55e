//! Sharing by a real redis-server: its restart, its loss, its failover, and those who can write to it and do not belong to us.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod near;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use near::server::{Server, config, impatient, join};
use near::{everybody_knows, hears, next, told, until};
use warmroute_share::{Link, MAX_MESSAGE_BYTES, RedisConfig, RedisFailure, Secret, Versions, visit_redis};
use warmroute_types::{RouterId, To};
use warmroute_wire::WorkerTls;

fn three(config: &RedisConfig) -> Vec<Link> {
    (1..=3).map(|me| join(me, config.clone())).collect()
}

#[tokio::test]
async fn routers_hear_each_other_and_not_themselves() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let mut links = three(&config(server.url()));
    everybody_knows(&links).await;
    for link in &links {
        link.outgoing.send(To::Everyone, format!("of {}", link.status.me().0).into_bytes()).unwrap();
    }
    for link in &mut links {
        let mut heard = [next(link).await, next(link).await];
        heard.sort_by_key(|message| message.from);
        assert!(heard.iter().all(|message| message.bytes == format!("of {}", message.from.0).into_bytes()));
        assert!(
            heard.iter().all(|message| message.from != link.status.me()) && heard[0].from != heard[1].from
        );
    }
    links[0].outgoing.send(To::One(RouterId(3)), &b"for you"[..]).unwrap();
    assert_eq!(next(&mut links[2]).await.bytes, b"for you");
    links[0].outgoing.send(To::One(RouterId(99)), &b"for nobody"[..]).unwrap();
    until(&links[0].status, |status| status.traffic().dropped_out == 1).await;
    let large = vec![7; MAX_MESSAGE_BYTES];
    links[0].outgoing.send(To::One(RouterId(2)), large.clone()).unwrap();
    assert!(next(&mut links[1]).await.bytes == large);
    assert!(
        links.iter_mut().all(|link| link.incoming.try_recv().is_none()),
        "nothing comes twice, nothing to others"
    );
}

#[tokio::test]
async fn one_that_falls_silent_is_gone() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let mut links = three(&impatient(server.url()));
    everybody_knows(&links).await;
    drop(links.pop());
    for link in &links {
        until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    }
}

#[tokio::test]
async fn one_that_says_goodbye_is_gone_at_once() {
    needs_redis!();
    let server = Server::start(&[]).await;
    // Nobody is given up here.
    let mut links = three(&config(server.url()));
    everybody_knows(&links).await;
    let leaver = links.pop().unwrap();
    leaver.leave.say_goodbye().await;
    for link in &links {
        until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
        assert_eq!(link.status.troubles(), []);
    }
}

#[tokio::test]
async fn a_secret_is_replaced_without_a_moment_in_which_routers_are_strangers() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let with = |me, secrets: [&str; 2]| {
        let secrets = secrets.map(|text| Secret::new(format!("{text}, of sixteen bytes or more")));
        join(me, RedisConfig { secret: secrets.into(), ..config(server.url()) })
    };
    let (mut before, mut after) = (with(1, ["old", "new"]), with(2, ["new", "old"]));
    hears(&before, &mut after, "of the one before").await;
    hears(&after, &mut before, "of the one after").await;
    assert!(!told(&before.status, "cannot read") && !told(&after.status, "cannot read"));
}

#[tokio::test]
async fn a_visitor_learns_who_is_there_and_what_is_wrong_and_nobody_sees_a_router() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let replica = Server::start(&["--replicaof", "127.0.0.1", &server.port.to_string()]).await;
    let links = three(&config(server.url()));
    everybody_knows(&links).await;
    let urls = vec![Secret::new(server.url()), Secret::new(replica.url())];
    let looks = RedisConfig { urls, ..config(server.url()) };
    let mut settings = looks.clone();
    // Long enough for everybody to announce itself, however busy the machine is.
    settings.pace.here_every = Duration::from_secs(2);
    let visits = visit_redis(&settings).await.unwrap();
    let overheard = visits[0].found.as_ref().unwrap();
    assert_eq!(overheard.routers.iter().map(|router| router.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(matches!(visits[1].found, Err(RedisFailure::Replica)), "{visits:?}");
    let stranger = RedisConfig { secret: Secret::new("quite another secret").into(), ..settings };
    let overheard = visit_redis(&stranger).await.unwrap().remove(0).found.unwrap();
    assert!(overheard.routers.is_empty() && overheard.unreadable > 0, "{overheard:?}");
    for link in &links {
        assert_eq!((link.status.peers().len(), link.status.traffic().refused), (2, 0));
        assert_eq!(link.status.troubles(), []);
    }
}

#[tokio::test]
async fn what_a_user_may_not_is_told_and_what_it_needs() {
    needs_redis!();
    let user = |rights: &'static str| {
        let all = ["--user default off", "--user router on >word resetchannels", rights].join(" ");
        all.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    for rights in
        ["&warmroute:* +publish +role", "&warmroute:* +subscribe +role", "&other:* +publish +subscribe +role"]
    {
        let options = user(rights);
        let server = Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let url = format!("redis://router:word@127.0.0.1:{}", server.port);
        let visits = visit_redis(&config(url)).await.unwrap();
        assert!(matches!(visits[0].found, Err(RedisFailure::Forbidden(_))), "{rights}: {visits:?}");
        let nobody = visit_redis(&config(server.url())).await.unwrap();
        assert!(matches!(nobody[0].found, Err(RedisFailure::NoLogin)), "{nobody:?}");
    }
}

/// On one line each, and with what to write instead.
#[tokio::test]
async fn a_wrong_scheme_and_a_wrong_port_are_told_in_plain_words() {
    needs_redis!();
    let folder = std::env::temp_dir().join(format!("warmroute-share-scheme-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (ca, cert, key) = certificates(&folder);
    let [ca, cert, key] = [&ca, &cert, &key].map(|file| file.to_str().unwrap());
    let files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca];
    let (plain, encrypted) = (Server::start(&[]).await, Server::start(&files).await);
    let http = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http_port = http.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = http.accept().await.unwrap();
            tokio::spawn(async move {
                let page = "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\n\r\n<html>\n";
                _ = tokio::io::AsyncReadExt::read(&mut client, &mut [0; 64]).await;
                _ = tokio::io::AsyncWriteExt::write_all(&mut client, page.as_bytes()).await;
            });
        }
    });
    for (me, url, words) in [
        (1, format!("rediss://localhost:{}", plain.port), "write redis:// instead of rediss://"),
        (2, format!("redis://localhost:{}", encrypted.port), "write rediss:// instead of redis://"),
        (3, format!("redis://localhost:{http_port}"), "an HTTP server is there, and no Redis"),
        (4, format!("rediss://localhost:{http_port}"), "an HTTP server is there, and no Redis"),
    ] {
        let tls = WorkerTls { ca: Some(folder.join("ca.pem")), identity: None };
        let link = join(me, RedisConfig { tls, ..impatient(url.clone()) });
        until(&link.status, |status| told(status, words)).await;
        let troubles = link.status.troubles();
        assert!(troubles.iter().all(|trouble| !trouble.text.contains('\n')), "{url}: {troubles:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_server_that_restarts_is_found_again_and_nobody_waited() {
    needs_redis!();
    let mut server = Server::start(&[]).await;
    let mut links = three(&impatient(server.url()));
    everybody_knows(&links).await;
    server.kill();
    until(&links[0].status, |status| status.peers().is_empty() && status.trouble().is_some()).await;
    let began = Instant::now();
    for _ in 0..10_000 {
        links[0].outgoing.send(To::Everyone, &b"into the void"[..]).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(links[0].status.traffic().dropped_out >= 10_000 - 4_096);
    server.restart().await;
    everybody_knows(&links).await;
    let [first, second, _third] = &mut links[..] else { panic!("three") };
    hears(first, second, "after the restart").await;
    assert!(links[0].status.traffic().reconnects >= 1);
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_and_found_again() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let mut links = three(&impatient(server.url()));
    everybody_knows(&links).await;
    server.signal("STOP");
    until(&links[0].status, |status| status.peers().is_empty()).await;
    server.signal("CONT");
    everybody_knows(&links).await;
    let [first, second, _third] = &mut links[..] else { panic!("three") };
    hears(first, second, "after the pause").await;
}

#[tokio::test]
async fn a_failover_is_followed_among_the_servers_that_are_named() {
    needs_redis!();
    let mut main = Server::start(&[]).await;
    let replica = Server::start(&["--replicaof", "127.0.0.1", &main.port.to_string()]).await;
    let urls = vec![Secret::new(replica.url()), Secret::new(main.url())];
    let both = |me| join(me, RedisConfig { urls: urls.clone(), ..impatient(main.url()) });
    let mut links = [both(1), both(2)];
    everybody_knows(&links).await;
    let at_main = format!("by Redis at 127.0.0.1:{}", main.port);
    assert_eq!(links[0].status.peers()[&RouterId(2)].address, at_main, "a replica is passed over");
    main.kill();
    let mut intruder = replica.intruder().await;
    ::redis::cmd("REPLICAOF").arg("NO").arg("ONE").query_async::<()>(&mut intruder).await.unwrap();
    let at_other = format!("by Redis at 127.0.0.1:{}", replica.port);
    let moved =
        |status: &warmroute_share::Status| status.peers().values().any(|peer| peer.address == at_other);
    for link in &links {
        until(&link.status, moved).await;
    }
    let [first, second] = &mut links;
    hears(first, second, "after the failover").await;
}

#[tokio::test]
async fn passwords_are_needed_and_told_nowhere() {
    needs_redis!();
    let server = Server::start(&["--requirepass", "open sesame"]).await;
    let wrong = RedisConfig { password: Some(Secret::new("hush hush")), ..config(server.url()) };
    let wrong = join(1, wrong);
    until(&wrong.status, |status| told(status, "it does not accept the user or the password")).await;
    let said = format!("{:?} {:?}", wrong.status.trouble(), wrong.status);
    assert!(
        !said.contains("hush") && said.contains(&format!("Redis at 127.0.0.1:{}", server.port)),
        "{said}"
    );
    let right = RedisConfig { password: Some(Secret::new("open sesame")), ..config(server.url()) };
    everybody_knows(&[join(2, right.clone()), join(3, right)]).await;
}

/// The least that a user of the server must be allowed, as the documentation says.
#[tokio::test]
async fn a_user_with_few_rights_is_enough() {
    needs_redis!();
    let server = Server::start(&[
        "--user",
        "default",
        "off",
        "--user",
        "router",
        "on",
        ">word",
        "resetchannels",
        "&warmroute:*",
        "+publish",
        "+subscribe",
        "+role",
    ])
    .await;
    let url = format!("redis://router:word@127.0.0.1:{}", server.port);
    everybody_knows(&[join(1, config(url.clone())), join(2, config(url.clone()))]).await;
    let elsewhere = join(3, RedisConfig { prefix: "other".into(), ..config(url) });
    until(&elsewhere.status, |status| told(status, "NOPERM")).await;
}

#[tokio::test]
async fn whoever_writes_to_the_server_without_the_secret_is_not_heard() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let mut intruder = server.intruder().await;
    let client = ::redis::Client::open(server.url()).unwrap();
    let mut tap = client.get_async_pubsub().await.unwrap();
    tap.psubscribe("warmroute:*").await.unwrap();
    let mut tap = tap.into_on_message();
    let mut settings = config(server.url());
    settings.pace.gone_after = Duration::from_secs(3);
    let links = three(&settings);
    everybody_knows(&links).await;
    let [first, mut second, third]: [Link; 3] = links.try_into().unwrap();
    hears(&third, &mut second, "a word of the third").await;
    drop(third);
    until(&second.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    // All that was said, again, on every channel: the living are not heard twice, and the dead do not come back.
    let mut recorded = Vec::new();
    while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(20), tap.next()).await {
        recorded.push(message.get_payload_bytes().to_vec());
        if recorded.len() == 500 {
            break;
        }
    }
    assert!(recorded.len() > 10);
    while second.incoming.try_recv().is_some() {}
    let before = second.status.traffic();
    for channel in ["warmroute:all", "warmroute:0000000000000002"] {
        for letter in &recorded {
            ::redis::cmd("PUBLISH").arg(channel).arg(letter).query_async::<()>(&mut intruder).await.unwrap();
        }
        for garbage in [&b""[..], b"x", &[0; 43], &[1; 200]] {
            ::redis::cmd("PUBLISH").arg(channel).arg(garbage).query_async::<()>(&mut intruder).await.unwrap();
        }
    }
    first.outgoing.send(To::One(RouterId(2)), &b"the only one"[..]).unwrap();
    assert_eq!(next(&mut second).await.bytes, b"the only one");
    assert!(second.status.traffic().refused > before.refused + 10);
    assert_eq!(second.status.peers().keys().collect::<Vec<_>>(), [&RouterId(1)]);
}

#[tokio::test]
async fn a_message_larger_than_memory_should_hold_ends_the_connection_only() {
    needs_redis!();
    let server = Server::start(&["--client-output-buffer-limit", "pubsub", "0", "0", "0"]).await;
    let mut links = three(&impatient(server.url()));
    everybody_knows(&links).await;
    let mut intruder = server.intruder().await;
    let huge = vec![7_u8; 64 << 20];
    _ = ::redis::cmd("PUBLISH").arg("warmroute:all").arg(&huge).query_async::<()>(&mut intruder).await;
    for link in &links {
        until(&link.status, |status| status.traffic().reconnects >= 1).await;
    }
    everybody_knows(&links).await;
    let [first, second, _third] = &mut links[..] else { panic!("three") };
    hears(first, second, "after the flood").await;
}

#[tokio::test]
async fn another_secret_and_another_prefix_are_other_fleets() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let other = |me, secret: &str, prefix: &str| {
        join(
            me,
            RedisConfig { secret: Secret::new(secret).into(), prefix: prefix.into(), ..config(server.url()) },
        )
    };
    let links = three(&config(server.url()));
    let strangers =
        [other(4, "quite another secret", "warmroute"), other(5, "quite another secret", "warmroute")];
    let elsewhere =
        [other(6, "what only these routers know", "b"), other(7, "what only these routers know", "b")];
    for fleet in [&links[..], &strangers, &elsewhere] {
        everybody_knows(fleet).await;
        assert!(fleet.iter().all(|link| link.status.peers().len() == fleet.len() - 1));
    }
    until(&links[0].status, |status| status.traffic().refused > 0).await;
}

#[tokio::test]
async fn versions_that_overlap_share_and_others_say_so() {
    needs_redis!();
    let server = Server::start(&[]).await;
    let speaks = |me, oldest, newest| {
        join(me, RedisConfig { versions: Versions { oldest, newest }, ..config(server.url()) })
    };
    let [old, mut next] = [speaks(1, 1, 1), speaks(2, 1, 2)];
    until(&next.status, |status| status.peers().len() == 1).await;
    assert_eq!(next.status.peers()[&RouterId(1)].version, 1);
    hears(&old, &mut next, "old to new").await;
    let newest = speaks(3, 2, 3);
    until(&newest.status, |status| {
        told(status, "router 0000000000000001 speaks version 1, this router 2 to 3")
    })
    .await;
    until(&newest.status, |status| status.peers().contains_key(&RouterId(2))).await;
    assert!(!newest.status.peers().contains_key(&RouterId(1)));
}

/// Certificates of an authority of the test's own.
fn certificates(folder: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let made = near::authority(folder);
    near::certificate(&made, folder, "server", &["localhost"])
}

#[tokio::test]
async fn tls_with_an_authority_of_ones_own() {
    needs_redis!();
    let folder = std::env::temp_dir().join(format!("warmroute-share-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (ca, cert, key) = certificates(&folder);
    let options = [
        "--tls-cert-file",
        cert.to_str().unwrap(),
        "--tls-key-file",
        key.to_str().unwrap(),
        "--tls-ca-cert-file",
        ca.to_str().unwrap(),
        "--tls-auth-clients",
        "no",
    ];
    let server = Server::start(&options).await;
    let url = format!("rediss://localhost:{}", server.port);
    let trusted = RedisConfig { tls: WorkerTls { ca: Some(ca), identity: None }, ..config(url.clone()) };
    everybody_knows(&[join(1, trusted.clone()), join(2, trusted.clone())]).await;
    let by_address =
        RedisConfig { urls: vec![Secret::new(url.replace("localhost", "127.0.0.1"))], ..trusted };
    let by_address = join(3, by_address);
    until(&by_address.status, |status| told(status, "certificate")).await;
    std::fs::remove_dir_all(&folder).unwrap();
}
