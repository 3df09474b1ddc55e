//! Responses that another picker chose the worker for: the proxy's observing filter may reach any picker, and the pick
//! waits at the one that chose.
//!
//! The picker that sees the response reads it and reports to the other one, over what the routers share state with
//! (`--share`). A reporter that dies is noticed by its silence.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};
use tokio::time::timeout;
use warmroute_gateway::{Gateway, Pick, PickReport, ResponseReader, ResponseReport};
use warmroute_types::RouterId;

use crate::parked::ParkedPicks;

/// How often a reporter says that a request is still open.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(5);

/// A reporter that is silent for so long is gone. The response then counts as not seen.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Reports of one pick that wait to be applied. A response has four, and a sign of life every few seconds.
const REPORTS_MAX: usize = 64;

/// A pick that waits at another picker. Dropped without an end, the client has left.
pub(crate) struct RemotePick {
    gateway: Arc<Gateway>,
    router: RouterId,
    number: u64,
    reader: Option<ResponseReader>,
}

impl RemotePick {
    /// Tells the other picker that its pick is seen here.
    pub(crate) fn claim(gateway: &Arc<Gateway>, router: RouterId, number: u64) -> RemotePick {
        let (gateway, reader) = (Arc::clone(gateway), Some(ResponseReader::default()));
        let pick = RemotePick { gateway, router, number, reader };
        pick.keep_open();
        pick
    }

    /// Says that the request is still open.
    pub(crate) fn keep_open(&self) {
        self.report(ResponseReport::Open);
    }

    /// Reads a part of the response.
    pub(crate) fn read(&mut self, read: impl FnOnce(&mut ResponseReader) -> Option<ResponseReport>) {
        let report = self.reader.as_mut().and_then(read);
        report.into_iter().for_each(|report| self.report(report));
    }

    /// Ends the pick after a whole response.
    pub(crate) fn end(mut self) {
        let reader = self.reader.take();
        reader.into_iter().for_each(|reader| self.report(reader.end()));
    }

    /// Ends the pick: another worker answered, or the proxy.
    pub(crate) fn end_elsewhere(mut self) {
        self.reader = None;
        self.report(ResponseReport::Elsewhere);
    }

    fn report(&self, report: ResponseReport) {
        self.gateway.report(self.router, &PickReport { pick: self.number, report });
    }
}

impl Drop for RemotePick {
    fn drop(&mut self) {
        if self.reader.is_some() {
            self.report(ResponseReport::Left);
        }
    }
}

/// Applies what other pickers report about the picks that wait here.
pub(crate) async fn follow_reports(parked: Arc<ParkedPicks>, mut reports: mpsc::Receiver<PickReport>) {
    let mut followed = FollowedPicks::default();
    loop {
        tokio::select! {
            Some(()) = followed.one_ended() => {}
            report = reports.recv() => {
                let Some(PickReport { pick: number, report }) = report else { return };
                followed.pass(number, report, |reports| follow(Arc::clone(&parked), number, reports));
            }
        }
    }
}

/// The picks that are followed, each by a task.
#[derive(Default)]
struct FollowedPicks {
    open: HashMap<u64, mpsc::Sender<ResponseReport>>,
    /// The pick of each task. A task that panics returns nothing, but it has an id.
    numbers: HashMap<task::Id, u64>,
    tasks: JoinSet<()>,
}

impl FollowedPicks {
    /// Passes a report to the task of its pick, which is started by the first one.
    fn pass<F>(
        &mut self,
        number: u64,
        report: ResponseReport,
        follow: impl FnOnce(mpsc::Receiver<ResponseReport>) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let reports = self.open.entry(number).or_insert_with(|| {
            let (reports, received) = mpsc::channel(REPORTS_MAX);
            self.numbers.insert(self.tasks.spawn(follow(received)).id(), number);
            reports
        });
        // A pick that has ended needs no report, and a peer that floods loses some.
        _ = reports.try_send(report);
    }

    /// Forgets the next pick whose task ends, in whatever way. `None` if there is none.
    async fn one_ended(&mut self) -> Option<()> {
        let id = match self.tasks.join_next_with_id().await? {
            Ok((id, ())) => id,
            Err(failed) => {
                tracing::error!(error = %failed, "following a pick of this router failed");
                failed.id()
            }
        };
        let number = self.numbers.remove(&id)?;
        self.open.remove(&number);
        Some(())
    }
}

/// Follows one pick to its end.
async fn follow(parked: Arc<ParkedPicks>, number: u64, mut reports: mpsc::Receiver<ResponseReport>) {
    let Some(mut pick) = parked.claim(number).await else { return };
    loop {
        match timeout(SILENCE_MAX, reports.recv()).await {
            Ok(Some(report)) => match Pick::apply(pick, report) {
                Some(rest) => pick = rest,
                None => return,
            },
            Ok(None) | Err(_) => {
                pick.end_unseen();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pick_whose_task_panics_is_forgotten() {
        let mut followed = FollowedPicks::default();
        followed.pass(7, ResponseReport::Open, |_| async { panic!("as a bug would") });
        assert_eq!(followed.one_ended().await, Some(()));
        assert!(followed.open.is_empty() && followed.numbers.is_empty());
        assert_eq!(followed.one_ended().await, None, "no task is left");
    }

    #[tokio::test]
    async fn a_flood_of_reports_is_bounded() {
        let mut followed = FollowedPicks::default();
        let (counted, count) = tokio::sync::oneshot::channel();
        let count_all = |mut reports: mpsc::Receiver<ResponseReport>| async move {
            let mut all = 0;
            while reports.recv().await != Some(ResponseReport::Left) {
                all += 1;
            }
            _ = counted.send(all);
        };
        followed.pass(7, ResponseReport::Open, count_all);
        for _ in 0..10 * REPORTS_MAX {
            followed.pass(7, ResponseReport::Open, |_| async { unreachable!("the first task goes on") });
        }
        while followed.open[&7].try_send(ResponseReport::Left).is_err() {
            task::yield_now().await;
        }
        assert_eq!(count.await, Ok(REPORTS_MAX));
    }
}
