//! Where a process's output goes: through to our own, or into memory.

use std::{fs::File, io::Write as _, os::fd::AsFd};

use tokio::sync::{mpsc, oneshot};

/// Pieces that wait for a slow reader. A piece is at most a message long.
const QUEUE: usize = 4;
/// The most that is kept of each output in memory.
pub(crate) const KEPT: usize = 64 * 1024 * 1024;

/// Which of the two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Standard output, or the terminal.
    Output,
    /// Standard error.
    Error,
}

/// What a process wrote, up to [`KEPT`] bytes each.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) output: Kept,
    pub(crate) error: Kept,
}

/// One output in memory.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) bytes: Vec<u8>,
    pub(crate) truncated: bool,
}

/// Takes output, a piece at a time.
#[derive(Debug)]
pub(crate) enum Sink {
    /// To our standard output and error, in the order of arrival.
    Ours(Writer),
    /// Into memory.
    Memory(Collected),
}

/// A thread that writes, because a reader may take its time.
#[derive(Debug)]
pub(crate) struct Writer {
    pieces: Option<mpsc::Sender<(Channel, Vec<u8>)>>,
    written: oneshot::Receiver<()>,
}

/// Room for one piece.
#[derive(Debug)]
pub(crate) enum Room<'a> {
    Queue(mpsc::Permit<'a, (Channel, Vec<u8>)>),
    Memory(&'a mut Collected),
}

impl Sink {
    /// Writes to our own outputs.
    pub(crate) fn ours() -> std::io::Result<Self> {
        let own = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map(File::from);
        let output = own(&std::io::stdout())?;
        // Without a standard error, what is written to it has no reader.
        let error = own(&std::io::stderr()).ok();
        let (pieces, queue) = mpsc::channel(QUEUE);
        let (done, written) = oneshot::channel();
        std::thread::spawn(move || {
            if write(queue, output, error).is_ok() {
                // Nobody may be waiting any more.
                done.send(()).ok();
            }
        });
        Ok(Self::Ours(Writer { pieces: Some(pieces), written }))
    }

    /// Keeps everything.
    pub(crate) fn memory() -> Self {
        Self::Memory(Collected::default())
    }

    /// Waits until a piece can be taken; none when the reader has gone away.
    pub(crate) async fn room(&mut self) -> Option<Room<'_>> {
        match self {
            Self::Ours(writer) => {
                let permit = writer.pieces.as_ref()?.reserve().await;
                permit.ok().map(Room::Queue)
            }
            Self::Memory(collected) => Some(Room::Memory(collected)),
        }
    }

    /// Waits until everything is written; false when the reader has gone away.
    pub(crate) async fn flush(&mut self) -> bool {
        match self {
            Self::Ours(writer) => {
                writer.pieces = None;
                (&mut writer.written).await.is_ok()
            }
            Self::Memory(_) => true,
        }
    }
}

impl Room<'_> {
    /// Puts the piece there.
    pub(crate) fn put(self, channel: Channel, bytes: Vec<u8>) {
        match self {
            Self::Queue(permit) => permit.send((channel, bytes)),
            Self::Memory(collected) => {
                let kept = match channel {
                    Channel::Output => &mut collected.output,
                    Channel::Error => &mut collected.error,
                };
                let fits = bytes.len().min(KEPT - kept.bytes.len());
                kept.truncated |= fits < bytes.len();
                kept.bytes.extend_from_slice(&bytes[..fits]);
            }
        }
    }
}

fn write(
    mut queue: mpsc::Receiver<(Channel, Vec<u8>)>,
    mut output: File,
    mut error: Option<File>,
) -> std::io::Result<()> {
    while let Some((channel, bytes)) = queue.blocking_recv() {
        match (channel, &mut error) {
            (Channel::Output, _) => output.write_all(&bytes)?,
            (Channel::Error, Some(file)) => {
                if file.write_all(&bytes).is_err() {
                    error = None;
                }
            }
            (Channel::Error, None) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_what_fits_and_says_so() {
        let mut collected = Collected::default();
        let piece = vec![7; KEPT / 2 + 1];
        Room::Memory(&mut collected).put(Channel::Output, piece.clone());
        assert!(!collected.output.truncated);
        Room::Memory(&mut collected).put(Channel::Output, piece);
        assert_eq!(collected.output.bytes.len(), KEPT);
        assert!(collected.output.truncated);
        assert!(!collected.error.truncated);
    }
}
