//! Bytes of a file, and its numbered lines.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;
use serde::de::DeserializeOwned;

use super::{Reading, TraceError};

/// First bytes of a zstd frame.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Reads a whole file and decompresses it if needed.
pub fn read(file: &Path) -> Result<Vec<u8>, TraceError> {
    let failed = |why: String| TraceError::Unreadable { file: file.to_owned(), why };
    let mut packed = Vec::new();
    let opened = File::open(file).map_err(|why| failed(why.to_string()))?;
    BufReader::new(opened).read_to_end(&mut packed).map_err(|why| failed(why.to_string()))?;
    if !packed.starts_with(&ZSTD) {
        return Ok(packed);
    }
    let mut bytes = Vec::new();
    let mut rest = &packed[..];
    while !rest.is_empty() {
        let mut frame = StreamingDecoder::new(&mut rest).map_err(|why| failed(why.to_string()))?;
        frame.read_to_end(&mut bytes).map_err(|why| failed(why.to_string()))?;
    }
    Ok(bytes)
}

/// Parses JSON lines and returns them with their numbers; others are noted as unreadable.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], reading: &mut Reading<'_>) -> Vec<(usize, T)> {
    let mut rows = Vec::new();
    for (number, line) in numbered(bytes) {
        reading.lines_total += 1;
        match serde_json::from_slice(line) {
            Ok(row) => rows.push((number, row)),
            Err(why) => reading.bad(number, why),
        }
    }
    rows
}

/// Non-empty lines with their numbers, from 1.
pub fn numbered(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    (1..).zip(lines).filter(|(_, line)| !line.is_empty())
}

/// Parses the items of a JSON array one by one, so that a bad one does not affect others. Errors give the
/// item's number in place of a line.
pub fn items<T: DeserializeOwned>(bytes: &[u8], reading: &mut Reading<'_>) -> Vec<T> {
    let all: Vec<serde_json::Value> = match serde_json::from_slice(bytes) {
        Ok(all) => all,
        Err(why) => {
            reading.bad(why.line(), &why);
            return Vec::new();
        }
    };
    let mut rows = Vec::new();
    for (number, item) in (1..).zip(all) {
        reading.lines_total += 1;
        match serde_json::from_value(item) {
            Ok(row) => rows.push(row),
            Err(why) => reading.bad(number, format!("item {number}: {why}")),
        }
    }
    rows
}
