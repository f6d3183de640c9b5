//! A guest in namespaces of its own.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Once,
    time::Duration,
};

use guest_protocol::control::{Identity, Request, Response};
use tempfile::TempDir;
use tokio::{net::UnixStream, time::sleep};

use crate::host::Host;

/// A mount, pid, network and uts namespace with accounts and homes of its own.
const SET_UP: &str = r#"
set -e
mount -t proc proc /proc
mount -t tmpfs -o mode=1777,size=64m tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /home
mkdir -p /home/user && chown 1000:1000 /home/user
printf 'root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\nother:x:1001:1001::/home/user:/bin/sh\n' > /home/passwd
printf 'root:x:0:\nuser:x:1000:\nother:x:1001:\n' > /home/group
mount --bind /home/passwd /etc/passwd
mount --bind /home/group /etc/group
exec /proc/self/fd/9 init --hosted "$1"
"#;

/// A running guest; dropping it ends everything in it.
#[derive(Debug)]
pub(crate) struct Guest {
    unshare: Child,
    socket: PathBuf,
    _folder: TempDir,
}

impl Guest {
    /// Starts one, or says why that is not possible here.
    pub(crate) async fn start() -> Option<Self> {
        if !possible() {
            return None;
        }
        // Not in /tmp: the guest mounts its own there.
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let socket = folder.path().join("link");
        let script = format!("exec 9<{}\n{SET_UP}", env!("CARGO_BIN_EXE_guestd"));
        let unshare = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--"])
            .args(["sh", "-c", &script, "sh"])
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare starts");
        let guest = Self { unshare, socket, _folder: folder };
        for _ in 0..600 {
            if UnixStream::connect(&guest.socket).await.is_ok() {
                return Some(guest);
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("the guest does not listen");
    }

    /// Says hello.
    pub(crate) async fn connect(&self) -> Host {
        let socket = UnixStream::connect(&self.socket).await.expect("the guest listens");
        Host::connect(socket).await
    }

    /// Says hello through `guestd connect`, whose two pipes are then the link.
    pub(crate) async fn connect_by_program(&self) -> (Host, Child) {
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
        let far = std::os::fd::OwnedFd::from(far);
        let program = Command::new(env!("CARGO_BIN_EXE_guestd"))
            .arg("connect")
            .arg(&self.socket)
            .stdin(far.try_clone().expect("a copy"))
            .stdout(far)
            .spawn()
            .expect("the bridge starts");
        near.set_nonblocking(true).expect("not blocking");
        let near = UnixStream::from_std(near).expect("a socket");
        (Host::connect(near).await, program)
    }

    /// Says hello and gives the guest an identity.
    pub(crate) async fn identified(&self, accounts: &[u32]) -> Host {
        let host = self.connect().await;
        let identity = Identity {
            sandbox: "sbx_test".into(),
            hostname: "sandbox".into(),
            machine_id: [1; 16],
            unix_nanos: 0,
            entropy: [0; 32],
            environment: vec![("FROM".into(), "sandbox".into()), ("BOTH".into(), "sandbox".into())],
            accounts: accounts.to_vec(),
        };
        let answer = host.control(Request::Identify(Box::new(identity))).await;
        assert_eq!(answer, Response::Done);
        host
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.unshare.kill().ok();
        self.unshare.wait().ok();
    }
}

/// Whether namespaces can be made here; says once why not.
fn possible() -> bool {
    static SAID: Once = Once::new();
    let tried = Command::new("unshare")
        .args(["--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--"])
        .args(["mount", "-t", "proc", "proc", "/proc"])
        .stderr(Stdio::null())
        .status();
    let possible =
        rustix::process::geteuid().is_root() && tried.is_ok_and(|status| status.success());
    if !possible {
        SAID.call_once(|| println!("SKIPPED: needs root and namespaces"));
    }
    possible
}

/// Ends the test where no guest can be started.
#[macro_export]
macro_rules! guest {
    () => {
        match $crate::guest::Guest::start().await {
            Some(guest) => guest,
            None => return,
        }
    };
}
