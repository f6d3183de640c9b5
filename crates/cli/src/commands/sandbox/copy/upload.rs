//! From here into a sandbox.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use futures::StreamExt as _;
use guest_protocol::{
    client::{Body, BoxError, ClientError},
    connect::Code,
    filesystem::FileType,
};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;

use super::{Copy, is_contents, name_of};
use crate::{
    error::{Failure, Kind, Outcome, printable},
    process::{self, Input, Launch, Signals, Sink, Terminal},
};

/// Bytes that are read at once.
const PIECE: usize = 256 * 1024;
/// Pieces under way.
const QUEUE: usize = 2;
/// Names given to one `chmod`.
const BATCH: usize = 200;

/// Copies a file or a folder.
pub(super) async fn path(copy: &mut Copy, from: &Path, to: &str) -> Outcome<()> {
    let unreadable = |error| Failure::usage(format!("{} cannot be read: {error}", from.display()));
    let metadata = fs::metadata(from).map_err(unreadable)?;
    let to = if is_contents(from.as_os_str().as_encoded_bytes()) {
        trimmed(to).to_owned()
    } else {
        destination(copy, from, metadata.is_dir(), to).await?
    };
    let mut executables = Vec::new();
    if metadata.is_dir() {
        folder(copy, from, &to, &mut executables).await?;
    } else {
        file(copy, from, &to).await?;
        if metadata.permissions().mode() & 0o111 != 0 && metadata.is_file() {
            executables.push(to);
        }
    }
    allow(copy, &executables).await
}

/// Copies standard input into a file.
pub(super) async fn stream(copy: &mut Copy, to: &str) -> Outcome<()> {
    if to.ends_with('/') {
        return Err(Failure::usage(format!("{to} is a folder; name the file to write")));
    }
    send(copy, io::stdin(), to).await
}

/// The path to write: below `to` if that is a folder. A file is also written
/// below a `to` that ends like a folder and is not there; a folder becomes it.
async fn destination(copy: &Copy, from: &Path, is_dir: bool, to: &str) -> Outcome<String> {
    let is_folder = match copy.guest.stat(to, &copy.user).await {
        Ok(entry) => entry.kind == FileType::Directory,
        Err(ClientError::Refused(error)) if error.code == Code::NotFound => false,
        Err(error) => return Err(error.into()),
    };
    if !is_folder && (is_dir || !to.ends_with('/')) {
        return Ok(trimmed(to).to_owned());
    }
    let real = fs::canonicalize(from)?;
    let name = from.file_name().or_else(|| real.file_name()).and_then(|name| name.to_str());
    match name.and_then(name_of) {
        Some(name) => Ok(format!("{}/{name}", to.trim_end_matches('/'))),
        None => Err(Failure::usage(format!("{} has no name to copy under", from.display()))),
    }
}

/// Without slashes at its end, if more than those is left.
fn trimmed(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/');
    if trimmed.is_empty() { path } else { trimmed }
}

/// Copies a folder, its folders before their content.
async fn folder(
    copy: &mut Copy,
    from: &Path,
    to: &str,
    executables: &mut Vec<String>,
) -> Outcome<()> {
    let mut waiting: Vec<(PathBuf, String)> = vec![(from.to_owned(), to.to_owned())];
    while let Some((here, there)) = waiting.pop() {
        match copy.guest.make_dir(&there, &copy.user).await {
            Ok(_) => {}
            Err(ClientError::Refused(error)) if error.code == Code::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        let mut entries = fs::read_dir(&here)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                copy.skip(&path.to_string_lossy(), "its name is not UTF-8");
                continue;
            };
            let target = format!("{there}/{name}");
            // Of the entry itself, not of what it links to.
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                waiting.push((path, target));
            } else if metadata.is_file() {
                file(copy, &path, &target).await?;
                if metadata.permissions().mode() & 0o111 != 0 {
                    executables.push(target);
                }
            } else {
                copy.skip(&path.to_string_lossy(), "neither a file nor a folder");
            }
        }
    }
    Ok(())
}

