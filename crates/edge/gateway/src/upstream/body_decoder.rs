//! Finds a response's body in the bytes that a worker sends (RFC 9112, 6 and 7).
//!
//! ```text
//! Size ──▶ Data ──▶ DataEnd ──▶ Size …        chunked
//!   └─ 0 ──▶ Trailer ──▶ Over
//! Length, UntilClose ──▶ Over                 not chunked
//! ```
//!
//! Short chunks that have arrived together are joined, so that they go on as one: an engine's tokens that waited for this
//! process reach the client in one write. Chunk extensions and trailers are dropped.

use bytes::{Buf, Bytes, BytesMut};

use super::error::BadResponse;

/// Longer chunks go on as they are: joining copies.
const JOINED_BYTES_MAX: u64 = 4 << 10;
/// Longest line with the size of a chunk. Engines send no extensions, and what they would say is dropped.
const SIZE_LINE_BYTES_MAX: usize = 1 << 10;
/// Longest trailers.
const TRAILER_BYTES_MAX: usize = 16 << 10;
/// More digits than this, without zeros before them, cannot be the size of anything.
const SIZE_DIGITS_MAX: u32 = 15;

/// What a body is delimited by, and how far it has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyDecoder {
    /// So many bytes are left, at least one.
    Length(u64),
    /// The body ends with the connection.
    UntilClose,
    /// The line with the size of the next chunk is expected.
    Size,
    /// So many bytes of a chunk are left, at least one.
    Data(u64),
    /// The line break after a chunk is expected.
    DataEnd,
    /// Trailers are expected, of which so many bytes have been read.
    Trailer(usize),
    /// The body has ended.
    Over,
}

impl BodyDecoder {
    /// A body of this length.
    pub(super) fn of_length(bytes: u64) -> BodyDecoder {
        if bytes == 0 { BodyDecoder::Over } else { BodyDecoder::Length(bytes) }
    }

    pub(super) fn is_over(self) -> bool {
        self == BodyDecoder::Over
    }

    /// Takes the next part of the body out of what has been received. `None` if there is nothing of it.
    ///
    /// With the last part the body is over already, where its end has been received too.
    pub(super) fn decode(&mut self, received: &mut BytesMut) -> Result<Option<Bytes>, BadResponse> {
        match *self {
            BodyDecoder::Over => Ok(None),
            _ if received.is_empty() => Ok(None),
            BodyDecoder::UntilClose => Ok(Some(received.split().freeze())),
            BodyDecoder::Length(left) => {
                let part = split_up_to(received, left);
                *self = BodyDecoder::of_length(left - part.len() as u64);
                Ok(Some(part.freeze()))
            }
            _ => self.decode_chunks(received),
        }
    }

    /// Notes the end of the connection. Returns whether the body is whole.
    pub(super) fn end(&mut self) -> bool {
        if *self == BodyDecoder::UntilClose {
            *self = BodyDecoder::Over;
        }
        self.is_over()
    }

    fn decode_chunks(&mut self, received: &mut BytesMut) -> Result<Option<Bytes>, BadResponse> {
        let framing = self.skip_framing(received)?;
        received.advance(framing);
        let BodyDecoder::Data(left) = *self else { return Ok(None) };
        if received.is_empty() {
            return Ok(None);
        }
        // The data found so far ends at `end`, and all before `read` has been read. Data between the two is moved.
        let mut end = usize::try_from(left).unwrap_or(usize::MAX).min(received.len());
        let mut read = end;
        self.take_data(end);
        // An error in what follows is found again by the next call. Until then the data before it goes on.
        while let Ok(framing) = self.skip_framing(&received[read..]) {
            read += framing;
            let BodyDecoder::Data(left @ ..=JOINED_BYTES_MAX) = *self else { break };
            let part = (left as usize).min(received.len() - read);
            if part == 0 {
                break;
            }
            received.copy_within(read..read + part, end);
            (end, read) = (end + part, read + part);
            self.take_data(part);
        }
        let mut data = received.split_to(read);
        data.truncate(end);
        Ok(Some(data.freeze()))
    }

    fn take_data(&mut self, bytes: usize) {
        if let BodyDecoder::Data(left) = *self {
            *self = match left - bytes as u64 {
                0 => BodyDecoder::DataEnd,
                left => BodyDecoder::Data(left),
            };
        }
    }

