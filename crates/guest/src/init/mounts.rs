//! The file systems of a machine.
//!
//! ```text
//!  /           overlay: the read-only image below, a layer in memory above
//!  /tmp        a folder of that layer, and so is /workspace
//!  /run        small, in memory; /dev/shm likewise
//! ```
//!
//! One tmpfs holds everything that is written, so one number limits it. Its
//! size is a limit, not a reservation. Nothing is on a disk: what the machine
//! wrote is gone with its memory.

use std::{
    fs::{DirBuilder, Permissions},
    io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    time::{Duration, Instant},
};

use rustix::mount::{MountFlags, mount, mount_bind, mount_move};

use super::{USER, parameters::Parameters, step};

/// Where the parts are put together; hidden once it has become `/`.
const NEW_ROOT: &str = "/newroot";
const DISK: &str = "/dev/vda";

/// Mounts what the kernel offers on the initial root.
pub(super) fn kernel() -> io::Result<()> {
    for folder in ["/proc", "/sys", "/dev"] {
        make(folder, 0o755)?;
    }
    kernel_at("")?;
    Ok(())
}

/// Builds the root file system and moves into it.
pub(super) fn root(parameters: &Parameters) -> io::Result<()> {
    for folder in ["/lower", "/layer", NEW_ROOT] {
        step("make a mount point", make(folder, 0o755))?;
    }
    step("find the disk", wait_for(Path::new(DISK), Duration::from_secs(5)))?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV;
    step("mount the image", mounted(DISK, "/lower", &parameters.rootfs, flags, ""))?;

    let options = layer_options(parameters.disk_mib);
    step(
        "mount the writable layer",
        mounted("layer", "/layer", "tmpfs", MountFlags::NODEV, &options),
    )?;
    for (folder, mode) in [("upper", 0o755), ("work", 0o755), ("tmp", 0o1777), ("workspace", 0o755)]
    {
        step("make the writable layer", make(&format!("/layer/{folder}"), mode))?;
    }
    step("make /workspace", chown("/layer/workspace", Some(USER), Some(USER)))?;
    let options = "lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work,redirect_dir=on";
    step("mount the root", mounted("root", NEW_ROOT, "overlay", MountFlags::NODEV, options))?;

    let inside = |path: &str| format!("{NEW_ROOT}{path}");
    for folder in ["/proc", "/sys", "/dev", "/run", "/tmp", "/workspace"] {
        step("make a mount point", make(&inside(folder), 0o755))?;
    }
    for folder in ["tmp", "workspace"] {
        let target = inside(&format!("/{folder}"));
        step("mount a writable folder", bind(&format!("/layer/{folder}"), &target))?;
    }
    step("mount the kernel's file systems", kernel_at(NEW_ROOT))?;
    step("mount /dev/pts and /dev/shm", devices())?;
    let quiet = MountFlags::NODEV | MountFlags::NOSUID;
    step("mount /run", mounted("run", &inside("/run"), "tmpfs", quiet, "mode=755,size=16m"))?;
    step("enter the root", enter())
}

/// The layer's limits: one inode for each 4 KiB, which also bounds what empty
/// files and extended attributes cost.
fn layer_options(disk_mib: u64) -> String {
    let inodes = (disk_mib * 256).max(16_384);
    format!("size={disk_mib}m,nr_inodes={inodes},mode=755")
}

fn kernel_at(root: &str) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Processes of other accounts are invisible: the guest's own daemons to a
    // workload, and one session to another.
    mounted("proc", &format!("{root}/proc"), "proc", flags, "hidepid=invisible")?;
    mounted("sysfs", &format!("{root}/sys"), "sysfs", flags, "")?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mounted("devtmpfs", &format!("{root}/dev"), "devtmpfs", flags, "mode=755")
}

fn devices() -> io::Result<()> {
    for folder in ["/dev/pts", "/dev/shm"] {
        make(&format!("{NEW_ROOT}{folder}"), 0o755)?;
    }
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let options = "mode=620,ptmxmode=666,gid=5";
    mounted("devpts", &format!("{NEW_ROOT}/dev/pts"), "devpts", flags, options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mounted("shm", &format!("{NEW_ROOT}/dev/shm"), "tmpfs", flags, "mode=1777,size=50%")?;
    for (name, target) in
        [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")]
    {
        match std::os::unix::fs::symlink(target, format!("{NEW_ROOT}/dev/{name}")) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the new root `/`. The old one stays below it, out of reach.
fn enter() -> io::Result<()> {
    rustix::process::chdir(NEW_ROOT)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    Ok(rustix::process::chdir("/")?)
}

/// Devices appear while their driver starts; a bounded wait covers a slow one.
fn wait_for(path: &Path, limit: Duration) -> io::Result<()> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > limit {
            let text = format!("{} did not appear", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn mounted(
    source: &str,
    target: &str,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> io::Result<()> {
    let options = std::ffi::CString::new(options)?;
    let outcome = mount(source, target, kind, flags, Some(options.as_c_str()));
    outcome.map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{kind} on {target}: {error}"))
    })
}

fn bind(source: &str, target: &str) -> io::Result<()> {
    mount_bind(source, target)?;
    // A new mount of the same file system: no set-uid files outside the root.
    let flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount_remount(target, flags, c"")?)
}

fn make(path: &str, mode: u32) -> io::Result<()> {
    match DirBuilder::new().create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::layer_options;

    /// S25: what is written is limited, by size and by number.
    #[test]
    fn the_layer_is_limited_by_size_and_number() {
        assert_eq!(layer_options(512), "size=512m,nr_inodes=131072,mode=755");
        assert_eq!(layer_options(1), "size=1m,nr_inodes=16384,mode=755");
    }
}
