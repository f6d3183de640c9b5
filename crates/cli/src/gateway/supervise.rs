//! Starting the gateway again, however often it ends.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::{UnixListener, UnixStream as StdStream},
    },
    process::Stdio,
    time::{Duration, Instant},
};

use gateway::wire::ToGateway;
use tokio::{
    net::UnixStream,
    process::{Child, Command},
    sync::{mpsc, watch},
};

use super::{Facts, channel};

/// Between an end and the next start, at first and at most.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A gateway that lived this long did not fail at its start.
const LIVED: Duration = Duration::from_secs(30);

/// Everything that a gateway is started with.
pub(super) struct Supervisor {
    pub(super) uid: u32,
    pub(super) arguments: Vec<String>,
    pub(super) listener: UnixListener,
    pub(super) own: File,
    pub(super) facts: Facts,
    pub(super) ready: watch::Sender<bool>,
}

impl Supervisor {
    /// Keeps a gateway running for as long as this is polled.
    pub(super) async fn run(self, mut orders: mpsc::Receiver<ToGateway>) {
        let mut pause = PAUSE;
        loop {
            let begun = Instant::now();
            match self.start() {
                Ok((mut child, control)) => {
                    let pid = child.id();
                    tracing::info!(pid, "the gateway was started");
                    let talking = channel::drive(control, &mut orders, &self.facts, &self.ready);
                    let why = tokio::select! {
                        ended = talking => match ended {
                            Ok(()) => "it closed its channel".to_owned(),
                            Err(error) => error.to_string(),
                        },
                        status = child.wait() => match status {
                            Ok(status) => status.to_string(),
                            Err(error) => error.to_string(),
                        },
                    };
                    self.ready.send_replace(false);
                    // It ends with its channel anyway; this waits for that.
                    drop(child.kill().await);
                    tracing::error!(
                        pid,
                        why,
                        "the gateway ended; nothing leaves any sandbox until it is back"
                    );
                }
                Err(error) => tracing::error!(%error, "the gateway cannot be started"),
            }
            if begun.elapsed() > LIVED {
                pause = PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn start(&self) -> io::Result<(Child, UnixStream)> {
        let (near, far) = StdStream::pair()?;
        near.set_nonblocking(true)?;
        // A link that the kernel keeps right, also when the file is replaced.
        let child = Command::new("/proc/self/exe")
            .arg(crate::GATEWAY)
            .args(&self.arguments)
            .env_clear()
            .current_dir("/")
            .uid(self.uid)
            .gid(self.uid)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        gateway::process::send(near.as_fd(), [self.listener.as_fd(), self.own.as_fd()])?;
        Ok((child, UnixStream::from_std(near)?))
    }
}
