//! A file's bytes, and its lines with their numbers.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;
use serde::de::DeserializeOwned;

use super::{Reading, TraceError};

/// How a zstd frame begins.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Reads a file whole, unpacked if it is packed.
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

/// The lines that are JSON of a shape, with their numbers; the others are noted as bad.
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

/// Lines that are not empty, with their numbers from 1 on.
pub fn numbered(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    (1..).zip(lines).filter(|(_, line)| !line.is_empty())
}
