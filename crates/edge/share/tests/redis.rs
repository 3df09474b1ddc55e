//! Sharing through a real redis-server: restart, loss and failover, and clients that write to the server
//! without the secret.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use support::server::{Server, config, join, short_timeouts};
use support::{next, reported, wait_until, wait_until_connected, wait_until_received};
use warmroute_share::{Link, MAX_MESSAGE_BYTES, RedisConfig, RedisFailure, Secret, Versions, probe_redis};
use warmroute_types::{RouterId, To};
use warmroute_wire::TlsFiles;

fn three(config: &RedisConfig) -> Vec<Link> {
    (1..=3).map(|me| join(me, config.clone())).collect()
}

#[tokio::test]
async fn routers_receive_each_others_messages_but_not_their_own() {
    require_redis!();
    let server = Server::start(&[]).await;
    let mut links = three(&config(server.url()));
    wait_until_connected(&links).await;
    for link in &links {
        link.outgoing.send(To::Everyone, format!("of {}", link.status.me().0).into_bytes()).unwrap();
    }
    for link in &mut links {
        let mut received = [next(link).await, next(link).await];
        received.sort_by_key(|message| message.from);
        assert!(
            received.iter().all(|message| message.bytes == format!("of {}", message.from.0).into_bytes())
        );
        assert!(
            received.iter().all(|message| message.from != link.status.me())
                && received[0].from != received[1].from
        );
    }
    links[0].outgoing.send(To::One(RouterId(3)), &b"for you"[..]).unwrap();
    assert_eq!(next(&mut links[2]).await.bytes, b"for you");
    links[0].outgoing.send(To::One(RouterId(99)), &b"for an unknown router"[..]).unwrap();
    wait_until(&links[0].status, |status| status.traffic().dropped_out == 1).await;
    let large = vec![7; MAX_MESSAGE_BYTES];
    links[0].outgoing.send(To::One(RouterId(2)), large.clone()).unwrap();
    assert!(next(&mut links[1]).await.bytes == large);
    assert!(
        links.iter_mut().all(|link| link.incoming.try_recv().is_none()),
        "no message is repeated or misdirected"
    );
}

#[tokio::test]
async fn a_silent_router_is_removed() {
    require_redis!();
    let server = Server::start(&[]).await;
    let mut links = three(&short_timeouts(server.url()));
    wait_until_connected(&links).await;
    drop(links.pop());
    for link in &links {
        wait_until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    }
}

#[tokio::test]
async fn a_router_that_leaves_is_removed_at_once() {
    require_redis!();
    let server = Server::start(&[]).await;
    // With these timeouts no router is given up.
    let mut links = three(&config(server.url()));
    wait_until_connected(&links).await;
    let leaving = links.pop().unwrap();
    leaving.leave.leave().await;
    for link in &links {
        wait_until(&link.status, |status| !status.peers().contains_key(&RouterId(3))).await;
        assert_eq!(link.status.problems(), []);
    }
}

#[tokio::test]
async fn replacing_the_secret_never_separates_routers() {
    require_redis!();
    let server = Server::start(&[]).await;
    let with = |me, secrets: [&str; 2]| {
        let secrets = secrets.map(|text| Secret::new(format!("{text}, of sixteen bytes or more")));
        join(me, RedisConfig { secret: secrets.into(), ..config(server.url()) })
    };
    let (mut before, mut after) = (with(1, ["old", "new"]), with(2, ["new", "old"]));
    wait_until_received(&before, &mut after, "of the one before").await;
    wait_until_received(&after, &mut before, "of the one after").await;
    assert!(
        !reported(&before.status, "uses another secret") && !reported(&after.status, "uses another secret")
    );
}

