//! Dials one router: a connection, TLS where that is used, and the handshake, each within its time.

use std::time::Duration;

use warmroute_wire::{Dialer, Stream, Target};

use crate::Status;
use crate::mesh::MeshPace;
use crate::mesh::book::Place;
use crate::mesh::handshake::{self, Card, Failed, Guard, Session};

/// How routers are dialed.
#[derive(Clone)]
pub(crate) struct Dial {
    pub dialer: Dialer,
    pub card: Card,
    pub guard: Guard,
    pub server_name: Option<String>,
    pub pace: MeshPace,
}

impl Dial {
    pub(crate) async fn meet(self, place: Place, status: &Status) -> Result<(Session, Stream), Failed> {
        let mut stream = within(self.pace.connect, self.connect(&place)).await?;
        let connected = |router| status.peers().contains_key(&router);
        let meeting = handshake::dial(&mut stream, &self.card, self.guard, connected);
        let session = within(self.pace.handshake, meeting).await?;
        Ok((session, stream))
    }

    async fn connect(&self, place: &Place) -> Result<Stream, Failed> {
        let scheme = if self.guard == Guard::Tls { "https" } else { "http" };
        let target: Target = format!("{scheme}://{}", place.address).parse().map_err(|_| Failed::NoRouter)?;
        let name = self.server_name.as_deref().unwrap_or(&place.host);
        Ok(self.dialer.dial_as(&target, name).await?)
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(Failed::Late(limit)))
}
