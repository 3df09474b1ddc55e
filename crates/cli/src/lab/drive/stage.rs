//! Plays sessions: at their own times, or with a fixed number of requests in flight.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use warmroute_sim::{Session, Turn, tokens};
use warmroute_types::Micros;

use super::driven::Driven;
use crate::client::{self, Question};
use crate::lab::args::DriveArgs;
use warmroute_sim::SessionText;

/// What all sessions share.
pub struct Stage {
    authority: String,
    path: String,
    model: String,
    token_bytes: u8,
    speed: f64,
    pace: Pace,
    began: Instant,
    bar: ProgressBar,
}

/// When requests are sent.
#[derive(Clone, Copy)]
enum Pace {
    /// At the sessions' start times, and after their think times.
    Recorded,
    /// As soon as a client is free, until this time of the run. Think times are left out.
    Closed { clients: u32, until: Duration },
}

/// A played run.
pub struct Played {
    pub driven: Driven,
    /// Time until the first client found no further session, in engine time.
    pub full_us: u64,
}

impl Stage {
    pub fn new(args: &DriveArgs, bar: ProgressBar) -> anyhow::Result<Stage> {
        let authority = args.url.authority().context("--url names no host")?.as_str();
        let port = if args.url.port().is_none() { ":80" } else { "" };
        let until = args.duration.map_or(Duration::MAX, |s| Duration::from_secs_f64(s / args.speed));
        Ok(Stage {
            authority: format!("{authority}{port}"),
            path: format!("{}/v1/completions", super::base_of(args.url.path())),
            token_bytes: args.token_bytes,
            model: args.model.clone(),
            speed: args.speed,
            pace: args.concurrency.map_or(Pace::Recorded, |clients| Pace::Closed { clients, until }),
            began: Instant::now(),
            bar,
        })
    }

    /// Plays all sessions.
    pub async fn play_all(mut self, sessions: Vec<Session>) -> Played {
        self.began = Instant::now();
        let stage = Arc::new(self);
        match stage.pace {
            Pace::Recorded => play_recorded(sessions, stage).await,
            Pace::Closed { clients, until } => play_closed(sessions, stage, clients, until).await,
        }
    }

    pub fn engine_us(&self, wall: Duration) -> u64 {
        (wall.as_secs_f64() * self.speed * 1e6).round() as u64
    }

    /// Converts engine time to wall time.
    fn wall(&self, engine: Micros) -> Duration {
        Duration::from_micros(engine.0).div_f64(self.speed)
    }

    fn is_over(&self) -> bool {
        matches!(self.pace, Pace::Closed { until, .. } if self.began.elapsed() >= until)
    }

    async fn think(&self, turn: &Turn) {
        if let Pace::Recorded = self.pace {
            tokio::time::sleep(self.wall(turn.think)).await;
        }
    }

    fn question(&self, turn: &Turn, texts: &SessionText) -> Question<'_> {
        let body = json!({
            "model": self.model, "prompt": texts.prompt(&turn.prompt), "max_tokens": tokens(&turn.answer),
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        });
        let session = turn.thread.key.map(|key| format!("{key:016x}"));
        Question { authority: &self.authority, path: &self.path, session, body: body.to_string() }
    }
}

/// Runs every session from its own start time.
async fn play_recorded(sessions: Vec<Session>, stage: Arc<Stage>) -> Played {
    let first = sessions.first().map_or(Micros::ZERO, |session| session.starts);
    let mut playing = JoinSet::new();
    for session in sessions {
        let after = stage.wall(Micros(session.starts.0.saturating_sub(first.0)));
        tokio::time::sleep_until(stage.began + after).await;
        playing.spawn(play(session, Arc::clone(&stage)));
    }
    let mut driven = Driven::default();
    while let Some(played) = playing.join_next().await {
        driven.add(played.unwrap_or_else(|error| Driven::failed(error.to_string())));
    }
    Played { driven, full_us: 0 }
}

/// Runs a fixed number of clients. Each plays one session after another, so that its request is always in flight.
async fn play_closed(sessions: Vec<Session>, stage: Arc<Stage>, clients: u32, until: Duration) -> Played {
    let sessions = Arc::new(Mutex::new(sessions.into_iter()));
    let mut playing = JoinSet::new();
    for _ in 0..clients {
        playing.spawn(play_in_turn(Arc::clone(&sessions), Arc::clone(&stage)));
    }
    let (mut driven, mut full) = (Driven::default(), until);
    while let Some(played) = playing.join_next().await {
        match played {
            Ok((played, busy)) => {
                driven.add(played);
                full = full.min(busy);
            }
            Err(error) => driven.add(Driven::failed(error.to_string())),
        }
    }
    Played { driven, full_us: stage.engine_us(full) }
}

/// One client: its results, and the time until it found no further session.
async fn play_in_turn(
    sessions: Arc<Mutex<std::vec::IntoIter<Session>>>,
    stage: Arc<Stage>,
) -> (Driven, Duration) {
    let mut driven = Driven::default();
    while !stage.is_over() {
        let Some(session) = sessions.lock().next() else { break };
        driven.add(play(session, Arc::clone(&stage)).await);
    }
    (driven, stage.began.elapsed())
}

/// Runs one session. A failed turn ends it, because the next turn needs the answer.
async fn play(session: Session, stage: Arc<Stage>) -> Driven {
    let (mut driven, mut texts) = (Driven::default(), SessionText::new(stage.token_bytes));
    for (index, turn) in session.turns.iter().enumerate() {
        if index > 0 {
            stage.think(turn).await;
        }
        if stage.is_over() {
            break;
        }
        let asked = stage.began.elapsed();
        match client::ask(stage.question(turn, &texts)).await {
            Ok(served) => {
                texts.add_answer(&turn.answer, &served.text);
                driven.note(|time| stage.engine_us(time), asked, index, turn, &served);
            }
            Err(error) => {
                driven.add(Driven::failed(format!("{error:#}")));
                break;
            }
        }
        stage.bar.inc(1);
    }
    driven
}
