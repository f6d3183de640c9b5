//! What the host itself has: rights, memory, room, an image, a server.

use std::{fs, path::Path, time::Duration};

use domain::image::ImageName;
use store::images::ImageStore;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::Finding;
use crate::{
    config::Config,
    error::chain,
    guest_program::{self, Origin},
};

const MIB: u64 = 1 << 20;
/// Below this, not even a small sandbox and its template fit.
const LEAST_MEMORY_MIB: u64 = 1024;
/// An image and its templates need about this.
const LEAST_DISK_MIB: u64 = 2048;
/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn root() -> Finding {
    let check = "rights";
    if rustix::process::geteuid().is_root() {
        return Finding::ok(check, "root");
    }
    Finding::fail(
        check,
        "not root, so no sandbox can be started here and not everything is checked",
        "run `sudo coldframe doctor`; `run` and `serve` need root, clients of a server do not",
    )
}

pub(super) fn guest_program() -> Finding {
    let check = "guest program";
    match guest_program::origin() {
        Origin::Embedded => Finding::ok(check, "part of this executable"),
        Origin::Beside(path) => Finding::warn(
            check,
            format!("{}", path.display()),
            "this is a development build; `cargo xtask build` makes one that carries it",
        ),
        Origin::Missing(path) => Finding::fail(
            check,
            "this build carries none",
            format!("build with `cargo xtask build`, or put guestd at {}", path.display()),
        ),
    }
}

pub(super) fn memory() -> Finding {
    let check = "memory";
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    match available.map(|kib| kib / 1024) {
        Some(mib) if mib >= LEAST_MEMORY_MIB => Finding::ok(check, format!("{mib} MiB available")),
        Some(mib) => Finding::fail(
            check,
            format!("{mib} MiB available"),
            format!("free at least {LEAST_MEMORY_MIB} MiB: a small sandbox has 512 MiB"),
        ),
        None => Finding::warn(check, "unknown", "check that /proc is mounted"),
    }
}

/// Whether volumes can be made.
pub(super) fn volumes() -> Finding {
    if store::disks::mkfs_is_here() {
        return Finding::ok("volumes", "mkfs.ext4 is there");
    }
    let advice = "install e2fsprogs; until then no volume can be made";
    Finding::warn("volumes", "mkfs.ext4 is missing", advice)
}

pub(super) fn disk(state: &Path) -> Finding {
    let check = "room for state";
    // The folder may not be there yet; then the one it would be made in counts.
    let existing = state.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(existing) {
        Ok(space) => {
            let mib = space.f_bavail * space.f_frsize / MIB;
            let found = format!("{mib} MiB free at {}", state.display());
            if mib >= LEAST_DISK_MIB {
                Finding::ok(check, found)
            } else {
                let advice = format!("free {LEAST_DISK_MIB} MiB, or set another state_dir");
                Finding::warn(check, found, advice)
            }
        }
        Err(error) => Finding::fail(
            check,
            format!("{}: {error}", existing.display()),
            "set a state_dir that can be used",
        ),
    }
}

pub(super) fn image(config: &Config) -> Finding {
    let check = "image base";
    let advice = "build one with `cargo xtask image build`, or bring one in with `coldframe image import FILE`";
    let Ok(name) = "base".parse::<ImageName>() else {
        return Finding::fail(check, "no such name", advice);
    };
    let image = ImageStore::open(config.images()).and_then(|images| images.get(&name));
    match image {
        Ok(image) => Finding::ok(
            check,
            format!("{}, signature and digests good, {}", image.manifest.release, image.digest),
        ),
        Err(error) => Finding::fail(
            check,
            format!("{} (in {})", chain(&error), config.images().display()),
            advice,
        ),
    }
}

/// Only templates from OCI images need it.
pub(super) fn packer() -> Finding {
    let check = "packing of images";
    let (program, package) = store::images::built::MKFS;
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|folder| folder.join(program)).find(|p| p.is_file()) {
        Some(path) => Finding::ok(check, path.display().to_string()),
        None => Finding::warn(
            check,
            format!("{program} is not installed"),
            format!("templates cannot start from OCI images without it: apt-get install {package}"),
        ),
    }
}

/// A server is not needed, so one that is missing is worth a hint only.
pub(super) async fn server(config: &Config) -> Finding {
    let check = "server";
    let url = &config.url;
    match timeout(PATIENCE, healthy(url)).await {
        Ok(Ok(true)) => Finding::ok(check, format!("{url} is ready")),
        Ok(Ok(false)) => {
            Finding::warn(check, format!("{url} answers and is not ready"), "read its log")
        }
        Ok(Err(_)) | Err(_) => Finding::warn(
            check,
            format!("nothing answers at {url}"),
            "only `coldframe sandbox` and `coldframe token` need one: `coldframe serve`",
        ),
    }
}

/// Looks at the process that everything leaves through.
pub(super) fn gateway(config: &Config) -> Finding {
    let check = "gateway";
    let uid = config.gateway_uid;
    let statuses = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        (field(&status, "Uid").next() == Some(uid.to_string().as_str())).then_some(status)
    });
    let statuses: Vec<_> = statuses.collect();
    let bare = |status: &String| {
        let none =
            |name| field(status, name).next().is_some_and(|set| set.bytes().all(|c| c == b'0'));
        none("CapEff") && none("CapPrm") && field(status, "NoNewPrivs").next() == Some("1")
    };
    match statuses.as_slice() {
        [] => Finding::warn(
            check,
            "none runs",
            "`coldframe serve` starts one; without it, nothing leaves any sandbox",
        ),
        all if all.iter().all(bare) => Finding::ok(check, format!("runs as {uid}, without rights")),
        _ => Finding::fail(
            check,
            format!("a process of user {uid} has rights"),
            "give the gateway a user that nothing else has: gateway_uid",
        ),
    }
}

/// The words of a line in a process's status.
fn field<'a>(status: &'a str, name: &str) -> std::str::SplitWhitespace<'a> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().split_whitespace()
}

/// Asks whether the server is ready. It takes no token.
async fn healthy(url: &str) -> std::io::Result<bool> {
    let Some(rest) = url.strip_prefix("http://") else {
        // Behind TLS only a client with a token can tell.
        return Err(std::io::ErrorKind::Unsupported.into());
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let address =
        if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET /healthz HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    stream.take(64).read_to_end(&mut head).await?;
    Ok(head.starts_with(b"HTTP/1.1 200"))
}
