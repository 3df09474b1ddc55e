//! A writer that keeps each log event on one line.
//!
//! Log events quote engines, peers and clients. A line break or an escape sequence in such a text would forge lines or
//! control the terminal, so control characters are written as escapes.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

/// Writes events to the inner writer, one line each.
#[derive(Clone)]
pub struct LogLines<M>(pub M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for LogLines<M> {
    type Writer = LineWriter<M::Writer>;

    fn make_writer(&'a self) -> LineWriter<M::Writer> {
        LineWriter(self.0.make_writer())
    }
}

/// Writes one event.
pub struct LineWriter<W>(W);

impl<W: Write> Write for LineWriter<W> {
    /// The subscriber writes each event with one call, which ends with its line break.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (line, end) = match event {
            [line @ .., b'\n'] => (line, &b"\n"[..]),
            line => (line, &b""[..]),
        };
        let text = String::from_utf8_lossy(line);
        match text.contains(char::is_control) {
            true => self.0.write_all(&[escaped(&text).as_bytes(), end].concat())?,
            false => self.0.write_all(event)?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The text with control characters as escapes, also line breaks.
pub fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\t' => line.push(character),
            character if character.is_control() => line.extend(character.escape_default()),
            character => line.push(character),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let mut out = Vec::new();
        let mut writer = LineWriter(&mut out);
        writer.write_all(b"WARN worker=a why=x\n2026 ERROR forged\r\x1b[31m\xc2\x9b\n").unwrap();
        writer.write_all("INFO plain \u{e4}\n".as_bytes()).unwrap();
        let expected = "WARN worker=a why=x\\n2026 ERROR forged\\r\\u{1b}[31m\\u{9b}\nINFO plain \u{e4}\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
