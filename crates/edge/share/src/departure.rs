//! How a router leaves: the owner requests it, the transport says goodbye, and the owner is notified.

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Present,
    Leaving,
    Gone,
}

/// Shared by the owner and the transport. Clones refer to the same departure.
#[derive(Clone, Debug)]
pub(crate) struct Departure(watch::Sender<Stage>);

impl Departure {
    pub(crate) fn new() -> Departure {
        Departure(watch::Sender::new(Stage::Present))
    }

    /// Requests the departure and waits until it is finished.
    pub(crate) async fn leave(&self) {
        self.advance_to(Stage::Leaving);
        self.wait_for(Stage::Gone).await;
    }

    /// Waits until the departure is requested.
    pub(crate) async fn requested(&self) {
        self.wait_for(Stage::Leaving).await;
    }

    pub(crate) fn finish(&self) {
        self.advance_to(Stage::Gone);
    }

    fn advance_to(&self, stage: Stage) {
        self.0.send_if_modified(|now| std::mem::replace(now, stage.max(*now)) < stage);
    }

    async fn wait_for(&self, stage: Stage) {
        // Waiting cannot fail, because this value holds the sender.
        _ = self.0.subscribe().wait_for(|now| *now >= stage).await;
    }
}
