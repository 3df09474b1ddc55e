//! The requesting side of a router socket: several replies may follow one request.

use crate::Message;
use crate::connection::{Connection, Received, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::listener::connect;
use crate::options::Options;

/// A connection to a router.
pub struct Dealer {
    connection: Connection,
}

impl Dealer {
    /// Connects and completes the handshake.
    pub async fn connect(endpoint: &Endpoint, options: &Options) -> Result<Dealer, Error> {
        Ok(Dealer { connection: connect(endpoint, Role::Dealer, options).await? })
    }

    /// Sends a message.
    pub async fn send<P: AsRef<[u8]>>(&mut self, parts: &[P]) -> Result<(), Error> {
        self.connection.queue(parts);
        self.connection.flush().await
    }

    /// The next message. Dropping the future loses nothing.
    pub async fn receive(&mut self) -> Result<Message, Error> {
        loop {
            if let Received::Message(message) = self.connection.receive().await? {
                return Ok(message);
            }
        }
    }
}
