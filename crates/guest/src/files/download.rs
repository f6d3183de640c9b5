//! `GET /files`: a file, or a range of it.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    ops::Range,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, RANGE},
};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{
    Worker,
    failure::{Failure, Kind},
    query::Query,
    service::blocking,
};
use crate::http::body::{self, Body};

/// One piece on its way, and how many wait for a slow client.
const PIECE: usize = 64 * 1024;
const QUEUE: usize = 2;

/// Answers with the file's bytes.
pub(crate) async fn answer(worker: &Worker, request: &Request<Incoming>) -> Response<Body> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let path = worker.resolve(query.get("path").unwrap_or_default());
    let opened = blocking(move || open(&path)).await;
    let (file, size) = match opened {
        Ok(opened) => opened,
        Err(failure) => return failure.plain(),
    };
    let wanted = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
    let range = match wanted.map_or(Ok(None), |text| range(text, size)) {
        Ok(range) => range,
        Err(failure) => {
            let mut response = failure.plain();
            insert(&mut response, CONTENT_RANGE, format!("bytes */{size}"));
            return response;
        }
    };
    let whole = 0..size;
    let (status, part) = match &range {
        Some(part) => (StatusCode::PARTIAL_CONTENT, part),
        None => (StatusCode::OK, &whole),
    };
    let (sender, pieces) = mpsc::channel(QUEUE);
    // Ends with the file, or when nobody reads any more.
    drop(spawn_blocking({
        let part = part.clone();
        move || send(file, part, &sender)
    }));
    let mut response =
        body::answer(status, "application/octet-stream", Pieces(pieces).boxed_unsync());
    insert(&mut response, CONTENT_LENGTH, (part.end - part.start).to_string());
    insert(&mut response, ACCEPT_RANGES, "bytes".into());
    if let Some(Range { start, end }) = range {
        insert(&mut response, CONTENT_RANGE, format!("bytes {start}-{}/{size}", end - 1));
    }
    response
}

fn open(path: &Path) -> Result<(File, u64), Failure> {
    let about = |error: io::Error| Failure::about(path, &error);
    // Without waiting: a pipe would keep the thread until somebody writes.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(about)?;
    let metadata = file.metadata().map_err(about)?;
    if metadata.is_dir() {
        return Err(Failure::new(
            Kind::Invalid,
            format!("path '{}' is a directory", path.display()),
        ));
    }
    if !metadata.is_file() {
        let text = format!("path '{}' is not a regular file", path.display());
        return Err(Failure::new(Kind::Invalid, text));
    }
    Ok((file, metadata.len()))
}

/// Parses `bytes=a-b`, `bytes=a-` and `bytes=-n`. Anything else, several ranges
/// included, is answered with the whole file, as RFC 9110 allows.
fn range(text: &str, size: u64) -> Result<Option<Range<u64>>, Failure> {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|rest| rest.split_once('-'))
    else {
        return Ok(None);
    };
    let range = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(start), Ok(end)) if end < start => return Ok(None),
        (Ok(start), Ok(end)) => start..size.min(end.saturating_add(1)),
        (Ok(start), Err(_)) if last.trim().is_empty() => start..size,
        (Err(_), Ok(n)) if first.trim().is_empty() => size.saturating_sub(n)..size,
        _ => return Ok(None),
    };
    if range.start >= range.end {
        return Err(Failure::new(Kind::Range, format!("the file has only {size} bytes")));
    }
    Ok(Some(range))
}

fn send(mut file: File, part: Range<u64>, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let outcome = (|| {
        file.seek(SeekFrom::Start(part.start))?;
        let mut left = part.end - part.start;
        while left > 0 {
            let mut piece = Vec::with_capacity(PIECE);
            let n = (&mut file).take(left.min(PIECE as u64)).read_to_end(&mut piece)?;
            if n == 0 {
                // A shorter body than announced breaks the connection off, which
                // is how the client learns that the file changed under it.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= n as u64;
            if sender.blocking_send(Ok(piece.into())).is_err() {
                return Ok(());
            }
        }
        Ok(())
    })();
    if let Err(error) = outcome {
        sender.blocking_send(Err(error)).ok();
    }
}

fn insert(response: &mut Response<Body>, name: hyper::header::HeaderName, value: String) {
    // Digits and a few fixed words are always valid.
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(name, value);
    }
}

/// Pieces from the reading thread.
struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.get_mut().0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_to_the_file() {
        let check = |text: &str, expected: Option<Range<u64>>| {
            assert_eq!(range(text, 10).unwrap(), expected, "{text}");
        };
        check("bytes=0-3", Some(0..4));
        check("bytes=4-", Some(4..10));
        check("bytes=4-99", Some(4..10));
        check("bytes=-3", Some(7..10));
        check("bytes=-99", Some(0..10));
        check("bytes=0-18446744073709551615", Some(0..10));
        check("bytes=1-2,4-5", None);
        check("bytes=5-2", None);
        check("lines=1-2", None);
        assert!(range("bytes=10-", 10).is_err());
        assert!(range("bytes=-0", 10).is_err());
        assert!(range("bytes=0-", 0).is_err());
    }
}