    /// Reads on to the next data or to the end. Returns the bytes read. An error changes nothing, so it is found again.
    fn skip_framing(&mut self, bytes: &[u8]) -> Result<usize, BadResponse> {
        let (next, read) = self.after_framing(bytes)?;
        *self = next;
        Ok(read)
    }

    fn after_framing(mut self, bytes: &[u8]) -> Result<(BodyDecoder, usize), BadResponse> {
        let mut read = 0;
        loop {
            let rest = &bytes[read..];
            read += match self {
                BodyDecoder::Size => match line(rest, SIZE_LINE_BYTES_MAX)? {
                    Some((size_line, length)) => {
                        self = match chunk_size(size_line)? {
                            0 => BodyDecoder::Trailer(0),
                            size => BodyDecoder::Data(size),
                        };
                        length
                    }
                    None => return Ok((self, read)),
                },
                BodyDecoder::DataEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        self = BodyDecoder::Size;
                        2
                    }
                    [] | [b'\r'] => return Ok((self, read)),
                    _ => return Err(BadResponse::Chunk),
                },
                BodyDecoder::Trailer(before) => match line(rest, TRAILER_BYTES_MAX - before)? {
                    Some((trailer, length)) => {
                        self = match trailer.is_empty() {
                            true => BodyDecoder::Over,
                            false => BodyDecoder::Trailer(before + length),
                        };
                        length
                    }
                    None => return Ok((self, read)),
                },
                _ => return Ok((self, read)),
            };
        }
    }
}

fn split_up_to(received: &mut BytesMut, bytes: u64) -> BytesMut {
    received.split_to(usize::try_from(bytes).unwrap_or(usize::MAX).min(received.len()))
}

/// The first line without its end, and its length with it. `None` if it has not arrived as a whole.
fn line(bytes: &[u8], bytes_max: usize) -> Result<Option<(&[u8], usize)>, BadResponse> {
    let searched = &bytes[..bytes.len().min(bytes_max)];
    match memchr::memchr(b'\n', searched) {
        Some(at) if searched[..at].ends_with(b"\r") => Ok(Some((&searched[..at - 1], at + 1))),
        None if bytes.len() < bytes_max => Ok(None),
        _ => Err(BadResponse::Chunk),
    }
}

