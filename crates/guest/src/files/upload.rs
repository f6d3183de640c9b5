//! `POST /files`: one file as the body, or several as parts.
//!
//! A file is made, given its owner and then written in place, in that order:
//! watchers count on it. Nothing is collected in memory; a file that cannot
//! take what comes makes the sender wait. What was written of an upload that
//! fails or breaks off is removed; a file that was there before is then empty.
//! One that the disk has no room for is refused before anything is touched.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
    rc::Rc,
};

use bytes::{Buf as _, Bytes};
use flate2::read::MultiGzDecoder;
use guest_protocol::filesystem::WriteInfo;
use hyper::{
    Request, Response, StatusCode,
    body::{Body as _, Incoming},
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
};

use super::{
    Worker, directories,
    failure::{Failure, Kind},
    metadata::{self, Metadata},
    multipart::{Event, Multipart},
    query::Query,
};
use crate::http::body::{self, Body};

/// Pieces that wait for the disk.
const QUEUE: usize = 4;
/// Writes what the body holds.
pub(crate) async fn answer(worker: &Rc<Worker>, request: Request<Incoming>) -> Response<Body> {
    let (head, mut incoming) = request.into_parts();
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let text = |name| {
        let value = head
            .headers
            .get(name)
            .and_then(|value: &hyper::header::HeaderValue| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let kind = text(CONTENT_TYPE);
    let gzip = match text(CONTENT_ENCODING).as_str() {
        "" | "identity" => false,
        "gzip" => true,
        other => {
            let text = format!("content encoding {other} is not supported: use gzip or none");
            return Failure::new(Kind::Invalid, text).plain();
        }
    };
    let path = query.get("path").filter(|path| !path.is_empty());
    let outcome = match metadata::from_headers(&head.headers) {
        Err(failure) => Err(failure),
        Ok(metadata) if kind.starts_with("multipart/form-data") => {
            parts(worker, &kind, path, &metadata, &mut incoming).await
        }
        Ok(metadata) => {
            // Of gzip it is not known what it becomes.
            let announced = incoming.size_hint().exact().filter(|_| !gzip);
            let target = Target { gzip, announced, metadata, ..Target::of(worker) };
            whole(worker, path, target, &mut incoming).await
        }
    };
    match outcome {
        Ok(written) => {
            let text = serde_json::to_vec(&written).unwrap_or_default();
            body::json(StatusCode::OK, text)
        }
        Err(failure) => {
            body::discard(incoming);
            failure.plain()
        }
    }
}

/// The body is the file.
async fn whole(
    worker: &Worker,
    path: Option<&str>,
    target: Target,
    body: &mut Incoming,
) -> Result<Vec<WriteInfo>, Failure> {
    let path = path.ok_or_else(|| Failure::new(Kind::Invalid, "the query names no path"))?;
    let target = Target { path: worker.resolve(path), ..target };
    let mut writing = Writing::begin(target);
    loop {
        tokio::select! {
            // It has failed, whatever is still to come.
            () = writing.pieces.closed() => break,
            bytes = next(body) => match bytes? {
                Some(bytes) => { writing.write(bytes).await; }
                None => break,
            }
        }
    }
    Ok(vec![writing.finish().await?])
}

/// Each part called `file` is one.
async fn parts(
    worker: &Worker,
    kind: &str,
    path: Option<&str>,
    metadata: &Metadata,
    body: &mut Incoming,
) -> Result<Vec<WriteInfo>, Failure> {
    let mut parser = Multipart::new(kind)?;
    let mut written = Vec::new();
    let mut writing: Option<Writing> = None;
    loop {
        match parser.next()? {
            Some(Event::Begin(part)) if part.name == "file" => {
                let path = match (path, &part.filename) {
                    (Some(_), _) if !written.is_empty() => {
                        let text = "several files for one path: leave the path out of the query";
                        return Err(Failure::new(Kind::Invalid, text));
                    }
                    (Some(path), _) => path,
                    (None, Some(filename)) => filename.as_str(),
                    (None, None) => {
                        let text = "neither the query nor the part names a path";
                        return Err(Failure::new(Kind::Invalid, text));
                    }
                };
                let (path, metadata) = (worker.resolve(path), metadata.clone());
                let target = Target { path, metadata, ..Target::of(worker) };
                writing = Some(Writing::begin(target));
            }
            // A field of a form; nothing to write.
            Some(Event::Begin(_)) => {}
            Some(Event::Data(bytes)) => {
                if let Some(current) = &mut writing
                    && !current.write(bytes).await
                    && let Some(failed) = writing.take()
                {
                    failed.finish().await?;
                }
            }
            Some(Event::End) => {
                if let Some(current) = writing.take() {
                    written.push(current.finish().await?);
                }
            }
            Some(Event::Done) => return Ok(written),
            None => match next(body).await? {
                Some(bytes) => parser.push(&bytes),
                None => {
                    let text = "the multipart body ends before its last boundary";
                    return Err(Failure::new(Kind::Invalid, text));
                }
            },
        }
    }
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    let piece = body::next(body).await;
    piece.ok_or_else(|| Failure::new(Kind::Invalid, "the upload broke off"))
}

/// What is written where.
struct Target {
    path: PathBuf,
    uid: u32,
    gid: u32,
    gzip: bool,
    /// Bytes that will come, where that is known.
    announced: Option<u64>,
    metadata: Metadata,
}

impl Target {
    fn of(worker: &Worker) -> Self {
        let Worker { uid, gid, .. } = *worker;
        let (path, metadata) = (PathBuf::new(), Metadata::new());
        Self { path, uid, gid, gzip: false, announced: None, metadata }
    }
}

/// A file being written on a thread of its own.
struct Writing {
    /// An empty piece is the end; without one the upload broke off.
    pieces: mpsc::Sender<Bytes>,
    outcome: JoinHandle<Result<WriteInfo, Failure>>,
}

impl Writing {
    fn begin(target: Target) -> Self {
        let (pieces, queue) = mpsc::channel(QUEUE);
        let outcome = spawn_blocking(move || {
            write(&target, Pieces { queue, current: Bytes::new(), ended: false })
        });
        Self { pieces, outcome }
    }

    /// Whether the file takes more; if not, [`Writing::finish`] says why.
    async fn write(&mut self, bytes: Bytes) -> bool {
        if bytes.is_empty() {
            return true;
        }
        self.pieces.send(bytes).await.is_ok()
    }

    async fn finish(self) -> Result<WriteInfo, Failure> {
        // A file that takes no more has its reason ready.
        self.pieces.send(Bytes::new()).await.ok();
        self.outcome.await.map_err(Failure::internal)?
    }
}

/// Writes one file to its end, or removes what was written. Blocking.
fn write(target: &Target, pieces: Pieces) -> Result<WriteInfo, Failure> {
    let path = &target.path;
    let about = |error: io::Error| Failure::about(path, &error);
    directories::make_parent(path)?;
    let (file, made) = open(path).map_err(about)?;
    if !file.metadata().map_err(about)?.is_file() {
        let text = format!("path '{}' is not a regular file", path.display());
        return Err(Failure::new(Kind::Invalid, text));
    }
    let room = target.announced.is_none_or(|length| has_room(&file, length));
    let written = if room {
        fill(target, pieces, &file, made)
    } else {
        Err(about(io::Error::from_raw_os_error(libc::ENOSPC)))
    };
    if written.is_err() && made {
        fs::remove_file(path).ok();
    } else if written.is_err() && room {
        file.set_len(0).ok();
    }
    written?;
    Ok(WriteInfo {
        path: path.to_string_lossy().into_owned(),
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        kind: "file".into(),
        metadata: target.metadata.clone(),
    })
}

/// Opens what is there, or makes it; whether it was made.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = File::options();
    options.write(true).mode(0o666).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    match options.open(path) {
        Ok(file) => Ok((file, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            options.create(true).open(path).map(|file| (file, true))
        }
        Err(error) => Err(error),
    }
}

fn fill(target: &Target, pieces: Pieces, file: &File, made: bool) -> Result<(), Failure> {
    let about = |error: io::Error| Failure::about(&target.path, &error);
    if !made {
        // Of a new file this would be an event of its own.
        file.set_len(0).map_err(about)?;
    }
    // Fails for a file of somebody else that may be written; it stays theirs.
    fchown(file, Some(target.uid), Some(target.gid)).ok();
    let copied =
        if target.gzip { copy(MultiGzDecoder::new(pieces), file) } else { copy(pieces, file) };
    copied.map_err(|error| match error.kind() {
        _ if error.raw_os_error().is_some() => about(error),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            Failure::new(Kind::Invalid, format!("the body is not gzip: {error}"))
        }
        io::ErrorKind::UnexpectedEof => Failure::new(Kind::Invalid, "the gzip body ends too early"),
        io::ErrorKind::ConnectionAborted => Failure::new(Kind::Invalid, "the upload broke off"),
        _ => about(error),
    })?;
    metadata::replace(file, &target.metadata).map_err(about)
}

/// Whether the disk takes so many bytes in the place of what the file holds.
fn has_room(file: &File, length: u64) -> bool {
    let (Ok(disk), Ok(own)) = (rustix::fs::fstatvfs(file), file.metadata()) else { return true };
    // Some file systems do not say how large they are.
    disk.f_blocks == 0 || disk.f_bavail * disk.f_frsize + own.blocks() * 512 >= length
}

/// Copies with one buffer of a fixed size, whatever gzip makes of a piece.
fn copy(mut from: impl Read, mut to: &File) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => io::Write::write_all(&mut to, &buffer[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The pieces of an upload as something to read.
struct Pieces {
    queue: mpsc::Receiver<Bytes>,
    current: Bytes,
    ended: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() && !self.ended {
            self.current = self.queue.blocking_recv().ok_or(io::ErrorKind::ConnectionAborted)?;
            self.ended = self.current.is_empty();
        }
        let n = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}
