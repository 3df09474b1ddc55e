//! How fast the engine goes.
//!
//! Flat out, a whole answer of 32 tokens leaves the engine in one or two writes, and a proxy would be measured by how
//! many tokens it happens to find in one read. A stream is therefore paced so that every token travels alone, as it
//! does in front of a GPU.

use crate::wire::{Answer, Connection};

/// How fast the engine goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As fast as it can.
    FlatOut,
    /// A token about every 0.6 ms: ten times an H200.
    TokenByToken,
}

impl Pace {
    /// Makes the engine on this port go so.
    pub fn set(self, port: u16) -> Result<(), String> {
        let (request, mut answer) = (self.request(port), Answer::default());
        let mut connection = Connection::open(port).map_err(|error| error.to_string())?;
        connection.exchange(request.as_bytes(), &mut answer).map_err(|error| error.to_string())?;
        match answer.status {
            200..=299 => Ok(()),
            status => Err(format!("the engine does not change its pace: status {status}")),
        }
    }

    fn request(self, port: u16) -> String {
        let body = match self {
            Pace::FlatOut => r#"{"kind":"none"}"#,
            // Of the 10,000 that the engine is started with.
            Pace::TokenByToken => r#"{"kind":"slow","factor":1000}"#,
        };
        format!(
            "POST /fault HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}
