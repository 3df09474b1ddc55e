//! Follows an engine that binds its publisher: connects, and connects again.

use std::sync::Arc;

use tokio::task::JoinHandle;
use warmroute_feed::{Counters, View};
use warmroute_types::Address;
use warmroute_zmtp::{Endpoint, Error, Sub};
use xxhash_rust::xxh3::xxh3_64;

use crate::backoff::Backoff;
use crate::desk::Desk;
use crate::listener::Listener;
use crate::source::Source;
use crate::station::{Config, Hearing, Inlet, News, Station};

/// One worker's event stream, followed until this is dropped. The worker's view is then as it was told last; whoever drops
/// it decides what that means.
pub struct Subscriber {
    desk: Arc<Desk>,
    tasks: Vec<JoinHandle<()>>,
}

/// Follows a worker's stream on the current tokio runtime.
pub fn subscribe(worker: Address, source: Source, listener: Arc<dyn Listener>, config: Config) -> Subscriber {
    let desk = Arc::new(Desk::new(worker, config.feed.clone(), listener));
    let replay = source.replay.clone();
    let station = Station::new(Arc::clone(&desk), config.clone(), replay, &source.topic, Hearing::Shared);
    let (inlet, inbox) = Station::inbox();
    let tasks = vec![
        tokio::spawn(station.run(inbox)),
        tokio::spawn(keep_connected(Arc::clone(&desk), source, config, inlet)),
    ];
    Subscriber { desk, tasks }
}

impl Subscriber {
    pub(crate) fn of(desk: Arc<Desk>, tasks: Vec<JoinHandle<()>>) -> Subscriber {
        Subscriber { desk, tasks }
    }

    /// Whose stream it is.
    pub fn worker(&self) -> &Address {
        &self.desk.worker
    }

    /// Why nothing can come, in words; `None` while something can.
    pub fn trouble(&self) -> Option<String> {
        self.desk.trouble()
    }

    /// What the view is worth.
    pub fn view(&self) -> View {
        self.desk.view()
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        self.desk.counters()
    }

    /// Batches that belonged to somebody else: another rank or topic at this endpoint.
    pub fn misdirected(&self) -> u64 {
        self.desk.misdirected.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Its feed, for whoever has something to tell it.
    pub fn desk(&self) -> Arc<Desk> {
        Arc::clone(&self.desk)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn keep_connected(desk: Arc<Desk>, source: Source, config: Config, inlet: Inlet) {
    let (worker, endpoint) = (&desk.worker, &source.endpoint);
    let mut backoff = Backoff::new(xxh3_64(worker.to_string().as_bytes()));
    loop {
        let connected = Sub::connect(&source.endpoint, source.topic.as_bytes(), &config.socket).await;
        let error = match connected {
            Ok(sub) => {
                tracing::info!(%worker, %endpoint, "following KV events");
                backoff.reset();
                forward(sub, endpoint, &inlet).await
            }
            Err(error) => {
                desk.set_trouble(Some(down(endpoint, &error)));
                error
            }
        };
        tracing::debug!(%worker, %endpoint, %error, "no KV events");
        if inlet.is_closed() {
            return;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Passes messages on until the connection ends; says why. There is one connection at a time.
async fn forward(mut sub: Sub, endpoint: &Endpoint, inlet: &Inlet) -> Error {
    let mut passed = inlet.tell(0, News::Up(endpoint.to_string())).await;
    while passed.is_ok() {
        passed = match sub.receive().await {
            Ok(message) => inlet.pass(0, message).await,
            Err(error) => {
                // A station that is gone needs no news.
                let _ = inlet.tell(0, News::Down(down(endpoint, &error))).await;
                return error;
            }
        };
    }
    Error::Gone
}

fn down(endpoint: &Endpoint, error: &Error) -> String {
    format!("no connection to {endpoint}: {error}")
}
