//! One data-parallel rank as the rest of the server sees it: where requests are handed in and figures are read.
//!
//! The engine itself belongs to the rank's driver task. Requests reach it through a bounded channel; a client that
//! leaves cannot wait for room in a channel, so leavers have a list of their own, never longer than the sequences there
//! are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use warmroute_engine::{Engine, Request};

use crate::command::{Command, FinishedReason, Leavers, Submission};
use crate::config::{Config, ConfigError};
use crate::driver::{Driver, DriverChannels};
use crate::events::{Channel, Content, EventReporter};
use crate::fault::Condition;
use crate::meter::Board;
use crate::progress::Progress;

/// Most requests that wait for the driver; further ones wait in their handlers.
const COMMANDS_MAX: usize = 1_024;

/// The handle of one rank.
pub(crate) struct Rank {
    commands: mpsc::Sender<Command>,
    leavers: Arc<Leavers>,
    board: Arc<Mutex<Board>>,
    in_flight: AtomicU32,
    /// The publisher of its cache events.
    pub(crate) events: Option<Arc<Channel>>,
}

impl Rank {
    /// Starts a rank's driver.
    pub(crate) fn start(
        config: &Config,
        condition: watch::Receiver<Condition>,
        events: Option<Arc<Channel>>,
    ) -> Result<Rank, ConfigError> {
        let engine = Engine::new(config.engine.clone())?;
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let leavers = Arc::new(Leavers::default());
        let board = Arc::new(Mutex::new(Board::new(engine.stats(), config.tokens_max())));
        let channels = DriverChannels { inbox, leavers: Arc::clone(&leavers), board: Arc::clone(&board) };
        let window = config.engine.sliding_window;
        let reporter = events.clone().map(|channel| EventReporter::new(channel, window));
        let driver = Driver::new(engine, config.speed, channels, condition, reporter);
        tokio::spawn(driver.run());
        Ok(Rank { commands, leavers, board, in_flight: AtomicU32::new(0), events })
    }

    /// Submitted requests that have not ended.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The present statistics.
    pub(crate) fn board(&self) -> Board {
        self.board.lock().clone()
    }

    /// Submits a request. The ticket reports its progress; dropping the ticket cancels the request.
    pub(crate) async fn submit(
        self: &Arc<Rank>,
        request: Request,
        content: Option<Arc<Content>>,
        finish: FinishedReason,
        wake_from: u32,
    ) -> Ticket {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket { progress: Arc::new(Progress::new(wake_from)), rank: Arc::clone(self) };
        let submission = Submission { request, content, progress: Arc::clone(&ticket.progress), finish };
        self.send(Command::Submit(submission)).await;
        ticket
    }

    /// Empties the prefix cache; false while it is in use.
    pub(crate) async fn clear(&self) -> bool {
        let (done, outcome) = oneshot::channel();
        self.send(Command::Clear(done)).await;
        outcome.await.unwrap_or(false)
    }

    /// Forgets everything, as a new process.
    pub(crate) async fn restart(&self) {
        let (done, outcome) = oneshot::channel();
        self.send(Command::Restart(done)).await;
        // The driver fails to reply only when the whole replica is dropped.
        let _ = outcome.await;
    }

    async fn send(&self, command: Command) {
        // Without a driver there is no replica, and no receiver.
        let _ = self.commands.send(command).await;
    }

    fn leave(&self, progress: &Arc<Progress>) {
        self.leavers.lock().push(Arc::clone(progress));
        // With a full channel the driver checks soon anyway.
        let _ = self.commands.try_send(Command::CheckLeavers);
    }
}

/// A submitted request.
pub(crate) struct Ticket {
    progress: Arc<Progress>,
    rank: Arc<Rank>,
}

