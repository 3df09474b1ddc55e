//! Responses that another picker chose the worker for: the proxy's observing filter may reach any picker, and the pick
//! waits at the one that chose.
//!
//! The picker that sees the response reads it and reports to the other one, over what the routers share state with
//! (`--share`). A reporter that dies is noticed by its silence.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use warmroute_gateway::{Gateway, Pick, PickReport, ResponseReader, ResponseReport};
use warmroute_types::RouterId;

use crate::parked::ParkedPicks;

/// How often a reporter says that a request is still open.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(5);

/// A reporter that is silent for so long is gone. The response then counts as not seen.
const SILENCE_MAX: Duration = Duration::from_secs(20);

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
    let mut open: HashMap<u64, mpsc::UnboundedSender<ResponseReport>> = HashMap::new();
    let mut followed = JoinSet::new();
    loop {
        tokio::select! {
            Some(Ok(number)) = followed.join_next() => drop(open.remove(&number)),
            report = reports.recv() => {
                let Some(PickReport { pick: number, report }) = report else { return };
                let reports = open.entry(number).or_insert_with(|| {
                    let (reports, received) = mpsc::unbounded_channel();
                    followed.spawn(follow(Arc::clone(&parked), number, received));
                    reports
                });
                // A pick that has ended needs no report.
                _ = reports.send(report);
            }
        }
    }
}

/// Follows one pick to its end. Returns its number.
async fn follow(
    parked: Arc<ParkedPicks>,
    number: u64,
    mut reports: mpsc::UnboundedReceiver<ResponseReport>,
) -> u64 {
    let Some(mut pick) = parked.claim(number).await else { return number };
    loop {
        match timeout(SILENCE_MAX, reports.recv()).await {
            Ok(Some(report)) => match Pick::apply(pick, report) {
                Some(rest) => pick = rest,
                None => return number,
            },
            Ok(None) | Err(_) => {
                pick.end_unseen();
                return number;
            }
        }
    }
}
