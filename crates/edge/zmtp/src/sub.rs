//! The receiving end of a publisher.

use crate::Message;
use crate::connection::{Arrived, Connection, Role};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::listener::{Incoming, connect};
use crate::options::Options;

/// A subscription to one publisher over one connection.
pub struct Sub {
    connection: Connection,
}

impl Sub {
    /// Connects to a publisher and subscribes to messages whose first part begins with this; an empty topic is all.
    pub async fn connect(endpoint: &Endpoint, topic: &[u8], options: &Options) -> Result<Sub, Error> {
        Sub::subscribed(connect(endpoint, Role::Sub, options).await?, topic).await
    }

    /// The same to a publisher that has connected to us.
    pub async fn accept(incoming: Incoming, topic: &[u8], options: &Options) -> Result<Sub, Error> {
        Sub::subscribed(Connection::open(incoming.carrier, Role::Sub, options).await?, topic).await
    }

    async fn subscribed(mut connection: Connection, topic: &[u8]) -> Result<Sub, Error> {
        connection.subscribe(topic);
        connection.flush().await?;
        Ok(Sub { connection })
    }

    /// The next message. Dropping the future loses nothing.
    pub async fn receive(&mut self) -> Result<Message, Error> {
        loop {
            if let Arrived::Message(message) = self.connection.receive().await? {
                return Ok(message);
            }
        }
    }
}