/// The size in a chunk's first line: hexadecimal digits, which blanks and an extension may follow.
fn chunk_size(line: &[u8]) -> Result<u64, BadResponse> {
    let (mut size, mut digits) = (0_u64, 0);
    for byte in line {
        let Some(digit) = (*byte as char).to_digit(16) else { break };
        if size >> (4 * (SIZE_DIGITS_MAX - 1)) > 0 {
            return Err(BadResponse::Chunk);
        }
        (size, digits) = (size << 4 | u64::from(digit), digits + 1);
    }
    let extension = &line[digits..];
    let after_blanks = extension.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
    if digits == 0 || after_blanks.is_some_and(|byte| *byte != b';') || extension.contains(&b'\r') {
        return Err(BadResponse::Chunk);
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads bytes that arrive in these pieces: the parts of the body, and the decoder afterwards.
    fn read(
        mut decoder: BodyDecoder,
        pieces: &[&[u8]],
    ) -> Result<(Vec<Bytes>, BodyDecoder, BytesMut), BadResponse> {
        let (mut received, mut parts) = (BytesMut::new(), Vec::new());
        for piece in pieces {
            received.extend_from_slice(piece);
            while let Some(part) = decoder.decode(&mut received)? {
                assert!(!part.is_empty());
                parts.push(part);
            }
        }
        Ok((parts, decoder, received))
    }

    #[test]
    fn chunks_that_arrive_together_are_joined() {
        let (parts, decoder, left) =
            read(BodyDecoder::Size, &[b"3\r\nabc\r\n2;x=\"y\"\r\nde\r\n0\r\nt: v\r\n\r\nHTTP"]).unwrap();
        assert_eq!(
            (parts, decoder, &left[..]),
            (vec![Bytes::from("abcde")], BodyDecoder::Over, &b"HTTP"[..])
        );
        let (parts, decoder, _) =
            read(BodyDecoder::Size, &[b"3\r\na", b"bc\r\n", b"A \r\n0123456789"]).unwrap();
        assert_eq!((parts.concat(), decoder), (b"abc0123456789".to_vec(), BodyDecoder::DataEnd));
    }

    #[test]
    fn zeros_before_a_size_say_nothing() {
        let (parts, _, _) = read(BodyDecoder::Size, &[b"00000000000000000001\r\na"]).unwrap();
        assert_eq!(parts, ["a"]);
    }

    #[test]
    fn long_chunks_are_not_copied() {
        let long = [b'x'; 2 * JOINED_BYTES_MAX as usize];
        let chunks = [b"1\r\na\r\n2000\r\n", &long[..], b"\r\n1\r\nb\r\n0\r\n\r\n"].concat();
        let (parts, decoder, _) = read(BodyDecoder::Size, &[&chunks]).unwrap();
        let lengths: Vec<usize> = parts.iter().map(Bytes::len).collect();
        assert_eq!((lengths, decoder), (vec![1, long.len() + 1], BodyDecoder::Over));
    }

    #[test]
    fn a_length_and_a_close_end_a_body() {
        let (parts, decoder, left) = read(BodyDecoder::of_length(3), &[b"a", b"bcd"]).unwrap();
        assert_eq!((parts.concat(), decoder, &left[..]), (b"abc".to_vec(), BodyDecoder::Over, &b"d"[..]));
        assert!(BodyDecoder::of_length(0).is_over());
        let (parts, mut decoder, _) = read(BodyDecoder::UntilClose, &[b"ab", b"c"]).unwrap();
        assert_eq!((parts.concat(), decoder.is_over()), (b"abc".to_vec(), false));
        assert!(decoder.end() && decoder.is_over());
    }

    #[test]
    fn a_body_that_breaks_off_is_never_whole() {
        for state in [
            BodyDecoder::Length(1),
            BodyDecoder::Size,
            BodyDecoder::Data(1),
            BodyDecoder::DataEnd,
            BodyDecoder::Trailer(0),
        ] {
            assert!(!{ state }.end(), "{state:?}");
        }
    }

    #[test]
    fn malformed_chunks_are_refused_after_the_data_before_them() {
        let long_line = [b"1;".as_slice(), &[b'x'; SIZE_LINE_BYTES_MAX]].concat();
        let long_trailer = [b"0\r\nt: ".as_slice(), &[b'x'; TRAILER_BYTES_MAX]].concat();
        for bad in [
            &b"x\r\n"[..],
            b"\r\n",
            b" 1\r\na\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b"0x1\r\n",
            b"1\n",
            b"1 1\r\n",
            b"1\r;\r\n",
            b"1;\rx\r\na",
            b"1\r\nab\r\n",
            b"1\r\na\n",
            b"fffffffffffffffff\r\n",
            b"0\r\nt: v\n\r\n",
            &long_line,
            &long_trailer,
        ] {
            assert!(read(BodyDecoder::Size, &[bad]).is_err(), "{}", String::from_utf8_lossy(bad));
            let mut received = BytesMut::from(&[b"1\r\n!\r\n", bad].concat()[..]);
            let mut decoder = BodyDecoder::Size;
            assert!(decoder.decode(&mut received).unwrap().unwrap().starts_with(b"!"));
            assert!(decoder.decode(&mut received).is_err() && decoder.decode(&mut received).is_err());
            assert!(!decoder.is_over());
        }
    }

    proptest! {
        #[test]
        fn any_chunks_in_any_pieces_give_the_body(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6_000), 0..6),
            extended in any::<bool>(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut sent = Vec::new();
            for chunk in &chunks {
                let extension = if extended { " ;name=\"value\"" } else { "" };
                sent.extend_from_slice(format!("{:X}{extension}\r\n", chunk.len()).as_bytes());
                sent.extend_from_slice(chunk);
                sent.extend_from_slice(b"\r\n");
            }
            sent.extend_from_slice(if extended { b"00\r\nt: v\r\n\r\n" } else { b"0\r\n\r\n" });
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(sent.len())).collect();
            cuts.sort_unstable();
            let bounds = [&[0][..], &cuts, &[sent.len()]].concat();
            let pieces: Vec<&[u8]> = bounds.windows(2).map(|bound| &sent[bound[0]..bound[1]]).collect();
            let (parts, decoder, left) = read(BodyDecoder::Size, &pieces).unwrap();
            prop_assert_eq!(parts.concat(), chunks.concat());
            prop_assert!(decoder.is_over() && left.is_empty());
            // Without its last byte it is not over, and all of the body is there.
            let (parts, mut decoder, _) = read(BodyDecoder::Size, &[&sent[..sent.len() - 1]]).unwrap();
            prop_assert_eq!(parts.concat(), chunks.concat());
            prop_assert!(!decoder.end());
        }
    }
}
