//! Looks whether routers could share by a server, without joining them: connects as a router does, sees whether what is published comes
//! back, and listens for a while who else is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::StreamExt;
use tokio::time::timeout_at;
use warmroute_types::RouterId;

use crate::link::Ends;
use crate::redis::config::{RedisConfig, Server};
use crate::redis::letter::Kind;
use crate::redis::lost::Lost;
use crate::redis::post::{Connected, Post};
use crate::redis::roster::Step;
use crate::{BadShare, Status, Versions, draw_router, seal};

/// What was found at one server.
#[derive(Debug)]
pub struct RedisVisit {
    /// `HOST:PORT`.
    pub server: String,
    /// Who else is there, where routers could share by it.
    pub found: Result<Overheard, Lost>,
}

/// Routers that announced themselves while we listened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overheard {
    /// With the same secret, and a version in common.
    pub routers: BTreeSet<RouterId>,
    /// With the same secret, and no version in common.
    pub strangers: BTreeMap<RouterId, Versions>,
    /// How often somebody was heard who has another secret.
    pub unreadable: u64,
}

/// Visits every server. The others do not see a router come or go.
pub async fn visit_redis(config: &RedisConfig) -> Result<Vec<RedisVisit>, BadShare> {
    config.validate()?;
    let (me, mut visits) = (draw_router(), Vec::new());
    for server in config.servers()? {
        let post = Post::new(config, me, config.dialer()?, Ends::new(Status::new(me, None)));
        let found = visit(&post, &server, config, me).await;
        visits.push(RedisVisit { server: server.name(), found });
    }
    Ok(visits)
}

async fn visit(post: &Post, server: &Server, config: &RedisConfig, me: RouterId) -> Result<Overheard, Lost> {
    let mut connected = post.reach(server).await?;
    // Of a router that was never here: the others pass over it, and it comes back to us.
    let channels = [None, Some(me)];
    for to in channels {
        let letter = post.pen.lock().write(Kind::Goodbye, config.versions.newest, to, &[]);
        post.publish(&mut connected.publish, &[(post.channel(to), letter)]).await?;
    }
    match listen(post, &mut connected, config).await? {
        (overheard, own) if own == channels.len() => Ok(overheard),
        _ => Err(Lost::Deaf(config.pace.here_every * 2)),
    }
}

/// For as long as everybody who is there says so at least once; with how much of our own came back.
async fn listen(
    post: &Post,
    connected: &mut Connected,
    config: &RedisConfig,
) -> Result<(Overheard, usize), Lost> {
    let (mut overheard, mut own) = (Overheard::default(), 0);
    let until = Instant::now() + config.pace.here_every * 2;
    while let Ok(message) = timeout_at(until.into(), connected.messages.next()).await {
        let message = message.ok_or(Lost::Closed)?;
        let steps = post.roster.lock().read(message.get_payload_bytes(), Instant::now(), seal::random());
        for step in steps {
            match step {
                Step::Own => own += 1,
                Step::Ask(router, _) => _ = overheard.routers.insert(router),
                Step::Stranger(router, versions) => _ = overheard.strangers.insert(router, versions),
                Step::OtherSecret => overheard.unreadable += 1,
                _ => {}
            }
        }
    }
    Ok((overheard, own))
}