#[tokio::test]
async fn a_redis_probe_finds_routers_and_problems_and_is_not_counted_as_a_peer() {
    require_redis!();
    let server = Server::start(&[]).await;
    let replica = Server::start(&["--replicaof", "127.0.0.1", &server.port.to_string()]).await;
    let links = three(&config(server.url()));
    wait_until_connected(&links).await;
    let urls = vec![Secret::new(server.url()), Secret::new(replica.url())];
    let looks = RedisConfig { urls, ..config(server.url()) };
    let mut settings = looks.clone();
    // Long enough for every router to announce itself on a busy machine.
    settings.timings.announce_interval = Duration::from_secs(2);
    let probes = probe_redis(&settings).await.unwrap();
    let announced = probes[0].found.as_ref().unwrap();
    assert_eq!(announced.routers.iter().map(|router| router.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(matches!(probes[1].found, Err(RedisFailure::Replica)), "{probes:?}");
    let other = RedisConfig { secret: Secret::new("quite another secret").into(), ..settings };
    let announced = probe_redis(&other).await.unwrap().remove(0).found.unwrap();
    assert!(announced.routers.is_empty() && announced.unreadable > 0, "{announced:?}");
    for link in &links {
        assert_eq!((link.status.peers().len(), link.status.traffic().refused), (2, 0));
        assert_eq!(link.status.problems(), []);
    }
}

#[tokio::test]
async fn missing_permissions_are_reported() {
    require_redis!();
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
        let probes = probe_redis(&config(url)).await.unwrap();
        assert!(matches!(probes[0].found, Err(RedisFailure::Forbidden(_))), "{rights}: {probes:?}");
        let anonymous = probe_redis(&config(server.url())).await.unwrap();
        assert!(matches!(anonymous[0].found, Err(RedisFailure::NoPassword)), "{anonymous:?}");
    }
}

/// Each report is one line and names the fix.
#[tokio::test]
async fn a_wrong_scheme_or_port_is_reported_with_the_fix() {
    require_redis!();
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
        (3, format!("redis://localhost:{http_port}"), "an HTTP server answers instead of Redis"),
        (4, format!("rediss://localhost:{http_port}"), "an HTTP server answers instead of Redis"),
    ] {
        let tls = TlsFiles { ca: Some(folder.join("ca.pem")), ..TlsFiles::default() };
        let link = join(me, RedisConfig { tls, ..short_timeouts(url.clone()) });
        wait_until(&link.status, |status| reported(status, words)).await;
        let problems = link.status.problems();
        assert!(problems.iter().all(|problem| !problem.text.contains('\n')), "{url}: {problems:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_restarted_server_is_found_again_and_sending_never_waited() {
    require_redis!();
    let mut server = Server::start(&[]).await;
    let mut links = three(&short_timeouts(server.url()));
    wait_until_connected(&links).await;
    server.kill();
    wait_until(&links[0].status, |status| status.peers().is_empty() && status.problem().is_some()).await;
    let began = Instant::now();
    for _ in 0..10_000 {
        links[0].outgoing.send(To::Everyone, &b"into the void"[..]).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(2));
    assert!(links[0].status.traffic().dropped_out >= 10_000 - 4_096);
    server.restart().await;
    wait_until_connected(&links).await;
    let [first, second, _third] = &mut links[..] else { panic!("three") };
    wait_until_received(first, second, "after the restart").await;
    assert!(links[0].status.traffic().reconnects >= 1);
}

#[tokio::test]
async fn a_stalled_server_is_given_up_and_found_again() {
    require_redis!();
    let server = Server::start(&[]).await;
    let mut links = three(&short_timeouts(server.url()));
    wait_until_connected(&links).await;
    server.signal("STOP");
    wait_until(&links[0].status, |status| status.peers().is_empty()).await;
    server.signal("CONT");
    wait_until_connected(&links).await;
    let [first, second, _third] = &mut links[..] else { panic!("three") };
    wait_until_received(first, second, "after the pause").await;
}

#[tokio::test]
async fn a_failover_among_the_listed_servers_is_followed() {
    require_redis!();
    let mut main = Server::start(&[]).await;
    let replica = Server::start(&["--replicaof", "127.0.0.1", &main.port.to_string()]).await;
    let urls = vec![Secret::new(replica.url()), Secret::new(main.url())];
    let both = |me| join(me, RedisConfig { urls: urls.clone(), ..short_timeouts(main.url()) });
    let mut links = [both(1), both(2)];
    wait_until_connected(&links).await;
    let at_main = format!("by Redis at 127.0.0.1:{}", main.port);
    assert_eq!(links[0].status.peers()[&RouterId(2)].address, at_main, "a replica is skipped");
    main.kill();
    let mut intruder = replica.intruder().await;
    ::redis::cmd("REPLICAOF").arg("NO").arg("ONE").query_async::<()>(&mut intruder).await.unwrap();
    let at_other = format!("by Redis at 127.0.0.1:{}", replica.port);
    let moved = |status: &warmroute_share::TransportStatus| {
        status.peers().values().any(|peer| peer.address == at_other)
    };
    for link in &links {
        wait_until(&link.status, moved).await;
    }
    let [first, second] = &mut links;
    wait_until_received(first, second, "after the failover").await;
}

#[tokio::test]
async fn passwords_are_required_and_never_shown() {
    require_redis!();
    let server = Server::start(&["--requirepass", "open sesame"]).await;
    let wrong = RedisConfig { password: Some(Secret::new("hush hush")), ..config(server.url()) };
    let wrong = join(1, wrong);
    wait_until(&wrong.status, |status| reported(status, "it rejects the user or the password")).await;
    let debug_text = format!("{:?} {:?}", wrong.status.problem(), wrong.status);
    assert!(
        !debug_text.contains("hush") && debug_text.contains(&format!("Redis at 127.0.0.1:{}", server.port)),
        "{debug_text}"
    );
    let right = RedisConfig { password: Some(Secret::new("open sesame")), ..config(server.url()) };
    wait_until_connected(&[join(2, right.clone()), join(3, right)]).await;
}

/// The minimal permissions, as documented.
#[tokio::test]
async fn a_user_with_minimal_permissions_is_enough() {
    require_redis!();
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
    wait_until_connected(&[join(1, config(url.clone())), join(2, config(url.clone()))]).await;
    let elsewhere = join(3, RedisConfig { prefix: "other".into(), ..config(url) });
    wait_until(&elsewhere.status, |status| reported(status, "NOPERM")).await;
}

#[tokio::test]
async fn messages_published_without_the_secret_are_ignored() {
    require_redis!();
    let server = Server::start(&[]).await;
    let mut intruder = server.intruder().await;
    let client = ::redis::Client::open(server.url()).unwrap();
    let mut tap = client.get_async_pubsub().await.unwrap();
    tap.psubscribe("warmroute:*").await.unwrap();
    let mut tap = tap.into_on_message();
    let mut settings = config(server.url());
    settings.timings.gone_after = Duration::from_secs(3);
    let links = three(&settings);
    wait_until_connected(&links).await;
    let [first, mut second, third]: [Link; 3] = links.try_into().unwrap();
    wait_until_received(&third, &mut second, "a word of the third").await;
    drop(third);
    wait_until(&second.status, |status| !status.peers().contains_key(&RouterId(3))).await;
    // Publishes all recorded envelopes again on every channel: no message counts twice, and a dead router
    // does not return.
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
        for envelope in &recorded {
            ::redis::cmd("PUBLISH")
                .arg(channel)
                .arg(envelope)
                .query_async::<()>(&mut intruder)
                .await
                .unwrap();
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
async fn an_oversized_message_ends_only_the_connection() {
    require_redis!();
    let server = Server::start(&["--client-output-buffer-limit", "pubsub", "0", "0", "0"]).await;
    let mut links = three(&short_timeouts(server.url()));
    wait_until_connected(&links).await;
    let mut intruder = server.intruder().await;
    let huge = vec![7_u8; 64 << 20];
    _ = ::redis::cmd("PUBLISH").arg("warmroute:all").arg(&huge).query_async::<()>(&mut intruder).await;
    for link in &links {
        wait_until(&link.status, |status| status.traffic().reconnects >= 1).await;
    }
    wait_until_connected(&links).await;
    let [first, second, _third] = &mut links[..] else { panic!("three") };
    wait_until_received(first, second, "after the flood").await;
}

#[tokio::test]
async fn fleets_with_another_secret_or_prefix_are_separate() {
    require_redis!();
    let server = Server::start(&[]).await;
    let other = |me, secret: &str, prefix: &str| {
        join(
            me,
            RedisConfig { secret: Secret::new(secret).into(), prefix: prefix.into(), ..config(server.url()) },
        )
    };
    let links = three(&config(server.url()));
    let other_secret =
        [other(4, "quite another secret", "warmroute"), other(5, "quite another secret", "warmroute")];
    let elsewhere =
        [other(6, "what only these routers know", "b"), other(7, "what only these routers know", "b")];
    for fleet in [&links[..], &other_secret, &elsewhere] {
        wait_until_connected(fleet).await;
        assert!(fleet.iter().all(|link| link.status.peers().len() == fleet.len() - 1));
    }
    wait_until(&links[0].status, |status| status.traffic().refused > 0).await;
}

#[tokio::test]
async fn overlapping_versions_share_and_others_are_reported() {
    require_redis!();
    let server = Server::start(&[]).await;
    let with_versions = |me, oldest, newest| {
        join(me, RedisConfig { versions: Versions { oldest, newest }, ..config(server.url()) })
    };
    let [old, mut next] = [with_versions(1, 1, 1), with_versions(2, 1, 2)];
    wait_until(&next.status, |status| status.peers().len() == 1).await;
    assert_eq!(next.status.peers()[&RouterId(1)].version, 1);
    wait_until_received(&old, &mut next, "old to new").await;
    let newest = with_versions(3, 2, 3);
    wait_until(&newest.status, |status| {
        reported(status, "router 0000000000000001 supports version 1, this router 2 to 3")
    })
    .await;
    wait_until(&newest.status, |status| status.peers().contains_key(&RouterId(2))).await;
    assert!(!newest.status.peers().contains_key(&RouterId(1)));
}

/// Certificates of a test authority.
fn certificates(folder: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let made = support::authority(folder);
    support::certificate(&made, folder, "server", &["localhost"])
}

#[tokio::test]
async fn tls_works_with_a_private_authority() {
    require_redis!();
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
    let trusted =
        RedisConfig { tls: TlsFiles { ca: Some(ca), ..TlsFiles::default() }, ..config(url.clone()) };
    wait_until_connected(&[join(1, trusted.clone()), join(2, trusted.clone())]).await;
    let by_address =
        RedisConfig { urls: vec![Secret::new(url.replace("localhost", "127.0.0.1"))], ..trusted };
    let by_address = join(3, by_address);
    wait_until(&by_address.status, |status| reported(status, "certificate")).await;
    std::fs::remove_dir_all(&folder).unwrap();
}
