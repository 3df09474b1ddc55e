//! What a command prints on stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints a text. A reader that has seen enough and left is no error.
pub fn print(text: impl Display) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

/// Prints a note for a person on stderr. A reader that has left misses nothing that counts.
pub fn print_note(text: impl Display) {
    _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints a line.
pub fn print_line(text: impl Display) -> anyhow::Result<()> {
    print(format_args!("{text}\n"))
}