async fn file(copy: &mut Copy, from: &Path, to: &str) -> Outcome<()> {
    let unreadable = |error| Failure::usage(format!("{} cannot be read: {error}", from.display()));
    send(copy, File::open(from).map_err(unreadable)?, to).await
}

/// Sends what `content` holds to a file of another name, which gets its own name
/// when it is complete: what breaks off leaves what was there before.
async fn send(copy: &mut Copy, content: impl Read + Send + 'static, to: &str) -> Outcome<()> {
    let partial = partial_name(to);
    let sent = match write(copy, content, &partial).await {
        Ok(()) => copy.guest.rename(&partial, to, &copy.user).await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = sent {
        // There may be nothing to remove; what failed is told.
        copy.guest.remove(&partial, &copy.user).await.ok();
        let mut failure = Failure::from(error);
        failure.message = format!("{}: {}", printable(to), failure.message);
        return Err(failure);
    }
    copy.done.files += 1;
    Ok(())
}

/// In the same folder, so that renaming does not copy.
fn partial_name(to: &str) -> String {
    let (folder, _) = to.rsplit_once('/').unwrap_or(("", to));
    let slash = if to.contains('/') { "/" } else { "" };
    format!("{folder}{slash}.coldframe-{}.part", std::process::id())
}

/// Streams what `content` holds; it is read on a thread, a bounded piece ahead.
async fn write(
    copy: &mut Copy,
    mut content: impl Read + Send + 'static,
    to: &str,
) -> Result<(), ClientError> {
    let (sender, mut receiver) = mpsc::channel::<Result<Bytes, BoxError>>(QUEUE);
    let (counter, mut counted) = mpsc::channel::<usize>(QUEUE);
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        loop {
            let piece = match content.read(&mut buffer) {
                Ok(0) => return,
                Ok(n_read) => Ok(Bytes::copy_from_slice(&buffer[..n_read])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error.into()),
            };
            // Nobody takes it any more: the copy was given up.
            if sender.blocking_send(piece).is_err() {
                return;
            }
        }
    });
    let pieces = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    let pieces = pieces.map(move |piece| {
        if let Ok(bytes) = &piece {
            // A count that is lost only makes the bar less exact.
            counter.try_send(bytes.len()).ok();
        }
        piece.map(Frame::data)
    });
    let body: Body = StreamBody::new(pieces).boxed_unsync();
    let user = copy.user.clone();
    let guest = copy.guest.clone();
    let mut writing = std::pin::pin!(guest.write_file(to, &user, body));
    let written = loop {
        tokio::select! {
            written = &mut writing => break written,
            Some(n_bytes) = counted.recv() => copy.moved(n_bytes),
        }
    };
    while let Ok(n_bytes) = counted.try_recv() {
        copy.moved(n_bytes);
    }
    written.map(drop)
}

/// Makes files executable; a plain upload makes none.
async fn allow(copy: &Copy, paths: &[String]) -> Outcome<()> {
    for batch in paths.chunks(BATCH) {
        let mut command = ["chmod", "+x", "--"].map(str::to_owned).to_vec();
        command.extend_from_slice(batch);
        let launch = Launch {
            command,
            environment: [].into(),
            cwd: None,
            user: copy.user.clone(),
            timeout: None,
            input: Input::Empty,
            terminal: Terminal::No,
        };
        let (mut sink, mut signals) = (Sink::memory(), Signals::listen()?);
        let ended = process::drive(&copy.guest, &launch, &mut sink, &mut signals).await?;
        if ended.code() != 0 {
            let message = "files were copied and could not be made executable";
            return Err(Failure::new(Kind::Refused, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::partial_name;

    #[test]
    fn a_partial_file_lies_beside_the_whole_one() {
        let folder =
            |to: &str| partial_name(to).rsplit_once(".coldframe-").map(|(f, _)| f.to_owned());
        assert_eq!(folder("/workspace/a"), Some("/workspace/".to_owned()));
        assert_eq!(folder("/a"), Some("/".to_owned()));
        assert_eq!(folder("a"), Some(String::new()));
        assert_eq!(folder("b/a"), Some("b/".to_owned()));
    }
}
