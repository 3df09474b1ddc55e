//! Work that is too long for a thread that serves sockets.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does work that may take milliseconds. Where the runtime has several threads, this thread's other tasks go on elsewhere
/// meanwhile.
pub fn long_work<T>(work: impl FnOnce() -> T) -> T {
    let is_threaded =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_threaded { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn other_tasks_of_the_only_thread_go_on_during_long_work() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (done, other) = mpsc::channel();
        let waited = runtime.block_on(runtime.spawn(async move {
            tokio::spawn(async move { done.send(()).unwrap() });
            long_work(|| other.recv_timeout(Duration::from_secs(60)))
        }));
        assert_eq!(waited.unwrap(), Ok(()), "the other task runs before the work has ended");
    }

    #[test]
    fn without_other_threads_the_work_is_done_here() {
        assert_eq!(long_work(|| 1), 1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(async { long_work(|| 2) }), 2);
    }
}
