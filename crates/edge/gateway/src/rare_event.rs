//! Waits for events that hardly ever come, beside work that is polled often.
//!
//! A connection waits for a drain, for its own expiry, and for the order to give way, and is polled for every chunk that
//! passes. `select!` polls all its branches each time. Here a branch is polled once, and then only after it was woken.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// The output of `event`, which is polled only after it was woken.
pub(crate) async fn rarely<F: Future>(event: F) -> F::Output {
    let mut event = pin!(event);
    let shared = Arc::new(Shared { is_due: AtomicBool::new(true), task: Mutex::new(Waker::noop().clone()) });
    let waker = Waker::from(Arc::clone(&shared));
    std::future::poll_fn(|cx| {
        shared.task.lock().clone_from(cx.waker());
        if !shared.is_due.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        shared.is_due.store(false, Ordering::Release);
        event.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

struct Shared {
    /// Whether the event was woken since it was last polled.
    is_due: AtomicBool,
    /// The task that waits.
    task: Mutex<Waker>,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_due.store(true, Ordering::Release);
        self.task.lock().wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn an_event_is_polled_only_after_it_was_woken() {
        let (polls, kept) = (Cell::new(0), Cell::new(None));
        let event = std::future::poll_fn(|cx| {
            polls.set(polls.get() + 1);
            kept.set(Some(cx.waker().clone()));
            if polls.get() < 3 { Poll::Pending } else { Poll::Ready("it came") }
        });
        let (mut waiting, mut cx) = (pin!(rarely(event)), Context::from_waker(Waker::noop()));
        let mut polled_after = |times: u32| {
            (0..times).for_each(|_| assert!(waiting.as_mut().poll(&mut cx).is_pending()));
            polls.get()
        };
        assert_eq!(polled_after(5), 1);
        kept.take().into_iter().for_each(Waker::wake);
        assert_eq!(polled_after(5), 2);
        kept.take().into_iter().for_each(Waker::wake);
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready("it came"));
    }
}
