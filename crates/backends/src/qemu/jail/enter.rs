//! The steps into the jail, in the order in which they must happen.
//!
//! [`root`] needs the rights of root and the host's mounts; [`Descriptors`] needs
//! the process limits of the host; [`renounce`] gives everything up and then
//! reads back from the kernel that it is gone.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{Gid, Uid},
    mount::{MountFlags, MountPropagationFlags, UnmountFlags},
    process::{Resource, Rlimit},
    thread::{CapabilitySet, CapabilitySets},
};

use super::{
    Failure, during,
    order::{Lifetime, Order},
    watcher::LIFE,
};

/// Open files are few and known: what was passed, QEMU's own event descriptors.
const MAX_OPEN_FILES: u64 = 64;
/// Where descriptors wait until the low numbers are free.
const PARKING: i32 = 100;
/// More capabilities than any kernel has.
const CAPABILITY_NUMBERS: i32 = 64;

/// Makes `order.root` the root of this process's own mount namespace.
pub(super) fn root(order: &Order) -> Result<(), Failure> {
    let step = "building the root file system";
    during(step, build_root(&order.root, order.kvm))?;
    during("naming the host", rustix::system::sethostname(b"sandbox"))?;
    Ok(())
}

fn build_root(root: &Path, kvm: bool) -> io::Result<()> {
    // When memory runs out, a sandbox goes before anything else on this host.
    fs::write("/proc/self/oom_score_adj", "500")?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::mount_bind(root, root)?;
    let mut devices = vec!["null", "urandom"];
    if kvm {
        devices.push("kvm");
    }
    for device in devices {
        let target = root.join("dev").join(device);
        rustix::mount::mount_bind(Path::new("/dev").join(device), &target)?;
        rustix::mount::mount_remount(
            &target,
            MountFlags::BIND | MountFlags::NOSUID | MountFlags::NOEXEC,
            c"",
        )?;
    }
    // The machine reopens its descriptors by name; it sees nothing else of proc.
    rustix::mount::mount(
        c"proc",
        root.join("proc"),
        c"proc",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        c"subset=pid,hidepid=2",
    )?;
    rustix::mount::mount_remount(
        root,
        MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
        c"",
    )?;
    rustix::process::chdir(root)?;
    // The old root ends up on top of the new one and is taken off again, so it
    // never has a place inside.
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// The descriptor table of the machine.
#[derive(Debug)]
pub(super) struct Descriptors {
    program: CString,
    arguments: Vec<CString>,
}

impl Descriptors {
    /// Gives every descriptor its number and closes all others, apart from the
    /// status socket, which the kernel closes when QEMU is executed.
    pub(super) fn arrange(
        socket: Option<BorrowedFd<'_>>,
        order: &Order,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, Failure> {
        let step = "arranging descriptors";
        let text = |text: &str| CString::new(text).map_err(io::Error::other);
        let program = during(step, text(&order.program))?;
        let mut arguments = vec![program.clone()];
        for argument in &order.arguments {
            arguments.push(during(step, text(argument))?);
        }
        during(step, arrange(socket, order, descriptors))?;
        Ok(Self { program, arguments })
    }

    /// Executes the program. Returns only if that failed.
    pub(super) fn execute(self, order: &Order) -> Failure {
        let mut arguments: Vec<_> = self.arguments.iter().map(|text| text.as_ptr()).collect();
        arguments.push(std::ptr::null());
        let environment = [std::ptr::null()];
        // SAFETY: both arrays end in a null pointer and point to texts that end
        // in a zero byte; `self` owns them and lives past the call.
        unsafe {
            libc::execve(self.program.as_ptr(), arguments.as_ptr(), environment.as_ptr());
        }
        let cause = io::Error::last_os_error();
        Failure { step: format!("executing {}", order.program), cause }
    }
}

fn arrange(
    socket: Option<BorrowedFd<'_>>,
    order: &Order,
    descriptors: Vec<OwnedFd>,
) -> io::Result<()> {
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    let mut wanted = Vec::new();
    for number in [0, 1] {
        wanted.push((rustix::io::fcntl_dupfd_cloexec(&null, PARKING)?, number));
    }
    for (descriptor, &number) in descriptors.iter().zip(&order.numbers) {
        if !(2..PARKING).contains(&number) {
            return Err(io::Error::other("a descriptor number is out of range"));
        }
        wanted.push((rustix::io::fcntl_dupfd_cloexec(descriptor, PARKING)?, number));
    }
    drop(descriptors);
    drop(null);
    let mut kept: Vec<i32> = wanted.iter().map(|(_, number)| *number).collect();
    kept.extend(socket.map(|socket| socket.as_raw_fd()));
    kept.sort_unstable();
    for (descriptor, number) in &wanted {
        // SAFETY: replaces whatever was open at `number`. Every descriptor that
        // this process still uses is at or above PARKING, the socket included.
        if unsafe { libc::dup3(descriptor.as_raw_fd(), *number, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    drop(wanted);
    let mut from = 0;
    for number in kept {
        close_between(from, number - 1)?;
        from = number + 1;
    }
    close_between(from, i32::MAX)
}

/// Closes the descriptors from `first` to `last`.
fn close_between(first: i32, last: i32) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: no value of this process owns a descriptor outside the kept ones
    // any more: they were dropped by the caller.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves a descriptor out of the way of the fixed numbers.
pub(super) fn park(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, PARKING)?)
}

/// Gives up every right and checks that it is gone.
pub(super) fn renounce(order: &Order) -> Result<(), Failure> {
    if order.lifetime == Lifetime::EndsWithCaller {
        // SAFETY: the pipe is the watcher's, and nothing here uses the number.
        drop(unsafe { OwnedFd::from_raw_fd(LIFE) });
    }
    during("leaving the terminal", rustix::process::setsid())?;
    for (resource, limit) in [
        (Resource::Core, 0),
        (Resource::Fsize, order.max_file_bytes),
        (Resource::Nofile, MAX_OPEN_FILES),
        (Resource::Nproc, order.max_processes),
        (Resource::Memlock, 0),
    ] {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        during("setting limits", rustix::process::setrlimit(resource, limit))?;
    }
    signals();
    drop_bounding_set()?;
    let (uid, gid) = (Uid::from_raw(order.uid), Gid::from_raw(order.uid));
    let step = "becoming the sandbox's own user";
    during(step, rustix::thread::set_thread_groups(&[]))?;
    during(step, rustix::thread::set_thread_res_gid(gid, gid, gid))?;
    during(step, rustix::thread::set_thread_res_uid(uid, uid, uid))?;
    drop_capabilities()?;
    let status = during("checking the confinement", fs::read_to_string("/proc/self/status"))?;
    during("checking the confinement", confined(&status, order.uid))?;
    // Nothing of the host may be left to reopen through this process either.
    let root = during("checking the confinement", fs::read_link("/proc/self/cwd"))?;
    if root.as_os_str().as_bytes() != b"/" {
        return during("checking the confinement", Err(io::Error::other("outside of the root")));
    }
    Ok(())
}

/// Gives up capabilities and the way to new ones, as the user it is.
pub(super) fn renounce_capabilities() -> Result<(), Failure> {
    drop_bounding_set()?;
    drop_capabilities()
}

fn drop_bounding_set() -> Result<(), Failure> {
    for capability in 0..CAPABILITY_NUMBERS {
        // SAFETY: this call takes a number and changes one bit of this process.
        let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if result != 0 {
            let error = io::Error::last_os_error();
            // Past the last one that this kernel knows.
            if error.raw_os_error() == Some(libc::EINVAL) {
                break;
            }
            return during("dropping capabilities", Err(error));
        }
    }
    Ok(())
}

fn drop_capabilities() -> Result<(), Failure> {
    let step = "dropping capabilities";
    during(step, rustix::thread::clear_ambient_capability_set())?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    during(step, rustix::thread::set_capabilities(None, none))?;
    during(step, rustix::thread::set_no_new_privs(true))
}

/// Rust ignores SIGPIPE, which the machine would inherit. A machine that writes
/// too much into its log gets an error instead of its end.
fn signals() {
    // SAFETY: both set a disposition that is no function, in a process with one
    // thread.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Whether the kernel says that this process has no right left.
fn confined(status: &str, uid: u32) -> io::Result<()> {
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let four = [uid.to_string().as_str(); 4].join(" ");
    let none = "0000000000000000";
    for (name, wanted) in [
        ("Uid:", four.as_str()),
        ("Gid:", four.as_str()),
        ("Groups:", ""),
        ("CapInh:", none),
        ("CapPrm:", none),
        ("CapEff:", none),
        ("CapBnd:", none),
        ("CapAmb:", none),
        ("NoNewPrivs:", "1"),
    ] {
        if value(name).as_deref() != Some(wanted) {
            return Err(io::Error::other(format!("{name} is not {wanted:?}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::confined;

    const GOOD: &str = "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t7\t7\t7\t7\nGroups:\t \n\
        CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
        CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";

    #[test]
    fn any_right_that_is_left_is_noticed() {
        assert!(confined(GOOD, 7).is_ok());
        assert!(confined(GOOD, 8).is_err());
        for (from, to) in [
            ("CapBnd:\t0000000000000000", "CapBnd:\t0000000000000001"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
            ("Groups:\t ", "Groups:\t0 "),
            ("Uid:\t7\t7\t7\t7", "Uid:\t7\t7\t0\t7"),
            ("CapEff:", "CapOther:"),
        ] {
            assert!(confined(&GOOD.replace(from, to), 7).is_err(), "{to}");
        }
    }
}
