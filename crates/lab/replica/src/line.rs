//! Open connections, and the way to end them.
//!
//! A fault must be able to break a connection as a dying process does: with a TCP reset, in the middle of anything. So
//! every connection has a line by which its task can be told to let go.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How one connection is told to end.
pub(crate) struct Line {
    number: u64,
    order: AtomicU8,
    told: Notify,
    last: AtomicBool,
}

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Answer what has been asked, then close.
    Finish = 1,
    /// Reset, at once.
    Cut = 2,
}

impl Line {
    /// Resets the connection. What was handed to the socket before is still delivered.
    pub(crate) fn cut(&self) {
        self.tell(Order::Cut);
    }

    /// When this connection has closed, the replica dies.
    pub(crate) fn let_it_be_the_last(&self) {
        self.last.store(true, Ordering::Release);
    }

    /// Whether the replica dies with this connection.
    pub(crate) fn is_the_last(&self) -> bool {
        self.last.load(Ordering::Acquire)
    }

    fn tell(&self, order: Order) {
        self.order.fetch_max(order as u8, Ordering::AcqRel);
        self.told.notify_one();
    }

    /// The next order.
    pub(crate) async fn order(&self) -> Order {
        self.told.notified().await;
        match self.order.load(Ordering::Acquire) {
            finish if finish == Order::Finish as u8 => Order::Finish,
            _ => Order::Cut,
        }
    }
}

/// All connections that are open.
#[derive(Default)]
pub(crate) struct Lines {
    open: Mutex<HashMap<u64, Arc<Line>>>,
    opened: AtomicU64,
    all_closed: Notify,
}

impl Lines {
    /// A connection was accepted.
    pub(crate) fn open(&self) -> Arc<Line> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let line = Arc::new(Line {
            number,
            order: AtomicU8::new(0),
            told: Notify::new(),
            last: AtomicBool::new(false),
        });
        self.open.lock().insert(number, Arc::clone(&line));
        line
    }

    /// A connection has ended.
    pub(crate) fn close(&self, line: &Line) {
        let mut open = self.open.lock();
        open.remove(&line.number);
        if open.is_empty() {
            self.all_closed.notify_waiters();
        }
    }

    /// Resets all connections, or all but one: a client that orders a fault still gets its answer.
    pub(crate) fn cut_all_but(&self, spared: Option<&Line>) {
        let spared = spared.map(|line| line.number);
        for line in self.open.lock().values().filter(|line| Some(line.number) != spared) {
            line.cut();
        }
    }

    /// Lets all connections answer what they have been asked, and returns when they have.
    pub(crate) async fn finish_all(&self) {
        let all_closed = self.all_closed.notified();
        tokio::pin!(all_closed);
        all_closed.as_mut().enable();
        let open = self.open.lock().values().cloned().collect::<Vec<_>>();
        open.iter().for_each(|line| line.tell(Order::Finish));
        if !open.is_empty() {
            all_closed.await;
        }
    }
}
