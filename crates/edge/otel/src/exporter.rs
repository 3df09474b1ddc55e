//! The task that sends spans to the collector, in batches.
//!
//! It has one batch in hand. While the collector does not take it, the queue fills, and the spans of later requests are
//! dropped: memory is bounded, and the oldest spans, which show how the trouble began, arrive first.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use warmroute_wire::{HttpClient, HttpClientError, retry_after};

use crate::config::CollectorConfig;
use crate::counts::SpanCounters;
use crate::encode::{encode_request, rejected_spans};
use crate::trace_span::TraceSpan;

/// Spans at which a batch is sent at once: about half a megabyte.
const BATCH_SPANS: usize = 1_024;

/// How long the first span of a batch waits for others.
const BATCH_TIME: Duration = Duration::from_secs(1);

/// Pauses before each further try of a batch. After the last one the batch is given up.
const RETRY_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// The longest pause that a collector may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Exporter {
    client: HttpClient,
    config: CollectorConfig,
    spans: mpsc::Receiver<Vec<TraceSpan>>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    counters: Arc<SpanCounters>,
    batch: Vec<TraceSpan>,
    is_failing: bool,
}

/// A flush that was asked for; `None`: the tracer is gone.
struct Interruption(Option<oneshot::Sender<()>>);

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("{0}")]
    Unreachable(#[from] HttpClientError),
    #[error("the collector answered {status}")]
    Busy { status: StatusCode, pause: Duration },
    #[error("the collector answered {0}")]
    Refused(StatusCode),
}

impl Exporter {
    pub(crate) fn new(
        config: CollectorConfig,
        spans: mpsc::Receiver<Vec<TraceSpan>>,
        flushes: mpsc::Receiver<oneshot::Sender<()>>,
        counters: Arc<SpanCounters>,
    ) -> Exporter {
        let client = HttpClient::new(&config.base, config.timeout, config.dialer.clone());
        Exporter { client, config, spans, flushes, counters, batch: Vec::new(), is_failing: false }
    }

    /// Exports until the tracer is gone.
    pub(crate) async fn run(mut self) {
        loop {
            let interruption = tokio::select! {
                flush = self.flushes.recv() => Err(Interruption(flush)),
                () = fill(&mut self.spans, &mut self.batch) => Ok(()),
            };
            let delivered = match interruption {
                Ok(()) => self.deliver().await,
                interruption => interruption,
            };
            match delivered {
                Ok(()) => {}
                Err(Interruption(None)) => return,
                Err(Interruption(Some(done))) => {
                    self.flush().await;
                    _ = done.send(());
                }
            }
        }
    }

    /// Sends the batch, with pauses between tries.
    async fn deliver(&mut self) -> Result<(), Interruption> {
        for pause in RETRY_PAUSES {
            let Err(error) = self.send_batch().await else { return Ok(()) };
            let asked = match &error {
                ExportError::Refused(_) => {
                    self.give_up(&error);
                    return Ok(());
                }
                ExportError::Busy { pause, .. } => *pause,
                ExportError::Unreachable(_) => Duration::ZERO,
            };
            self.note_failure(&error);
            tokio::select! {
                () = sleep(pause.max(asked)) => {}
                flush = self.flushes.recv() => return Err(Interruption(flush)),
            }
        }
        self.send_or_lose().await;
        Ok(())
    }

    /// Sends everything that is queued, each batch once.
    async fn flush(&mut self) {
        loop {
            while self.batch.len() < BATCH_SPANS
                && let Ok(spans) = self.spans.try_recv()
            {
                self.batch.extend(spans);
            }
            if self.batch.is_empty() {
                return;
            }
            self.send_or_lose().await;
        }
    }

    async fn send_or_lose(&mut self) {
        if let Err(error) = self.send_batch().await {
            self.give_up(&error);
        }
    }

    /// Sends the batch once. It is empty afterwards if the collector took it.
    async fn send_batch(&mut self) -> Result<(), ExportError> {
        let request = Bytes::from(encode_request(&self.config.resource, &self.batch));
        let (path, headers) = (&self.config.path, self.config.headers.clone());
        let response = self.client.exchange(Method::POST, path, headers, request).await?;
        let status = response.status();
        match status.as_u16() {
            200..300 => {}
            429 | 502..=504 => {
                return Err(ExportError::Busy { status, pause: asked_pause(response.headers()) });
            }
            _ => return Err(ExportError::Refused(status)),
        }
        // An answer that cannot be read does not mean that the spans were refused.
        let rejected = rejected_spans(response.body()).unwrap_or(0);
        self.counters.count_sent(self.batch.len() as u64, rejected);
        self.batch.clear();
        if std::mem::replace(&mut self.is_failing, false) {
            tracing::info!("the collector takes traces again");
        }
        Ok(())
    }

    fn give_up(&mut self, error: &ExportError) {
        self.note_failure(error);
        self.counters.count_failed(self.batch.len() as u64);
        self.batch.clear();
    }

    /// Logs the first failure; further ones are counted until the collector takes a batch.
    fn note_failure(&mut self, error: &ExportError) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(why = %error, "the collector does not take traces: requests go on, spans are lost");
        }
    }
}

/// Fills a batch: returns when it is full, or some time after its first span. Waits forever once the tracer is gone.
async fn fill(spans: &mut mpsc::Receiver<Vec<TraceSpan>>, batch: &mut Vec<TraceSpan>) {
    if batch.is_empty() {
        match spans.recv().await {
            Some(first) => batch.extend(first),
            None => return std::future::pending().await,
        }
    }
    let until = Instant::now() + BATCH_TIME;
    while batch.len() < BATCH_SPANS {
        match timeout_at(until, spans.recv()).await {
            Ok(Some(more)) => batch.extend(more),
            Ok(None) | Err(_) => return,
        }
    }
}

/// The pause that the collector asks for, in seconds.
fn asked_pause(headers: &HeaderMap) -> Duration {
    retry_after(headers, Duration::ZERO).unwrap_or_default().min(PAUSE_MAX)
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
mod tests;
