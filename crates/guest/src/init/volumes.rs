//! Volumes: mounted, let go of, held still.
//!
//! The host decides what is in a slot and where it belongs; this does it. The
//! content of a volume is the workload's, and so may be the folders above its
//! place: everything that touches a path happens in a forked child that follows
//! no link and is given up after a while. A damaged file system is the kernel's
//! to refuse, inside this machine.
//!
//! A volume is held still by a child that lives for as long: whatever becomes of
//! this process, of the link or of the host, it lets go at its limit.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use guest_protocol::{
    control::Response,
    volumes::{Request, SLOTS},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, mkdirat, openat, statat},
    mount::{MountFlags, UnmountFlags, mount, unmount},
    pipe::{PipeFlags, pipe_with},
    process::WaitStatus,
};
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{Init, Place, child, control::answer};

/// How long a mount or its end may take. A journal may have to be replayed, and
/// what was written must reach the disk.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a changed size may take to be seen.
const APPEARS: Duration = Duration::from_secs(10);
/// Beyond this nothing is held still, whatever the host says.
const STILLEST: Duration = Duration::from_secs(300);

/// Results of a child beside the numbers of errors, which are smaller.
const ANOTHER: u8 = 200;
const TOO_LATE: u8 = 201;

/// Who holds which slot still.
#[derive(Debug, Default)]
pub(super) struct Still(RefCell<HashMap<u8, Held>>);

#[derive(Debug)]
struct Held {
    /// Closing it makes the child let go.
    hold: OwnedFd,
    ended: oneshot::Receiver<WaitStatus>,
}

/// Does what the host asks.
pub(super) async fn serve(init: &Rc<Init>, request: Request) -> Response {
    if init.place != Place::Machine {
        return answer(Err(io::Error::other("a container has no slots for volumes")));
    }
    if slot_of(&request).is_some_and(|slot| slot >= SLOTS) {
        return answer(Err(io::Error::other("there is no such slot")));
    }
    match request {
        Request::Mount { slot, path, bytes, owner } => {
            answer(mount_volume(init, slot, &path, bytes, owner).await)
        }
        Request::Unmount { slot, path } => {
            match run(init, || unmount_in_child(slot, &path)).await {
                Ok(code) if i32::from(code) == libc::EBUSY => Response::Busy,
                code => answer(code.and_then(meant)),
            }
        }
        Request::Freeze { slot, path, limit_ms } => {
            let limit = Duration::from_millis(limit_ms.into()).min(STILLEST);
            answer(freeze(init, slot, &path, limit).await)
        }
        Request::Sync => {
            // Everything but volumes is in memory, where this costs nothing.
            let synced = run(init, || {
                rustix::fs::sync();
                Ok(())
            });
            answer(synced.await.and_then(meant))
        }
        Request::Thaw { slot } => answer(thaw(init, slot).await),
    }
}

fn slot_of(request: &Request) -> Option<u8> {
    match request {
        Request::Mount { slot, .. }
        | Request::Unmount { slot, .. }
        | Request::Freeze { slot, .. }
        | Request::Thaw { slot } => Some(*slot),
        Request::Sync => None,
    }
}

async fn mount_volume(
    init: &Rc<Init>,
    slot: u8,
    path: &str,
    bytes: u64,
    owner: u32,
) -> io::Result<()> {
    let size = format!("/sys/class/block/{}/size", disk(slot));
    let begun = Instant::now();
    // In sectors, whatever the size of the disk's own blocks.
    while std::fs::read_to_string(&size)?.trim() != (bytes / 512).to_string() {
        if begun.elapsed() > APPEARS {
            return Err(io::Error::other("the disk of the volume did not appear"));
        }
        sleep(Duration::from_millis(1)).await;
    }
    run(init, || mount_in_child(slot, path, owner)).await.and_then(meant)
}

