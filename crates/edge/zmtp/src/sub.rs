//! The receiving side of a publisher.

use crate::Message;
use crate::connection::{Connection, Received, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::listener::{IncomingConnection, connect};
use crate::options::Options;

/// A subscription to one publisher over one connection.
pub struct Sub {
    connection: Connection,
}

impl Sub {
    /// Connects to a publisher and subscribes to messages whose first part begins with `topic`; an empty topic
    /// matches all.
    pub async fn connect(endpoint: &Endpoint, topic: &[u8], options: &Options) -> Result<Sub, Error> {
        Sub::subscribed(connect(endpoint, Role::Sub, options).await?, topic).await
    }

    /// The same for a publisher that has connected to us.
    pub async fn accept(incoming: IncomingConnection, topic: &[u8], options: &Options) -> Result<Sub, Error> {
        Sub::subscribed(Connection::open(incoming.stream, Role::Sub, options).await?, topic).await
    }

    async fn subscribed(mut connection: Connection, topic: &[u8]) -> Result<Sub, Error> {
        connection.subscribe(topic);
        connection.flush().await?;
        Ok(Sub { connection })
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
