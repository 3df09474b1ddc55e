//! Open connections, and how to end them.
//!
//! A fault must be able to break a connection as a dying process does: with a TCP reset, at any time. So every
//! connection has a control by which its task can be told to stop.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The control of one connection.
pub(crate) struct ConnectionControl {
    number: u64,
    order: AtomicU8,
    told: Notify,
    last: AtomicBool,
}

/// An order to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Finish the responses in progress, then close.
    Finish = 1,
    /// Reset at once.
    Cut = 2,
}

impl ConnectionControl {
    /// Resets the connection. Bytes that the socket already has are still delivered.
    pub(crate) fn cut(&self) {
        self.tell(Order::Cut);
    }

    /// The replica dies when this connection has closed.
    pub(crate) fn set_last(&self) {
        self.last.store(true, Ordering::Release);
    }

    /// Whether the replica dies with this connection.
    pub(crate) fn is_last(&self) -> bool {
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

/// All open connections.
#[derive(Default)]
pub(crate) struct OpenConnections {
    open: Mutex<HashMap<u64, Arc<ConnectionControl>>>,
    opened: AtomicU64,
    all_closed: Notify,
}

impl OpenConnections {
    /// Adds an accepted connection.
    pub(crate) fn open(&self) -> Arc<ConnectionControl> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let line = Arc::new(ConnectionControl {
            number,
            order: AtomicU8::new(0),
            told: Notify::new(),
            last: AtomicBool::new(false),
        });
        self.open.lock().insert(number, Arc::clone(&line));
        line
    }

    /// Removes a connection that has ended.
    pub(crate) fn close(&self, line: &ConnectionControl) {
        let mut open = self.open.lock();
        open.remove(&line.number);
        if open.is_empty() {
            self.all_closed.notify_waiters();
        }
    }

    /// Resets all connections, or all but one: a client that requests a fault still gets its response.
    pub(crate) fn cut_all_but(&self, spared: Option<&ConnectionControl>) {
        let spared = spared.map(|line| line.number);
        for line in self.open.lock().values().filter(|line| Some(line.number) != spared) {
            line.cut();
        }
    }

    /// Lets all connections finish their responses, and waits for that.
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
