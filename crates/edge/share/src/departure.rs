//! How a router leaves: it is asked to, says goodbye, and whoever asked is told that it has.

use tokio::sync::watch;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Here,
    Leaving,
    Gone,
}

/// Both ends of it. Clones are the same departure.
#[derive(Clone, Debug)]
pub(crate) struct Departure(watch::Sender<Stage>);

impl Departure {
    pub(crate) fn new() -> Departure {
        Departure(watch::Sender::new(Stage::Here))
    }

    /// Begins it; returns when it is done.
    pub(crate) async fn leave(&self) {
        self.reach(Stage::Leaving);
        self.is(Stage::Gone).await;
    }

    /// Returns when somebody wants to leave.
    pub(crate) async fn asked(&self) {
        self.is(Stage::Leaving).await;
    }

    pub(crate) fn done(&self) {
        self.reach(Stage::Gone);
    }

    fn reach(&self, stage: Stage) {
        self.0.send_if_modified(|now| std::mem::replace(now, stage.max(*now)) < stage);
    }

    async fn is(&self, stage: Stage) {
        // It cannot fail: we hold the sender.
        _ = self.0.subscribe().wait_for(|now| *now >= stage).await;
    }
}
