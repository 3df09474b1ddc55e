//! The connection to the server: letters go out, letters come in, and when it is lost it is made again.

use std::time::Instant;

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::aio::{MultiplexedConnection, PubSub, PubSubStream};
use redis::{AsyncConnectionConfig, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;
use warmroute_types::{RouterId, To};
use warmroute_wire::Dialer;

use crate::link::{Ends, GOODBYE_WITHIN, Outgoing};
use crate::queue::{Queue, Room, Weigh};
use crate::redis::config::{RedisConfig, RedisPace, Server};
use crate::redis::leash::{Leash, Untaken};
use crate::redis::letter::{Kind, Pen, Question};
use crate::redis::lost::Lost;
use crate::redis::roster::{Circle, Roster, Step};
use crate::{BadShare, Link, MAX_MESSAGE_BYTES, Peer, Status, Versions, backoff, seal};

/// Published with one round trip, where so much waits.
const BATCH_ITEMS: usize = 64;
const BATCH_BYTES: usize = 1 << 20;

/// What the server may be ahead of us: as much as waits for whoever shares, and the largest message.
const UNTAKEN_BYTES_MAX: usize = 4 * MAX_MESSAGE_BYTES;

/// Questions and answers are small, and asked again.
const REPLIES_ROOM: Room = Room { items: 1_024, bytes: 1 << 20 };

/// Shares by the server, in the background and for as long as the link is held. Must be called inside a tokio runtime. Fails only where
/// the settings cannot work; that no server is there is no failure.
pub fn redis(config: RedisConfig, me: RouterId) -> Result<Link, BadShare> {
    config.validate()?;
    let servers = config.servers()?;
    let dialer = config.dialer()?;
    let ends = Ends::new(Status::new(me, None));
    let post = Post::new(&config, me, dialer, ends.clone());
    let task = tokio::spawn(run(servers, post));
    Ok(ends.link(task.abort_handle()))
}

/// A question or an answer on its way.
#[derive(Debug)]
struct Reply {
    kind: Kind,
    to: RouterId,
    question: Question,
}

impl Weigh for Reply {
    fn bytes(&self) -> usize {
        size_of::<Reply>()
    }
}

/// What both directions share.
pub(crate) struct Post {
    me: RouterId,
    versions: Versions,
    prefix: String,
    pace: RedisPace,
    dialer: Dialer,
    pub pen: Mutex<Pen>,
    pub roster: Mutex<Roster>,
    replies: Queue<Reply>,
    ends: Ends,
}

/// A connection for each direction: one that has subscribed may not publish.
pub(crate) struct Connected {
    pub publish: MultiplexedConnection,
    pub messages: PubSubStream,
    untaken: Untaken,
    /// Ends with it.
    _driver: JoinSet<()>,
}

/// One server after the other, until it is aborted.
async fn run(servers: Vec<Server>, post: Post) {
    let mut failures = 0;
    for server in servers.iter().cycle() {
        let began = Instant::now();
        let lost = post.share_by(server, failures).await;
        post.ends.status.troubled(format!("Redis at {}: {lost}", server.name()));
        for router in post.roster.lock().clear() {
            post.ends.status.gone(router, "the server is lost");
        }
        failures = if began.elapsed() > post.pace.gone_after { 1 } else { failures + 1 };
        let chance = u64::from_le_bytes(seal::random());
        tokio::time::sleep(backoff::pause(failures, post.pace.redial, chance)).await;
    }
}

impl Post {
    pub(crate) fn new(config: &RedisConfig, me: RouterId, dialer: Dialer, ends: Ends) -> Post {
        let (secrets, salt) = (config.secret.keys(), seal::random());
        let spoken = secrets.first().cloned().unwrap_or_default();
        let circle = Circle { me, salt, secrets, prefix: config.prefix.clone(), versions: config.versions };
        Post {
            me,
            versions: config.versions,
            prefix: config.prefix.clone(),
            pace: config.pace,
            dialer,
            pen: Mutex::new(Pen::new(me, &spoken, &config.prefix, salt)),
            roster: Mutex::new(Roster::new(circle, config.pace.here_every)),
            replies: Queue::new(REPLIES_ROOM),
            ends,
        }
    }

    /// As long as it goes.
    async fn share_by(&self, server: &Server, failures: u32) -> Lost {
        let connected = match self.reach(server).await {
            Ok(connected) => connected,
            Err(lost) => return lost,
        };
        if failures > 0 {
            self.ends.status.count(|counts| &counts.reconnects, 1);
            self.forget_what_waited();
        }
        tokio::select! {
            lost = self.read(connected.messages, connected.untaken, server) => lost,
            lost = self.write(connected.publish) => lost,
        }
    }

    /// A connection, or what is in its way: where that is a riddle, what is there is looked at once more.
    pub(crate) async fn reach(&self, server: &Server) -> Result<Connected, Lost> {
        let patience = self.pace.answer * 2;
        match timeout(patience, self.connect(server)).await.unwrap_or(Err(Lost::Late(patience))) {
            Err(lost) if lost.is_riddle() => Err(Lost::looked_at(server).await.unwrap_or(lost)),
            reached => reached,
        }
    }

    /// It is out of date, and nobody is known yet who could read it.
    fn forget_what_waited(&self) {
        let waited = std::iter::from_fn(|| self.ends.outgoing.try_pop()).count();
        self.ends.status.count(|counts| &counts.dropped_out, waited as u64);
    }

    async fn connect(&self, server: &Server) -> Result<Connected, Lost> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.pace.answer));
        let stream = self.dialer.dial(&server.target).await?;
        let (mut publish, driver) =
            MultiplexedConnection::new_with_config(&server.login, stream, config).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        is_main(&mut publish).await?;
        let untaken = Untaken::default();
        let stream = Leash::new(self.dialer.dial(&server.target).await?, untaken.clone(), UNTAKEN_BYTES_MAX);
        let mut messages = PubSub::new(&server.login, stream).await?;
        messages.subscribe(&[self.channel(None), self.channel(Some(self.me))]).await?;
        Ok(Connected { publish, messages: messages.into_on_message(), untaken, _driver: tasks })
    }

    pub(crate) fn channel(&self, to: Option<RouterId>) -> String {
        match to {
            Some(router) => format!("{}:{router}", self.prefix),
            None => format!("{}:all", self.prefix),
        }
    }

    async fn read(&self, mut messages: PubSubStream, untaken: Untaken, server: &Server) -> Lost {
        let mut own = Instant::now();
        loop {
            let until = own + self.pace.gone_after;
            let message = match tokio::time::timeout_at(until.into(), messages.next()).await {
                Ok(Some(message)) => message,
                Ok(None) => return Lost::Closed,
                Err(_) => return Lost::Deaf(self.pace.gone_after),
            };
            let letter = message.get_payload_bytes();
            self.ends.status.count(|counts| &counts.bytes_in, letter.len() as u64);
            let now = Instant::now();
            let steps = self.roster.lock().read(letter, now, seal::random());
            untaken.taken(message.get_channel_name(), letter);
            for step in steps {
                own = if step == Step::Own { now } else { own };
                self.take(step, server, now);
            }
        }
    }

    fn take(&self, step: Step, server: &Server, now: Instant) {
        let status = &self.ends.status;
        match step {
            Step::Own => {}
            Step::Message(message) => self.ends.arrived(message),
            Step::Ask(to, question) => _ = self.replies.push(Reply { kind: Kind::Ask, to, question }),
            Step::Answer(to, question) => _ = self.replies.push(Reply { kind: Kind::Answer, to, question }),
            Step::Joined(router, version) => {
                let address = format!("by Redis at {}", server.name());
                status.present(router, Peer { address, since: now, version });
            }
            Step::Left(router) => status.gone(router, "it said goodbye"),
            Step::Stranger(router, theirs) => {
                let ours = self.versions;
                status.troubled(format!(
                    "router {router} speaks version {theirs}, this router {ours}: upgrade one of them"
                ));
            }
            Step::OtherSecret => {
                status.count(|counts| &counts.refused, 1);
                status.troubled(
                    "somebody on this server announces itself whom this router cannot read: a router with another \
                     secret, or of another fleet, which needs another share-redis-prefix"
                        .to_owned(),
                );
            }
            Step::Unproven => status.count(|counts| &counts.dropped_in, 1),
            Step::Refused => status.count(|counts| &counts.refused, 1),
        }
    }

    async fn write(&self, mut publish: MultiplexedConnection) -> Lost {
        let mut ticks = tokio::time::interval(self.pace.here_every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let sent = tokio::select! {
                biased;
                () = self.ends.departure.asked() => return self.say_goodbye(&mut publish).await,
                _ = ticks.tick() => self.say_here(&mut publish).await,
                reply = self.replies.pop() => self.reply(&mut publish, &reply).await,
                message = self.ends.outgoing.pop() => self.publish_with(&mut publish, message).await,
            };
            if let Err(lost) = sent {
                return lost;
            }
        }
    }

    /// What is due at every tick: we are there, is the server what it was, and who is not there any more?
    async fn say_here(&self, publish: &mut MultiplexedConnection) -> Result<(), Lost> {
        for router in self.roster.lock().expire(self.pace.gone_after, Instant::now()) {
            self.ends.status.gone(router, "it said nothing any more");
        }
        let here = self.pen.lock().write(Kind::Here, self.versions.newest, None, &[&self.introduction()]);
        self.publish(publish, &[(self.channel(None), here)]).await?;
        is_main(publish).await
    }

    /// And nothing else any more.
    async fn say_goodbye(&self, publish: &mut MultiplexedConnection) -> Lost {
        let goodbye = self.pen.lock().write(Kind::Goodbye, self.versions.newest, None, &[]);
        let letters = [(self.channel(None), goodbye)];
        _ = timeout(GOODBYE_WITHIN, self.publish(publish, &letters)).await;
        self.ends.departure.done();
        std::future::pending().await
    }

    async fn reply(&self, publish: &mut MultiplexedConnection, reply: &Reply) -> Result<(), Lost> {
        let body: [&[u8]; 2] = [&self.introduction(), &reply.question];
        let letter = self.pen.lock().write(reply.kind, self.versions.newest, Some(reply.to), &body);
        self.publish(publish, &[(self.channel(Some(reply.to)), letter)]).await
    }

    fn introduction(&self) -> [u8; 2] {
        [self.versions.oldest, self.versions.newest]
    }

    /// This one, and what else waits by now.
    async fn publish_with(&self, publish: &mut MultiplexedConnection, first: Outgoing) -> Result<(), Lost> {
        let mut letters = Vec::new();
        let (mut bytes, mut next) = (0, Some(first));
        while let Some(message) = next.take() {
            letters.extend(self.letter(&message));
            bytes += message.bytes.len();
            if letters.len() < BATCH_ITEMS && bytes < BATCH_BYTES {
                next = self.ends.outgoing.try_pop();
            }
        }
        let published = self.publish(publish, &letters).await;
        let (sent, dropped) = if published.is_ok() { (letters.len(), 0) } else { (0, letters.len()) };
        self.ends.status.count(|counts| &counts.messages_out, sent as u64);
        self.ends.status.count(|counts| &counts.dropped_out, dropped as u64);
        published
    }

    /// Nothing when there is nobody to read it, which is a loss only where somebody was meant.
    fn letter(&self, message: &Outgoing) -> Option<(String, Vec<u8>)> {
        let to = match message.to {
            To::Everyone => None,
            To::One(router) => Some(router),
        };
        let Some(version) = self.roster.lock().version(to) else {
            self.ends.status.count(|counts| &counts.dropped_out, u64::from(to.is_some()));
            return None;
        };
        Some((self.channel(to), self.pen.lock().write(Kind::Message, version, to, &[&message.bytes])))
    }

    pub(crate) async fn publish(
        &self,
        publish: &mut MultiplexedConnection,
        letters: &[(String, Vec<u8>)],
    ) -> Result<(), Lost> {
        if letters.is_empty() {
            return Ok(());
        }
        let mut batch = redis::pipe();
        for (channel, letter) in letters {
            batch.cmd("PUBLISH").arg(channel).arg(letter).ignore();
        }
        let bytes = letters.iter().map(|(_, letter)| letter.len() as u64).sum();
        batch.query_async::<()>(publish).await?;
        self.ends.status.count(|counts| &counts.bytes_out, bytes);
        Ok(())
    }
}

/// What is published to a replica reaches nobody else. A server that does not let us ask is believed.
async fn is_main(publish: &mut MultiplexedConnection) -> Result<(), Lost> {
    match redis::cmd("ROLE").query_async::<Value>(publish).await {
        Ok(Value::Array(role)) if role.first().is_some_and(is_replica) => Err(Lost::Replica),
        Ok(_) => Ok(()),
        Err(error) if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() => {
            Err(error.into())
        }
        Err(_) => Ok(()),
    }
}

/// Redis has kept the old word; others may not.
fn is_replica(role: &Value) -> bool {
    matches!(role, Value::BulkString(name) if name == b"slave" || name == b"replica")
}
