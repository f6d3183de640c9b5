//! Becoming one particular sandbox.
//!
//! A clone wakes up with its template's clock, entropy and names. All of it
//! changes before the API is told, and the API is told before any connection
//! of the host reaches it, so no process starts under the old identity.
//!
//! The files of an identity are opened before any workload exists and written
//! through those descriptors: a workload that was root may have put anything in
//! the place of their names, and init never waits for what that is.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::Path,
    rc::Rc,
};

use guest_protocol::control::Identity;
use rustix::time::{ClockId, Timespec};

use super::{Init, Settings};
use crate::messages::ToApi;

/// More names than the host ever sends.
const MAX_VARIABLES: usize = 1024;

/// Where a machine's identity is written.
#[derive(Debug)]
pub(super) struct Names {
    hostname: File,
    hosts: File,
    machine_id: File,
    random: File,
}

impl Names {
    /// Makes the files, of no sandbox in particular, and holds them open. What
    /// is written later is then the work of the writable layer alone.
    pub(super) fn prepare() -> io::Result<Self> {
        Ok(Self {
            hostname: fresh("/etc/hostname", "sandbox\n")?,
            hosts: fresh("/etc/hosts", &hosts("sandbox"))?,
            machine_id: fresh("/etc/machine-id", "uninitialized\n")?,
            random: File::options().write(true).open("/dev/random")?,
        })
    }

    fn assume(&self, identity: &Identity) -> io::Result<()> {
        let now = Timespec {
            tv_sec: (identity.unix_nanos / 1_000_000_000).cast_signed(),
            tv_nsec: (identity.unix_nanos % 1_000_000_000).cast_signed(),
        };
        rustix::time::clock_settime(ClockId::Realtime, now)?;
        reseed(&self.random, &identity.entropy)?;
        rustix::system::sethostname(identity.hostname.as_bytes())?;
        rewrite(&self.hostname, &format!("{}\n", identity.hostname))?;
        rewrite(&self.hosts, &hosts(&identity.hostname))?;
        let id: String = identity.machine_id.iter().map(|byte| format!("{byte:02x}")).collect();
        rewrite(&self.machine_id, &format!("{id}\n"))
    }
}

/// Takes the identity on.
pub(super) async fn assume(init: &Rc<Init>, identity: Identity) -> io::Result<()> {
    check(&identity)?;
    // A container has its clock and names from its host.
    if let Some(names) = &init.names {
        names.assume(&identity)?;
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

fn hosts(hostname: &str) -> String {
    format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// Credits entropy to the kernel and makes it use it: until then two clones of
/// one template would draw the same numbers.
fn reseed(random: &File, entropy: &[u8; 32]) -> io::Result<()> {
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        bytes: libc::c_int,
        entropy: [u8; 32],
    }
    // From the kernel's `random.h`.
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
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

/// Puts a new file in the place of whatever the image has, and keeps it open.
fn fresh(path: &str, text: &str) -> io::Result<File> {
    let path = Path::new(path);
    let beside = path.with_extension("coldframe");
    let made = (|| {
        let file = File::create(&beside)?;
        file.write_all_at(text.as_bytes(), 0)?;
        std::fs::rename(&beside, path)?;
        Ok(file)
    })();
    made.map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })
}

/// Gives a held file another content.
fn rewrite(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
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
