//! Giving up rights, and proof that they are gone.
//!
//! A daemon starts as root because init is root, gives up everything, and then
//! asks the kernel what it still holds. It refuses to run on any surplus: a
//! silent failure of one of these calls has been the whole bug before.

use std::{io, path::Path};

/// Turns this process into a daemon of `uid` with no rights at all, verified.
///
/// # Errors
/// Any step that failed, or any right that is left. The process must end.
pub(crate) fn give_up_everything(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    control(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong)?;
    for capability in 0..64 {
        match control(libc::PR_CAPBSET_DROP, capability) {
            Ok(()) => {}
            // Past the last one this kernel knows.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    change_account(uid, gid, groups)?;
    // Changing the account has done this already unless an administrator of the
    // image changed `fs.suid_dumpable`.
    control(libc::PR_SET_DUMPABLE, 0)?;
    check_self(uid)
}

/// Asks the kernel what this process holds, and refuses any surplus.
fn check_self(uid: u32) -> io::Result<()> {
    let status = crate::account::read_bounded(Path::new("/proc/self/status"))?;
    verify(&status, uid).map_err(io::Error::other)
}

/// The same for a workload by system calls, which each start of a program pays
/// for: no file, no text. Without rights, ambient ones cannot exist either.
pub(crate) fn check_workload(uid: u32) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    // From the kernel's `capability.h`: 64 capabilities in two words.
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Sets { effective: !0, permitted: !0, inheritable: !0 }; 2];
    // SAFETY: version 3 reads the header and writes two elements, which both
    // outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &header, sets.as_mut_ptr()) })?;
    let mut ids = [!0u32; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: three pointers to numbers that outlive the call.
    check(unsafe { libc::syscall(libc::SYS_getresuid, real, effective, saved) })?;
    let left = |set: &Sets| (set.effective | set.permitted | set.inheritable) != 0;
    if sets.iter().any(left) || ids.iter().any(|id| *id != uid) {
        return Err(io::Error::other(format!("rights of another account than {uid} are left")));
    }
    Ok(())
}

/// Becomes an account with its groups. Leaving root clears the capabilities.
pub(crate) fn change_account(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // The raw calls: those of the C library signal every thread, and there is
    // only this one.
    // SAFETY: the pointer and the length describe one slice that outlives the call.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: three numbers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: three numbers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

/// Compares `/proc/self/status` with what a daemon of `uid` may hold: nothing,
/// and never anything again.
///
/// # Errors
/// The first surplus, as a sentence.
fn verify(status: &str, uid: u32) -> Result<(), String> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).ok_or_else(|| format!("the kernel does not report {name}"))
    };
    let uids = field("Uid")?;
    if uids.split_whitespace().any(|id| id != uid.to_string()) {
        return Err(format!("account {uid} expected, the kernel reports {uids}"));
    }
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"] {
        let set = field(name)?;
        if u64::from_str_radix(set, 16) != Ok(0) {
            return Err(format!("capabilities are left: {name} is {set}"));
        }
    }
    match field("NoNewPrivs")? {
        "1" => Ok(()),
        flag => Err(format!("NoNewPrivs is {flag}")),
    }
}

fn control(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    let unused: libc::c_ulong = 0;
    // SAFETY: all options used here take numbers, no pointer.
    check(libc::c_long::from(unsafe { libc::prctl(option, value, unused, unused, unused) }))
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uid: u32, effective: &str, bounding: &str, flag: u8) -> String {
        format!(
            "Name:\tguestd\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapInh:\t0000000000000000\n\
             CapPrm:\t0000000000000000\nCapEff:\t{effective}\nCapBnd:\t{bounding}\n\
             CapAmb:\t0000000000000000\nNoNewPrivs:\t{flag}\n"
        )
    }

    const NONE: &str = "0000000000000000";
    const ALL: &str = "000001ffffffffff";

    /// U17: the drop counts only when the kernel confirms it.
    #[test]
    fn any_right_that_is_left_is_refused() {
        let nothing = |status: &str| verify(status, 990);
        assert_eq!(nothing(&status(990, NONE, NONE, 1)), Ok(()));
        assert!(nothing(&status(990, "0000000000000001", NONE, 1)).is_err());
        assert!(nothing(&status(990, NONE, ALL, 1)).is_err());
        assert!(nothing(&status(990, NONE, NONE, 0)).is_err());
        assert!(nothing(&status(0, NONE, NONE, 1)).is_err());
        assert!(nothing("").is_err());
    }

    /// U17: a workload's check sees what this very process holds.
    #[test]
    fn a_process_with_rights_is_no_workload() {
        // SAFETY: takes nothing and cannot fail.
        let uid = unsafe { libc::getuid() };
        assert_eq!(check_workload(uid).is_ok(), uid != 0);
        assert!(check_workload(uid + 1).is_err());
    }
}
