//! Init as the first process of a container.
//!
//! The container's host has made the mounts, the limits and the network; init
//! does everything else as on a machine. The link is a Unix socket, which the
//! host reaches directly or through `guestd connect`. Only root and init's own
//! account may connect: the workload is neither.

use std::{fs::Permissions, io, os::unix::fs::PermissionsExt as _, path::Path, rc::Rc};

use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

use super::{Init, cgroups::Cgroups, network, step, streams};

/// Checks what a machine would have made.
pub(super) fn set_up() -> io::Result<Cgroups> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other("init must be started as root: it starts others as others"));
    }
    // Orphans come to us even when we are not PID 1.
    step(
        "become the reaper of orphans",
        rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)).map_err(Into::into),
    )?;
    // A network of its own may have been left down; one that is up stays up.
    network::loopback().ok();
    Ok(Cgroups::none())
}

/// Serves the link; a new connection takes the place of the last.
pub(super) async fn listen(init: Rc<Init>, socket: &Path) -> io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = step("listen on the link's socket", UnixListener::bind(socket))?;
    std::fs::set_permissions(socket, Permissions::from_mode(0o600))?;
    let mut current: Option<JoinHandle<()>> = None;
    loop {
        let (stream, _) = listener.accept().await?;
        if !trusted(&stream) {
            continue;
        }
        if let Some(previous) = current.take() {
            previous.abort();
        }
        let init = init.clone();
        current = Some(tokio::task::spawn_local(async move {
            // A closed socket is the ordinary end here.
            streams::serve(init, stream).await.ok();
        }));
    }
}

fn trusted(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own)
}