impl Ticket {
    /// Its progress.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.rank.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.progress.leave() {
            self.rank.leave(&self.progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::fault::{Fault, Faults};
    use crate::progress::{End, Seen};
    use std::future::poll_fn;
    use std::time::Duration;
    use tokio::time::Instant;
    use warmroute_engine::Profile;

    fn start(faults: &Faults) -> Arc<Rank> {
        Arc::new(Rank::start(&Config::for_profile(Profile::Llama3_1_8b), faults.watch(), None).unwrap())
    }

    fn request(prompt_tokens: u32, output_tokens: u32) -> Request {
        let mut chain = Chain::new("m", "", 16);
        chain.extend(0..prompt_tokens + output_tokens);
        Request { chain: chain.into_names(), prompt_tokens, output_tokens }
    }

    async fn end(ticket: &Ticket) -> Seen {
        poll_fn(|cx| ticket.progress().poll_beyond(cx, u32::MAX)).await
    }

    #[tokio::test(start_paused = true)]
    async fn wall_time_follows_engine_time() {
        let faults = Faults::new();
        let rank = start(&faults);
        let began = Instant::now();
        let ticket = rank.submit(request(100, 1_000), None, FinishedReason::Length, u32::MAX).await;
        assert_eq!(end(&ticket).await.tokens, 1_000);
        let wall_s = began.elapsed().as_secs_f64();
        let engine_s = rank.board().meter.e2e_request_latency.sum;
        assert!(engine_s > 1.0, "a thousand steps of an 8B take seconds, not {engine_s}");
        assert!((wall_s - engine_s).abs() < 0.002, "{wall_s} s of wall time for {engine_s} s of engine time");
    }

    /// Engine time of 1,000 steps when the timer fires only at this interval.
    async fn engine_s_with_timer_of(resolution: Duration) -> f64 {
        let faults = Faults::new();
        let rank = start(&faults);
        let ticket = rank.submit(request(100, 1_000), None, FinishedReason::Length, u32::MAX).await;
        while ticket.progress().seen().end.is_none() {
            tokio::time::advance(resolution).await;
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        rank.board().meter.e2e_request_latency.sum
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_timer_does_not_accumulate_delay() {
        let exact_s = engine_s_with_timer_of(Duration::from_micros(100)).await;
        let coarse_s = engine_s_with_timer_of(Duration::from_millis(5)).await;
        assert!(
            (coarse_s - exact_s).abs() < 0.010,
            "{coarse_s} s with a coarse timer, {exact_s} s with a fine one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slowed_engine_takes_as_many_times_as_long() {
        let faults = Faults::new();
        let rank = start(&faults);
        faults.set(Fault::Slow { factor: 10.0 });
        let began = Instant::now();
        let ticket = rank.submit(request(100, 50), None, FinishedReason::Length, u32::MAX).await;
        end(&ticket).await;
        let ratio = began.elapsed().as_secs_f64() / rank.board().meter.e2e_request_latency.sum;
        assert!((9.9..10.1).contains(&ratio), "{ratio}");
    }

    #[tokio::test(start_paused = true)]
    async fn time_lost_in_a_hang_is_not_made_up_for() {
        let faults = Faults::new();
        let rank = start(&faults);
        let ticket = rank.submit(request(100, 50), None, FinishedReason::Length, 10).await;
        assert_eq!(poll_fn(|cx| ticket.progress().poll_beyond(cx, 9)).await.tokens, 10);
        faults.set(Fault::Hang);
        let hung = tokio::time::timeout(Duration::from_secs(60), end(&ticket)).await;
        assert!(hung.is_err(), "it cannot end while the engine hangs");
        assert_eq!(ticket.progress().seen().tokens, 10, "no token comes");
        faults.set(Fault::None);
        assert_eq!(end(&ticket).await.tokens, 50);
        assert!(rank.board().meter.e2e_request_latency.sum < 2.0, "engine time stood still");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_ticket_frees_its_sequence() {
        let faults = Faults::new();
        let rank = start(&faults);
        let [stays, leaves] = [request(100, 50), request(200, 50)];
        let stays = rank.submit(stays, None, FinishedReason::Length, u32::MAX).await;
        drop(rank.submit(leaves, None, FinishedReason::Length, u32::MAX).await);
        assert_eq!(rank.in_flight(), 1);
        assert_eq!(end(&stays).await.end, Some(End::Finished));
        let board = rank.board();
        assert_eq!((board.stats.running, board.stats.waiting), (0, 0));
        assert_eq!(board.meter.generation_tokens, 50, "the one that left generated nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_forgets_sequences_and_cache() {
        let faults = Faults::new();
        let rank = start(&faults);
        let first = rank.submit(request(100, 5), None, FinishedReason::Length, u32::MAX).await;
        end(&first).await;
        let lost = rank.submit(request(100, 500), None, FinishedReason::Length, u32::MAX).await;
        rank.restart().await;
        assert_eq!(end(&lost).await.end, Some(End::Lost));
        let again = rank.submit(request(100, 5), None, FinishedReason::Length, u32::MAX).await;
        assert_eq!(end(&again).await.cached_tokens, 0);
        let warm = rank.submit(request(100, 5), None, FinishedReason::Length, u32::MAX).await;
        assert_eq!(end(&warm).await.cached_tokens, 96);
    }
}
