//! Fields of forms: those that steer engines are refused there too.
//!
//! Forms are streamed, so a field that the policy drops from JSON is refused here. Parsers of forms differ in how they
//! read boundaries, quotes and escapes, and an engine must not find a name that the gateway has missed. So boundaries are not
//! read: every line that begins like the head of a part counts as one, and every spelling of `name=` in it as a name.

use http::{HeaderMap, header};
use warmroute_wire::percent_decoded_bytes;

use crate::engine_fields::FieldPolicy;

/// The header with a part's name.
const DISPOSITION: &[u8] = b"content-disposition";

/// A longer header of a part is refused. The longest names of files have a quarter of this.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Stands for a name in an encoding that only some parsers read.
const ENCODED_NAME: &str = "name*";

/// Reads the names of a form's parts as its bytes pass.
pub(crate) struct FormScan {
    policy: FieldPolicy,
    /// The current line while it may be such a header, and the lines that it continues.
    line: Vec<u8>,
    place: LinePlace,
}

/// How far the current line has been read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinePlace {
    /// Nothing of it.
    Start,
    /// What is in `FormScan::line`.
    Kept,
    /// It is no such header.
    Skipped,
}

impl FormScan {
    /// For a body that engines may read as a form of parts.
    pub(crate) fn new(headers: &HeaderMap, policy: FieldPolicy) -> Option<FormScan> {
        let scan = FormScan { policy, line: Vec::new(), place: LinePlace::Start };
        declares(headers, "multipart").then_some(scan)
    }