async fn freeze(init: &Rc<Init>, slot: u8, path: &str, limit: Duration) -> io::Result<()> {
    if init.still.0.borrow().contains_key(&slot) {
        // Of a host that is gone. It ends before the next one begins.
        thaw(init, slot).await.ok();
    }
    let (held, hold) = pipe_with(PipeFlags::CLOEXEC)?;
    let (told, tell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let pid = child::fork(None, || {
        close_others([held.as_fd(), tell.as_fd()]);
        code(freeze_in_child(slot, path, limit, &held, &tell))
    })?;
    let ended = init.reaper.expect(pid);
    drop((held, tell));
    let mut told = pipe::Receiver::from_owned_fd(told)?;
    let mut word = [0];
    // When this is given up, `hold` closes and the child lets go as soon as the
    // kernel returns to it. It is not killed: that would leave the volume frozen.
    match timeout(limit, told.read(&mut word)).await {
        Ok(Ok(1)) => {
            init.still.0.borrow_mut().insert(slot, Held { hold, ended });
            Ok(())
        }
        Ok(_) => meant(exit_code(ended.await)),
        Err(_) => Err(io::Error::other("what was written did not reach the volume in time")),
    }
}

async fn thaw(init: &Rc<Init>, slot: u8) -> io::Result<()> {
    let held = init.still.0.borrow_mut().remove(&slot);
    let Some(Held { hold, ended }) = held else {
        return Err(io::Error::other("the volume was not held still"));
    };
    drop(hold);
    match timeout(LIMIT, ended).await {
        Ok(status) => meant(exit_code(status)),
        Err(_) => Err(io::Error::other("the volume was not let go in time")),
    }
}

/// Forks, does `body` in the child, and returns its code.
async fn run(init: &Rc<Init>, body: impl FnOnce() -> io::Result<()>) -> io::Result<u8> {
    let pid = child::fork(None, || code(body()))?;
    let ended = init.reaper.expect(pid);
    match timeout(LIMIT, ended).await {
        Ok(status) => Ok(exit_code(status)),
        Err(_) => {
            init.reaper.kill(pid);
            Err(io::Error::other(format!("the volume took longer than {} s", LIMIT.as_secs())))
        }
    }
}

fn mount_in_child(slot: u8, path: &str, owner: u32) -> io::Result<()> {
    let device = format!("/dev/{}", disk(slot));
    let number = number_of(&device)?;
    let (parent, name) = walk(path, true)?;
    let place = folder(parent.as_fd(), &name, true)?;
    if fstat(&place)?.st_dev != number {
        // Through the descriptor: the name may mean something else by now.
        let place = format!("/proc/self/fd/{}", place.as_raw_fd());
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(&*device, &*place, "ext4", flags, Some(c"discard,errors=remount-ro"))?;
    }
    let top = openat(&parent, &name, OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    std::os::unix::fs::fchown(&top, Some(owner), Some(owner))
}

fn unmount_in_child(slot: u8, path: &str) -> io::Result<()> {
    let device = format!("/dev/{}", disk(slot));
    let number = number_of(&device)?;
    // A place that cannot be reached is none where it was mounted.
    if let Ok((parent, name)) = walk(path, false) {
        let mounted = statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| found.st_dev == number);
        if mounted {
            // Relative to a folder that is held: no link is followed.
            rustix::process::fchdir(&parent)?;
            unmount(&name, UnmountFlags::NOFOLLOW)?;
        }
    }
    // Root inside can have mounted it a second time. The kernel knows.
    let alone = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    openat(CWD, &device, alone, Mode::empty())?;
    Ok(())
}

/// Holds the volume still until the other end of `held` is closed.
fn freeze_in_child(
    slot: u8,
    path: &str,
    limit: Duration,
    held: &OwnedFd,
    tell: &OwnedFd,
) -> io::Result<()> {
    let number = number_of(&format!("/dev/{}", disk(slot)))?;
    let (parent, name) = walk(path, false)?;
    let top = openat(&parent, &name, OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    if fstat(&top)?.st_dev != number {
        return Err(io::Error::from_raw_os_error(ANOTHER.into()));
    }
    frozen(&top, true)?;
    // The host may have given up; then the wait below ends at once.
    rustix::io::write(tell, b"f").ok();
    let wait = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: 0 };
    let closed = poll(&mut [PollFd::new(held, PollFlags::IN)], Some(&wait));
    frozen(&top, false)?;
    match closed {
        Ok(0) => Err(io::Error::from_raw_os_error(TOO_LATE.into())),
        _ => Ok(()),
    }
}

/// Freezes or thaws the file system of a folder.
fn frozen(folder: &OwnedFd, freeze: bool) -> io::Result<()> {
    // From the kernel's `fs.h`.
    const FIFREEZE: libc::c_ulong = 0xC004_5877;
    const FITHAW: libc::c_ulong = 0xC004_5878;
    let request = if freeze { FIFREEZE } else { FITHAW };
    // SAFETY: both requests take no argument beyond the descriptor, which is
    // open; the kernel does not look at the zero.
    if unsafe { libc::ioctl(folder.as_raw_fd(), request, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Opens the folder that the last part of `path` is in, without following links.
fn walk(path: &str, make: bool) -> io::Result<(OwnedFd, String)> {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let name = parts.pop().filter(|_| path.starts_with('/'));
    let name = name.ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
    if parts.iter().chain([&name]).any(|part| matches!(*part, "." | "..")) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, "/", flags, Mode::empty())?;
    for part in parts {
        at = folder(at.as_fd(), part, make)?;
    }
    Ok((at, name.to_owned()))
}

fn folder(parent: BorrowedFd<'_>, name: &str, make: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) if make => {
            mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            Ok(openat(parent, name, flags, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

/// The number of the device behind a name.
fn number_of(device: &str) -> io::Result<u64> {
    let found = statat(CWD, device, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::BlockDevice {
        return Err(io::Error::from_raw_os_error(libc::ENOTBLK));
    }
    Ok(found.st_rdev)
}

/// The disk of a slot. The first disk is the root file system.
fn disk(slot: u8) -> String {
    format!("vd{}", char::from(b'b' + slot))
}

/// Closes every descriptor but these. Copies of others would keep pipes of the
/// workload open for as long as the child lives.
fn close_others(mut keep: [BorrowedFd<'_>; 2]) {
    keep.sort_by_key(|descriptor| descriptor.as_raw_fd());
    let [low, high] = keep.map(|descriptor| descriptor.as_raw_fd().unsigned_abs());
    for (first, last) in [(0, low.wrapping_sub(1)), (low + 1, high - 1), (high + 1, u32::MAX)] {
        if first <= last && low != 0 {
            // SAFETY: numbers only. This child has a copy of the table, uses none
            // of what is closed, and ends without dropping what it inherited.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// The code of a child for what came of its work.
fn code(outcome: io::Result<()>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            let number = error.raw_os_error().and_then(|number| u8::try_from(number).ok());
            number.filter(|number| *number != 0).unwrap_or(libc::EIO as u8)
        }
    }
}

fn exit_code(status: Result<WaitStatus, oneshot::error::RecvError>) -> u8 {
    let code = status.ok().and_then(|status| status.exit_status());
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(libc::EIO as u8)
}

/// What a child's code says.
fn meant(code: u8) -> io::Result<()> {
    match code {
        0 => Ok(()),
        ANOTHER => Err(io::Error::other("something else is mounted over the volume")),
        TOO_LATE => Err(io::Error::other("the volume was held still for too long and let go")),
        code if i32::from(code) == libc::ENOTDIR || i32::from(code) == libc::ELOOP => {
            Err(io::Error::other("its place is below a link or a file, not a folder"))
        }
        code => Err(io::Error::from_raw_os_error(code.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link in the way is not followed, and `..` is no way out.
    #[test]
    fn a_place_is_reached_without_links() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().to_str().unwrap().to_owned();
        std::os::unix::fs::symlink("/etc", folder.path().join("link")).unwrap();
        let (_, name) = walk(&format!("{base}/a/b/c"), true).unwrap();
        assert_eq!(name, "c");
        assert!(folder.path().join("a/b").is_dir() && !folder.path().join("a/b/c").exists());
        assert!(walk(&format!("{base}/link/x"), true).is_err());
        assert!(walk(&format!("{base}/none/x"), false).is_err());
        for path in ["", "/", "persist", "/a/../b", "/.."] {
            assert!(walk(path, false).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_child_says_what_went_wrong_in_one_number() {
        let error = |number| code(Err(io::Error::from_raw_os_error(number)));
        assert_eq!(code(Ok(())), 0);
        assert_eq!(i32::from(error(libc::EBUSY)), libc::EBUSY);
        assert_eq!(i32::from(code(Err(io::Error::other("no number")))), libc::EIO);
        assert!(meant(error(TOO_LATE.into())).unwrap_err().to_string().contains("too long"));
        assert_eq!((disk(0), disk(1)), ("vdb".to_owned(), "vdc".to_owned()));
    }
}
