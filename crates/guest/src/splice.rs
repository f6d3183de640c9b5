//! Joining two byte streams until both directions are done.
//!
//! An end of one side is passed on as an end, and the other direction goes on.
//! A side that takes no more ends that direction only: what it still says, an
//! early refusal for instance, arrives. A side that breaks off ends both, and
//! whoever called drops them, which resets what can be reset.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};

/// Bytes under way in one direction.
pub(crate) const BUFFER: usize = 32 * 1024;

/// Copies both ways, at most [`BUFFER`] bytes ahead of the slower side.
///
/// # Errors
/// When one side broke off. Both must be dropped without a farewell.
pub(crate) async fn join(
    a: &mut (impl AsyncRead + AsyncWrite + Unpin),
    b: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<()> {
    let (mut from_a, mut to_a) = split(a);
    let (mut from_b, mut to_b) = split(b);
    tokio::try_join!(copy(&mut from_a, &mut to_b), copy(&mut from_b, &mut to_a)).map(drop)
}

/// One direction.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            to.shutdown().await.ok();
            return Ok(());
        }
        let written = async {
            to.write_all(&buffer[..n]).await?;
            to.flush().await
        };
        if written.await.is_err() {
            return Ok(());
        }
    }
}