    /// Reads the next bytes. `Err` is a field that the policy does not pass.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            let end = memchr::memchr(b'\n', bytes).map(|at| at + 1);
            let (piece, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.keep(piece)?;
            if end.is_some() {
                if is_disposition(&self.line) {
                    self.check_names()?;
                }
                self.place = LinePlace::Start;
            }
            bytes = rest;
        }
        Ok(())
    }

    fn keep(&mut self, piece: &[u8]) -> Result<(), &'static str> {
        if self.place == LinePlace::Start {
            // A line that begins with space continues the header before it.
            let continues = is_disposition(&self.line) && matches!(piece, [b' ' | b'\t', ..]);
            if !continues {
                self.line.clear();
            }
            self.place = LinePlace::Kept;
        }
        if self.place == LinePlace::Skipped {
            return Ok(());
        }
        let room = LINE_BYTES_MAX - self.line.len().min(LINE_BYTES_MAX);
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
        match begins_disposition(&self.line) {
            false => {
                self.line.clear();
                self.place = LinePlace::Skipped;
                Ok(())
            }
            true if piece.len() > room && is_disposition(&self.line) => Err("content-disposition"),
            true => Ok(()),
        }
    }

    fn check_names(&self) -> Result<(), &'static str> {
        let line = self.line.to_ascii_lowercase();
        for at in memchr::memmem::find_iter(&line, b"name") {
            let (before, after) = (&line[..at], self.line[at + 4..].trim_ascii_start());
            if before.ends_with(b"file") {
                continue;
            }
            match after {
                [b'*', ..] => return Err(ENCODED_NAME),
                [b'=', value @ ..] => self.policy.refused_in_form(&name_of(value)).map_or(Ok(()), Err)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a line is, or may become, the head of a part.
fn begins_disposition(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let known = line.len().min(DISPOSITION.len());
    line[..known].eq_ignore_ascii_case(&DISPOSITION[..known])
}

fn is_disposition(line: &[u8]) -> bool {
    begins_disposition(line) && line.trim_ascii_start().len() >= DISPOSITION.len()
}

/// The name at the start of a parameter's value, without the signs by which parsers quote it.
fn name_of(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii_start();
    let mut is_escaped = false;
    let ends = |byte: &u8| match byte {
        b'"' if !is_escaped => true,
        byte => {
            is_escaped = *byte == b'\\' && !is_escaped;
            false
        }
    };
    let name = match value {
        [b'"', quoted @ ..] => &quoted[..quoted.iter().position(ends).unwrap_or(quoted.len())],
        plain => plain.split(|byte| *byte == b';' || byte.is_ascii_whitespace()).next().unwrap_or_default(),
    };
    let is_sign = |byte: &u8| b"\"'\\<>".contains(byte);
    let name: Vec<u8> = name.iter().copied().filter(|byte| !is_sign(byte)).collect();
    percent_decoded_bytes(&String::from_utf8_lossy(&name)).trim_ascii().to_vec()
}

/// Whether a body is declared as the fields of a form in one line.
pub(crate) fn is_urlencoded(headers: &HeaderMap) -> bool {
    declares(headers, "x-www-form-urlencoded")
}

fn declares(headers: &HeaderMap, kind: &str) -> bool {
    let values = headers.get_all(header::CONTENT_TYPE).iter();
    let mut kinds = values.map(|value| value.as_bytes().to_ascii_lowercase());
    kinds.any(|value| memchr::memmem::find(&value, kind.as_bytes()).is_some())
}

/// Refuses fields of a whole body that is not JSON, as a form of either kind.
pub(crate) fn check(bytes: &[u8], headers: &HeaderMap, policy: FieldPolicy) -> Result<(), &'static str> {
    if let Some(mut scan) = FormScan::new(headers, policy) {
        scan.push(bytes)?;
    }
    if !is_urlencoded(headers) {
        return Ok(());
    }
    for field in bytes.split(|byte| b"&;".contains(byte)) {
        let name = field.split(|byte| *byte == b'=').next().unwrap_or_default();
        let name = percent_decoded_bytes(&String::from_utf8_lossy(name));
        policy.refused_in_form(name.trim_ascii()).map_or(Ok(()), Err)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(kind: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))])
    }

    /// The field for which a form is refused, read in pieces of this size.
    fn refused(form: &str, piece: usize) -> Option<&'static str> {
        let mut scan =
            FormScan::new(&headers("multipart/form-data; boundary=b"), FieldPolicy::default()).unwrap();
        form.as_bytes().chunks(piece).find_map(|bytes| scan.push(bytes).err())
    }

    #[test]
    fn names_are_found_in_every_spelling_and_piece() {
        for disposition in [
            "Content-Disposition: form-data; name=\"priority\"",
            "content-disposition:form-data;name=priority",
            "CONTENT-DISPOSITION: form-data; filename=\"a;b\"; NAME = \"priority\"",
            "Content-Disposition: form-data; name=\"prio\\rity\"; filename=x",
            "Content-Disposition: form-data; name=<priority>",
            "Content-Disposition: form-data; name=\"%70riority\"",
            "Content-Disposition: form-data;\r\n name=\"priority\"",
            "Content-Disposition: form-data; name=\"model\"; name=\"priority\"",
        ] {
            for piece in [1, 7, 1_000] {
                let form = format!("--b\r\nx: y\r\n{disposition}\r\n\r\n-9\r\n--b--\r\n");
                assert_eq!(refused(&form, piece), Some("priority"), "{disposition}, {piece}");
            }
        }
        let encoded = "--b\r\nContent-Disposition: form-data; name*=utf-8''p%72iority\r\n\r\n";
        assert_eq!(refused(encoded, 3), Some("name*"));
        let long = format!("\nContent-Disposition: form-data; x={}", "x".repeat(LINE_BYTES_MAX));
        assert_eq!(refused(&long, 100), Some("content-disposition"));
    }

    #[test]
    fn other_names_and_contents_pass() {
        let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"priority\"; filename*=utf-8''rid\r\n\
                    Content-Type: audio/wav\r\n\r\nname=\"priority\" Content-Disposition: form-data; name=rid\r\n--b\r\n\
                    Content-Disposition: form-data; name=\"timestamp_granularities[]\"\r\n\r\nword\r\n--b--\r\n";
        for piece in [1, 5, 1_000] {
            assert_eq!(refused(form, piece), None);
        }
        let noise: Vec<u8> = (0..200_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut scan = FormScan::new(&headers("Multipart/Form-Data"), FieldPolicy::default()).unwrap();
        assert_eq!(scan.push(&noise), Ok(()));
        assert!(scan.line.capacity() <= 2 * LINE_BYTES_MAX);
    }

    #[test]
    fn fields_in_one_line_are_found() {
        let kind = headers("application/x-www-form-urlencoded");
        let check = |body: &str| super::check(body.as_bytes(), &kind, FieldPolicy::default());
        for body in ["priority=-9", "a=1&priority", "a=1;%70riority=2", "+priority=1"] {
            let body = body.replace('+', "%20");
            assert_eq!(check(&body), Err("priority"), "{body}");
        }
        assert_eq!(check("a=priority&model=m"), Ok(()));
        let text = headers("text/plain");
        assert_eq!(super::check(b"priority=1", &text, FieldPolicy::default()), Ok(()));
    }
}
