//! A bridge from stdin and stdout to the socket of a hosted init.
//!
//! For a host that can run a program in a container and has no other way in:
//! the program's two pipes are the link. Ends when either side does.

use std::{io, path::Path};

use tokio::{
    io::{AsyncWriteExt as _, copy, stdin, stdout},
    net::UnixStream,
};

/// Runs the bridge.
pub(crate) fn run(socket: &Path) -> io::Result<()> {
    // Standard input is read on a thread of its own.
    crate::runtime::run(2, async {
        let (mut from_init, mut to_init) = UnixStream::connect(socket).await?.into_split();
        let (mut input, mut output) = (stdin(), stdout());
        tokio::select! {
            copied = copy(&mut input, &mut to_init) => copied.map(drop),
            copied = copy(&mut from_init, &mut output) => copied.map(drop),
        }?;
        output.flush().await
    })
}
