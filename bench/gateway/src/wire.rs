//! One HTTP/1.1 connection, blocking: just enough to send a request and read its answer whole.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// An answer later than this is an error; it also bounds the whole run when a proxy hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A keep-alive connection, plain unless it is made over another stream.
pub struct Connection<S = TcpStream> {
    reader: BufReader<S>,
    line: String,
}

/// What came back.
#[derive(Default)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body, chunks joined.
    pub body: Vec<u8>,
    /// Whether the server will close the connection.
    pub closes: bool,
}

/// How the end of a body is found.
#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

impl Connection {
    /// Connects to a port of the loopback address.
    pub fn open(port: u16) -> io::Result<Connection> {
        Ok(Connection::over(connect(port)?))
    }
}

/// A TCP connection to a port of the loopback address.
pub fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl<S: Read + Write> Connection<S> {
    /// Sends requests over this stream.
    pub fn over(stream: S) -> Connection<S> {
        Connection { reader: BufReader::with_capacity(64 << 10, stream), line: String::new() }
    }

    /// The stream.
    pub fn stream(&mut self) -> &mut S {
        self.reader.get_mut()
    }

    /// Sends a request and reads the answer; the answer's memory is used again.
    pub fn exchange(&mut self, request: &[u8], answer: &mut Answer) -> io::Result<()> {
        self.reader.get_mut().write_all(request)?;
        answer.body.clear();
        match self.read_head(answer)? {
            Framing::Length(length) => self.read_bytes(length, &mut answer.body),
            Framing::Chunked => self.read_chunks(&mut answer.body),
        }
    }

    fn read_head(&mut self, answer: &mut Answer) -> io::Result<Framing> {
        answer.status = self.read_line()?.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        answer.closes = false;
        let mut framing = Framing::Length(0);
        loop {
            let line = self.read_line()?.to_ascii_lowercase();
            match line.split_once(':').map(|(name, value)| (name, value.trim())) {
                None => return Ok(framing),
                Some(("content-length", value)) => framing = Framing::Length(number(value, 10)?),
                Some(("transfer-encoding", "chunked")) => framing = Framing::Chunked,
                Some(("connection", value)) => answer.closes = value == "close",
                Some(_) => {}
            }
        }
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let length = number(self.read_line()?, 16)?;
            self.read_bytes(length, body)?;
            self.read_line()?;
            if length == 0 {
                return Ok(());
            }
        }
    }

    fn read_bytes(&mut self, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
        let start = body.len();
        body.resize(start + length, 0);
        self.reader.read_exact(&mut body[start..])
    }

    fn read_line(&mut self) -> io::Result<&str> {
        self.line.clear();
        if self.reader.read_line(&mut self.line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        Ok(self.line.trim_end())
    }
}

fn number(text: &str, radix: u32) -> io::Result<usize> {
    usize::from_str_radix(text, radix)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("`{text}` is no length")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn answer_to(reply: &'static str) -> io::Result<Answer> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
        });
        let mut answer = Answer::default();
        let result = Connection::open(port)?.exchange(b"ping", &mut answer);
        server.join().unwrap();
        result.map(|()| answer)
    }

    #[test]
    fn a_body_with_a_length_is_read_to_its_end() {
        let answer =
            answer_to("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").unwrap();
        assert_eq!((answer.status, answer.body.as_slice(), answer.closes), (200, &b"hello"[..], true));
    }

    #[test]
    fn chunks_are_joined() {
        let reply =
            "HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        let answer = answer_to(reply).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (503, &b"abc0123456789"[..]));
    }

    #[test]
    fn a_body_cut_short_is_an_error() {
        assert!(answer_to("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhell").is_err());
    }
}
