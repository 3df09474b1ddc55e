//! The terminal of the live view: another screen, keys without the return key, and everything back at the end.
//!
//! A dozen control sequences that every terminal has known for decades; a library for them would bring thirty crates.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::Context;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Another screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineStyle {
    Plain,
    Bold,
    Dim,
    Reversed,
    Red,
    Yellow,
    Cyan,
}

impl LineStyle {
    fn code(self) -> &'static str {
        match self {
            LineStyle::Plain => "0",
            LineStyle::Bold => "1",
            LineStyle::Dim => "2",
            LineStyle::Reversed => "7",
            LineStyle::Red => "31",
            LineStyle::Yellow => "33",
            LineStyle::Cyan => "36",
        }
    }
}

/// A key that the view knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Quit,
    Up,
    Down,
    Letter(char),
}

/// The terminal in its live mode. Dropping it restores what was there.
pub struct LiveTerminal {
    before: Termios,
}

impl LiveTerminal {
    /// Takes the terminal.
    pub fn enter() -> anyhow::Result<LiveTerminal> {
        anyhow::ensure!(
            io::stdout().is_terminal() && io::stdin().is_terminal(),
            "top needs a terminal; print the table with --once, or use `warmroute status`"
        );
        let before = tcgetattr(io::stdin()).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)
            .context("cannot change the terminal's settings")?;
        let terminal = LiveTerminal { before };
        print(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size() -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Shows these lines, which fit the terminal.
    pub fn draw(&self, lines: &[(LineStyle, String)]) -> io::Result<()> {
        let line = |(style, text): &(LineStyle, String)| format!("\x1b[{}m{text}\x1b[0m\x1b[K", style.code());
        let lines: Vec<String> = lines.iter().map(line).collect();
        print(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }
}

impl Drop for LiveTerminal {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        _ = print(LEAVE);
        _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Hands on keys until the terminal closes or no one takes them. Blocks.
pub fn read_keys(take: impl Fn(Key) -> bool) {
    let mut bytes = [0; 32];
    while let Ok(count @ 1..) = io::stdin().read(&mut bytes) {
        if !keys_in(&bytes[..count]).into_iter().all(&take) {
            return;
        }
    }
}

/// The keys in what a terminal sent at once. A lone escape is the escape key; others begin a sequence.
fn keys_in(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        let (key, rest) = match (first, rest) {
            (0x1b, [b'[' | b'O', b'A', rest @ ..]) => (Some(Key::Up), rest),
            (0x1b, [b'[' | b'O', b'B', rest @ ..]) => (Some(Key::Down), rest),
            (0x1b, []) | (3 | b'q', _) => (Some(Key::Quit), rest),
            // Another sequence: nothing in it is a letter that was typed.
            (0x1b, _) => (None, &[][..]),
            (letter @ b'a'..=b'z', rest) => (Some(Key::Letter(letter.into())), rest),
            (_, rest) => (None, rest),
        };
        keys.extend(key);
        bytes = rest;
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sequences_are_told_apart() {
        for (bytes, keys) in [
            (&b"q"[..], &[Key::Quit][..]),
            (b"\x03", &[Key::Quit]),
            (b"\x1b", &[Key::Quit]),
            (b"\x1b[A\x1b[B\x1bOA", &[Key::Up, Key::Down, Key::Up]),
            (b"su", &[Key::Letter('s'), Key::Letter('u')]),
            (b"\x1b[15~", &[]),
            (b"\x1b[1;5q", &[]),
            (b"Z9 \xff", &[]),
        ] {
            assert_eq!(keys_in(bytes), keys, "{bytes:?}");
        }
    }
}
