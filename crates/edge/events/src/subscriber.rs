//! Follows an engine that binds its publisher: connects and reconnects.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinHandle;
use warmroute_feed::{Counters, View};
use warmroute_types::{Address, backoff};
use warmroute_zmtp::{Endpoint, Error, Sub};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::feed_handle::FeedHandle;
use crate::sink::EventSink;
use crate::source::EventSource;
use crate::subscriber_task::{Config, ConnectionChange, SubscriberTask, TaskSender};

/// Longest pause before a connection is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// One worker's event stream, followed until this is dropped. The worker's view then stays as last published.
pub struct Subscriber {
    feed_handle: Arc<FeedHandle>,
    tasks: Vec<JoinHandle<()>>,
}

/// Follows a worker's stream on the current tokio runtime.
pub fn subscribe(
    worker: Address,
    source: EventSource,
    sink: Arc<dyn EventSink>,
    config: Config,
) -> Subscriber {
    let feed_handle = Arc::new(FeedHandle::new(worker, config.feed.clone(), sink));
    let replay = source.replay.clone();
    let subscriber_task =
        SubscriberTask::new(Arc::clone(&feed_handle), config.clone(), replay, &source.topic);
    let (sender, inbox) = SubscriberTask::inbox();
    let tasks = vec![
        tokio::spawn(subscriber_task.run(inbox)),
        tokio::spawn(keep_connected(Arc::clone(&feed_handle), source, config, sender)),
    ];
    Subscriber { feed_handle, tasks }
}

impl Subscriber {
    pub(crate) fn of(feed_handle: Arc<FeedHandle>, tasks: Vec<JoinHandle<()>>) -> Subscriber {
        Subscriber { feed_handle, tasks }
    }

    /// The worker whose events it reads.
    pub fn worker(&self) -> &Address {
        &self.feed_handle.worker
    }

    /// Why no events can arrive; `None` while they can.
    pub fn trouble(&self) -> Option<String> {
        self.feed_handle.trouble()
    }

    /// The trust level of the view.
    pub fn view(&self) -> View {
        self.feed_handle.view()
    }

    /// Counters since the feed began.
    pub fn counters(&self) -> Counters {
        self.feed_handle.counters()
    }

    /// Batches of another rank or topic at this endpoint.
    pub fn misdirected(&self) -> u64 {
        self.feed_handle.misdirected.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The feed's handle.
    pub fn feed(&self) -> Arc<FeedHandle> {
        Arc::clone(&self.feed_handle)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn keep_connected(
    feed_handle: Arc<FeedHandle>,
    source: EventSource,
    config: Config,
    sender: TaskSender,
) {
    let (worker, endpoint) = (&feed_handle.worker, &source.endpoint);
    let mut failures = 0_u32;
    loop {
        let connected = Sub::connect(&source.endpoint, source.topic.as_bytes(), &config.socket).await;
        let error = match connected {
            Ok(sub) => {
                tracing::info!(%worker, %endpoint, "following KV events");
                failures = 0;
                forward(sub, endpoint, &sender).await
            }
            Err(error) => {
                feed_handle.set_trouble(Some(down(endpoint, &error)));
                error
            }
        };
        tracing::debug!(%worker, %endpoint, %error, "no KV events");
        if sender.is_closed() {
            return;
        }
        failures = failures.saturating_add(1);
        tokio::time::sleep(backoff::pause(failures, PAUSE_MAX, random(worker))).await;
    }
}

/// A number that differs between workers and between calls, so that streams lost together reconnect one by one.
fn random(worker: &Address) -> u64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    xxh3_64_with_seed(worker.to_string().as_bytes(), nanos.into())
}

/// Forwards messages until the connection ends, and returns why. There is one connection at a time.
async fn forward(mut sub: Sub, endpoint: &Endpoint, sender: &TaskSender) -> Error {
    let mut passed = sender.send(0, ConnectionChange::Up(endpoint.to_string())).await;
    while passed.is_ok() {
        passed = match sub.receive().await {
            Ok(message) => sender.send_message(0, message).await,
            Err(error) => {
                // A task that has ended needs no event.
                let _ = sender.send(0, ConnectionChange::Down(down(endpoint, &error))).await;
                return error;
            }
        };
    }
    Error::Gone
}

fn down(endpoint: &Endpoint, error: &Error) -> String {
    format!("no connection to {endpoint}: {error}")
}
