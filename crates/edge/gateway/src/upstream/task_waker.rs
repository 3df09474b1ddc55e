//! The waker of a connection that its request polls.
//!
//! The handle and the I/O half of a hyper connection wake each other through channels. Both are polled by one task, so
//! such a wake would only schedule the task that is running, and often wake another thread for it. While the connection
//! is polled, a wake is therefore noted instead, and the connection is polled once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

const IDLE: u8 = 0;
const POLLING: u8 = 1;
/// Woken while polling.
const WOKEN: u8 = 2;

/// Polls in a row, at most. A connection that always wakes itself must not keep the thread from others.
const POLLS_MAX: usize = 8;

/// The waker of one connection.
pub(super) struct TaskWaker {
    shared: Arc<Shared>,
    waker: Waker,
}

struct Shared {
    state: AtomicU8,
    /// Wakes the task that polls the connection.
    task: Mutex<Waker>,
}

impl Default for TaskWaker {
    fn default() -> TaskWaker {
        let task = Mutex::new(Waker::noop().clone());
        let shared = Arc::new(Shared { state: AtomicU8::new(IDLE), task });
        TaskWaker { waker: Waker::from(Arc::clone(&shared)), shared }
    }
}

impl TaskWaker {
    /// Polls until nothing more can be done now. The task is woken by what happens afterwards.
    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.shared.task.lock().clone_from(cx.waker());
        let mut own = Context::from_waker(&self.waker);
        for _ in 0..POLLS_MAX {
            self.shared.state.store(POLLING, Ordering::Release);
            let polled = poll(&mut own);
            let was_woken = self.shared.state.swap(IDLE, Ordering::AcqRel) == WOKEN;
            // A caller that has got something polls again before it waits.
            if polled.is_ready() || !was_woken {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Forgets the task. An idle connection must not keep the memory of the request that it served last.
    pub(super) fn forget_task(&self) {
        self.shared.task.lock().clone_from(Waker::noop());
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noted = self.state.compare_exchange(POLLING, WOKEN, Ordering::AcqRel, Ordering::Acquire);
        if noted == Err(IDLE) {
            self.task.lock().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls with a waker that is used during the first `wakes` polls. Returns the polls and the wakes of the task.
    fn poll_waking(connection: &TaskWaker, wakes: usize) -> (usize, usize) {
        let (count, mut polls) = (Arc::new(WakeCount::default()), 0);
        let task = Waker::from(Arc::clone(&count));
        let polled = connection.poll(&mut Context::from_waker(&task), |cx| {
            polls += 1;
            if polls <= wakes {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        (polls, count.0.load(Ordering::Relaxed))
    }

    #[test]
    fn a_connection_that_wakes_itself_is_polled_again_without_its_task() {
        let connection = TaskWaker::default();
        assert_eq!(poll_waking(&connection, 0), (1, 0));
        assert_eq!(poll_waking(&connection, 2), (3, 0));
        assert_eq!(poll_waking(&connection, 1_000), (POLLS_MAX, 1), "it lets others run");
    }

    #[test]
    fn an_idle_connection_keeps_no_task() {
        let (connection, count) = (TaskWaker::default(), Arc::new(WakeCount::default()));
        let task = Waker::from(Arc::clone(&count));
        let _ = connection.poll(&mut Context::from_waker(&task), |_| Poll::<()>::Pending);
        drop(task);
        connection.forget_task();
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn what_happens_later_wakes_the_task_that_polled_last() {
        let (connection, first, second) =
            (TaskWaker::default(), Arc::new(WakeCount::default()), Arc::new(WakeCount::default()));
        let mut kept = None;
        for count in [&first, &second] {
            let task = Waker::from(Arc::clone(count));
            let _ = connection.poll(&mut Context::from_waker(&task), |cx| {
                kept = Some(cx.waker().clone());
                Poll::<()>::Pending
            });
        }
        kept.expect("it was polled").wake();
        let counts = [first, second].map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(counts, [0, 1]);
    }
}
