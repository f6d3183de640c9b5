//! Becoming one particular sandbox.
//!
//! A clone wakes up with its template's clock, entropy and names. All of it
//! changes before the API is told, and the API is told before any connection
//! of the host reaches it, so no process starts under the old identity.

use std::{io, os::fd::AsRawFd as _, path::Path, rc::Rc};

use guest_protocol::control::Identity;
use rustix::{
    fs::{Mode, OFlags},
    time::{ClockId, Timespec},
};

use super::{Init, Place, Settings, child};
use crate::messages::ToApi;

/// More names than the host ever sends.
const MAX_VARIABLES: usize = 1024;

/// Takes the identity on.
pub(super) async fn assume(init: &Rc<Init>, identity: Identity) -> io::Result<()> {
    check(&identity)?;
    // A container has its clock and names from its host.
    if init.place == Place::Machine {
        // In a child: these files may be anything once the workload was root.
        child::run(init, "become this sandbox", || machine(&identity)).await?;
    }
    let Identity { environment, accounts, .. } = identity;
    *init.settings.borrow_mut() =
        Settings { environment: environment.clone(), accounts: accounts.clone() };
    init.tell_api(ToApi::Identity { environment, accounts }, Vec::new()).await;
    Ok(())
}

/// What would otherwise fail later, and less clearly.
fn check(identity: &Identity) -> io::Result<()> {
    let bad_name = |name: &str| name.is_empty() || name.contains(['=', '\0']);
    let refuse = |text: &str| Err(io::Error::other(text.to_owned()));
    if identity.environment.len() > MAX_VARIABLES {
        return refuse("too many variables");
    }
    if identity.environment.iter().any(|(name, value)| bad_name(name) || value.contains('\0')) {
        return refuse("a variable has a name or a value that no process can have");
    }
    if identity.accounts.contains(&u32::MAX) {
        return refuse("there is no such account");
    }
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let hostname = &identity.hostname;
    if hostname.is_empty() || hostname.len() > 63 || !hostname.chars().all(valid) {
        return refuse("the host name is not one");
    }
    Ok(())
}

/// Runs in a child of init, as root.
fn machine(identity: &Identity) -> io::Result<()> {
    let now = Timespec {
        tv_sec: (identity.unix_nanos / 1_000_000_000).cast_signed(),
        tv_nsec: (identity.unix_nanos % 1_000_000_000).cast_signed(),
    };
    rustix::time::clock_settime(ClockId::Realtime, now)?;
    reseed(&identity.entropy)?;
    rustix::system::sethostname(identity.hostname.as_bytes())?;
    replace("/etc/hostname", &format!("{}\n", identity.hostname))?;
    replace("/etc/hosts", &hosts(&identity.hostname))?;
    let id: String = identity.machine_id.iter().map(|byte| format!("{byte:02x}")).collect();
    replace("/etc/machine-id", &format!("{id}\n"))
}

/// Writes the files of no sandbox in particular, before a template is made:
/// replacing them later is then the work of the writable layer alone.
pub(super) fn prepare() -> io::Result<()> {
    replace("/etc/hostname", "sandbox\n")?;
    replace("/etc/hosts", &hosts("sandbox"))?;
    replace("/etc/machine-id", "uninitialized\n")
}

fn hosts(hostname: &str) -> String {
    format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// Credits entropy to the kernel and makes it use it: until then two clones of
/// one template would draw the same numbers.
fn reseed(entropy: &[u8; 32]) -> io::Result<()> {
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        bytes: libc::c_int,
        entropy: [u8; 32],
    }
    // From the kernel's `random.h`.
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let random = rustix::fs::open("/dev/random", flags, Mode::empty())?;
    let pool = Pool { bits: 256, bytes: 32, entropy: *entropy };
    // SAFETY: the structure has the layout of `rand_pool_info` with 32 bytes
    // behind it, as its second field says, and outlives the call.
    if unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, &pool) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this request takes no argument.
    if unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Puts a new file in the place of whatever is there.
fn replace(path: &str, text: &str) -> io::Result<()> {
    let path = Path::new(path);
    let fresh = path.with_extension("coldframe");
    let outcome = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path));
    outcome.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            sandbox: "sbx_a".into(),
            hostname: "sandbox-a".into(),
            machine_id: [0; 16],
            unix_nanos: 0,
            entropy: [0; 32],
            environment: vec![("A".into(), "b=c".into())],
            accounts: vec![1000],
        }
    }

    #[test]
    fn an_identity_that_cannot_be_assumed_is_refused() {
        assert!(check(&identity()).is_ok());
        let with = |change: fn(&mut Identity)| {
            let mut identity = identity();
            change(&mut identity);
            check(&identity).is_err()
        };
        assert!(with(|identity| identity.hostname = "a b".into()));
        assert!(with(|identity| identity.hostname = String::new()));
        assert!(with(|identity| identity.environment = vec![("A=B".into(), String::new())]));
        assert!(with(|identity| identity.environment = vec![("A".into(), "\0".into())]));
        assert!(with(|identity| identity.accounts = vec![u32::MAX]));
    }

    #[test]
    fn localhost_and_the_host_name_resolve() {
        let text = hosts("box");
        assert!(text.starts_with("127.0.0.1\tlocalhost box\n") && text.contains("::1\tlocalhost"));
    }
}
