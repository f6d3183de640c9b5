//! Reading `multipart/form-data` as it arrives.
//!
//! Bytes go in, parts come out; never more than a piece and a boundary is held.
//! What a client sends here is not trusted to be short or well formed.

use bytes::{Buf as _, Bytes, BytesMut};

use super::failure::{Failure, Kind};

/// All headers of one part.
const MAX_HEADERS: usize = 16 * 1024;
/// From RFC 2046.
const MAX_BOUNDARY: usize = 70;
/// Parts of one request.
const MAX_PARTS: usize = 4096;

/// What a client said about a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// The field.
    pub(crate) name: String,
    /// The whole file name, slashes included.
    pub(crate) filename: Option<String>,
}

/// What comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A part begins.
    Begin(Part),
    /// Some of its content.
    Data(Bytes),
    /// It is complete.
    End,
    /// The whole body is.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first boundary, or just behind one.
    Boundary,
    Headers,
    Content,
    Done,
}

/// The parser.
#[derive(Debug)]
pub(crate) struct Multipart {
    /// Line break, two dashes, the boundary.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
    n_parts: usize,
}

impl Multipart {
    /// Takes the content type of the body.
    pub(crate) fn new(content_type: &str) -> Result<Self, Failure> {
        let boundary = parameter(content_type, "boundary")
            .filter(|text| !text.is_empty() && text.len() <= MAX_BOUNDARY)
            .ok_or_else(|| invalid("the content type names no boundary"))?;
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        // The first boundary has no line before it; with one, all are alike.
        Ok(Self { delimiter, buffer: BytesMut::from("\r\n"), state: State::Boundary, n_parts: 0 })
    }

    /// Adds bytes as they arrive.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// What follows from the bytes so far; `None` means more are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            match self.state {
                State::Done => {
                    self.buffer.clear();
                    return Ok(None);
                }
                State::Boundary => match self.find_boundary()? {
                    None => return Ok(None),
                    Some(true) => {
                        self.state = State::Done;
                        return Ok(Some(Event::Done));
                    }
                    Some(false) => self.state = State::Headers,
                },
                State::Headers => return self.headers(),
                State::Content => return Ok(self.content()),
            }
        }
    }

    /// Skips to behind the next boundary; whether it was the last.
    fn find_boundary(&mut self) -> Result<Option<bool>, Failure> {
        let Some(start) = find(&self.buffer, &self.delimiter) else {
            if self.buffer.len() > MAX_HEADERS {
                return Err(invalid("the boundary does not come"));
            }
            return Ok(None);
        };
        let rest = &self.buffer[start + self.delimiter.len()..];
        if rest.starts_with(b"--") {
            return Ok(Some(true));
        }
        match find(rest, b"\r\n") {
            // Blanks may follow a boundary on its line.
            Some(blanks) if rest[..blanks].iter().all(|byte| matches!(byte, b' ' | b'\t')) => {
                self.buffer.advance(start + self.delimiter.len() + blanks + 2);
                Ok(Some(false))
            }
            Some(_) => Err(invalid("something else stands behind a boundary")),
            None if rest.len() > MAX_HEADERS => Err(invalid("a boundary's line does not end")),
            None => Ok(None),
        }
    }

    fn headers(&mut self) -> Result<Option<Event>, Failure> {
        let (end, skip) = if self.buffer.starts_with(b"\r\n") {
            (0, 2)
        } else if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
            (end, 4)
        } else if self.buffer.len() > MAX_HEADERS {
            return Err(invalid("the headers of a part are too long"));
        } else {
            return Ok(None);
        };
        let part = part(&String::from_utf8_lossy(&self.buffer[..end]));
        self.buffer.advance(end + skip);
        self.n_parts += 1;
        if self.n_parts > MAX_PARTS {
            return Err(invalid("too many parts"));
        }
        self.state = State::Content;
        Ok(Some(Event::Begin(part)))
    }

    fn content(&mut self) -> Option<Event> {
        match find(&self.buffer, &self.delimiter) {
            Some(0) => {
                self.state = State::Boundary;
                Some(Event::End)
            }
            Some(end) => Some(Event::Data(self.buffer.split_to(end).freeze())),
            None => {
                // The tail may be the begin of a boundary.
                let safe = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
                (safe > 0).then(|| Event::Data(self.buffer.split_to(safe).freeze()))
            }
        }
    }
}

fn part(headers: &str) -> Part {
    let disposition = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let disposition = disposition.unwrap_or_default();
    let extended = parameter(disposition, "filename*").and_then(|value| {
        let encoded = value.splitn(3, '\'').nth(2)?.replace('+', "%2B");
        Some(super::query::decode(&encoded))
    });
    Part {
        name: parameter(disposition, "name").unwrap_or_default(),
        filename: extended.or_else(|| parameter(disposition, "filename")),
    }
}

/// A parameter of a header: a word, or quoted text with backslashes.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, value) = rest.split_once('=')?;
        let value = value.trim_start();
        let (text, after) = match value.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = value.find(';').unwrap_or(value.len());
                (value[..end].trim().to_owned(), &value[end..])
            }
        };
        if name.trim_matches([' ', '\t', ';']).eq_ignore_ascii_case(wanted) {
            return Some(text);
        }
        rest = after;
    }
}

/// Reads up to the closing quote; returns the text and what follows.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((text, &quoted[index + 1..])),
            '\\' => match characters.next()?.1 {
                escaped @ ('"' | '\\') => text.push(escaped),
                // Not an escape to those who write Windows paths.
                other => text.extend(['\\', other]),
            },
            other => text.push(other),
        }
    }
    None
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    while let Some(offset) = bytes[from..].iter().position(|byte| *byte == first) {
        let start = from + offset;
        if bytes[start..].starts_with(wanted) {
            return Some(start);
        }
        from = start + 1;
    }
    None
}

fn invalid(text: &str) -> Failure {
    Failure::new(Kind::Invalid, format!("the multipart body cannot be read: {text}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Parts = Vec<(Part, Vec<u8>)>;

    fn read(content_type: &str, pieces: &[&[u8]]) -> Result<(Parts, bool), Failure> {
        let mut parser = Multipart::new(content_type)?;
        let (mut parts, mut done): (Parts, bool) = (Vec::new(), false);
        for piece in pieces {
            parser.push(piece);
            while let Some(event) = parser.next()? {
                match event {
                    Event::Begin(part) => parts.push((part, Vec::new())),
                    Event::Data(bytes) => parts.last_mut().unwrap().1.extend_from_slice(&bytes),
                    Event::End => {}
                    Event::Done => done = true,
                }
            }
        }
        Ok((parts, done))
    }

    const TYPE: &str = "multipart/form-data; boundary=X";

    fn body(parts: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (filename, content) in parts {
            let head = format!(
                "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{filename}\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            );
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--X--\r\n");
        body
    }

    #[test]
    fn every_part_comes_out_with_its_whole_name() {
        let body = body(&[("dir/a.txt", b"one"), ("b \\\"q\\\".txt", b""), ("c", b"\r\n--Y\r\n")]);
        let (parts, done) = read(TYPE, &[&body]).unwrap();
        let names: Vec<_> =
            parts.iter().map(|(part, _)| part.filename.as_deref().unwrap()).collect();
        assert_eq!(names, ["dir/a.txt", "b \"q\".txt", "c"]);
        assert_eq!(parts[0].1, b"one");
        assert_eq!(parts[1].1, b"");
        assert_eq!(parts[2].1, b"\r\n--Y\r\n");
        assert_eq!(parts[0].0.name, "file");
        assert!(done);
    }

    #[test]
    fn a_boundary_may_be_quoted_and_a_name_encoded() {
        let body = b"--a b\r\ncontent-disposition: form-data; filename*=UTF-8''%C3%A9%2Fx; \
                     name=file\r\n\r\nv\r\n--a b--";
        let (parts, done) =
            read("multipart/form-data; charset=x; boundary=\"a b\"", &[body]).unwrap();
        assert_eq!(parts[0].0, Part { name: "file".into(), filename: Some("é/x".into()) });
        assert!(done);
    }

    #[test]
    fn what_is_not_multipart_is_refused() {
        assert!(Multipart::new("multipart/form-data").is_err());
        assert!(read(TYPE, &[&vec![b'x'; 20_000]]).is_err());
        assert!(read(TYPE, &[b"--X\r\n", &vec![b'x'; 20_000]]).is_err());
        assert!(read(TYPE, &[b"--Xtra\r\n\r\n"]).is_err());
    }

    proptest! {
        #[test]
        fn the_content_is_the_same_whatever_the_cuts(
            contents in prop::collection::vec(prop::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'X'), any::<u8>()], 0..40), 1..4),
            step in 1_usize..20,
        ) {
            // A body that holds the boundary itself is not a valid one.
            prop_assume!(contents.iter().all(|content| find(content, b"\r\n--X").is_none()
                && !content.starts_with(b"--X")));
            let parts: Vec<(&str, &[u8])> = contents.iter().map(|content| ("f", content.as_slice())).collect();
            let body = body(&parts);
            let pieces: Vec<&[u8]> = body.chunks(step).collect();
            let (parts, done) = read(TYPE, &pieces).unwrap();
            prop_assert!(done);
            let read: Vec<Vec<u8>> = parts.into_iter().map(|(_, content)| content).collect();
            prop_assert_eq!(read, contents);
        }

        /// G-01: no bytes make it panic.
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut body = b"--X\r\n".to_vec();
            body.extend_from_slice(&bytes);
            drop(read(TYPE, &[&body]));
        }
    }
}
