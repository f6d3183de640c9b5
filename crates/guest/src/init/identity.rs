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
    collections::BTreeMap,
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
    path::Path,
    rc::Rc,
};

use guest_protocol::control::{Identity, Newcomer};
use rustix::time::{ClockId, Timespec};

use super::Init;

/// More names than the host ever sends.
const MAX_VARIABLES: usize = 1024;

/// Where a machine's identity is written.
#[derive(Debug)]
pub(super) struct Names {
    hostname: File,
    hosts: File,
    machine_id: File,
    resolver: File,
    random: File,
}

/// Without a resolver; with one.
const RESOLVERS: [&str; 2] = [
    "# Names are resolved outside the sandbox, by the gateway.\n",
    "# Names are resolved outside the sandbox, by the gateway.\nnameserver 127.0.0.1\n",
];

impl Names {
    /// Makes the files, of no sandbox in particular, and holds them open. What
    /// is written later is then the work of the writable layer alone.
    pub(super) fn prepare() -> io::Result<Self> {
        Ok(Self {
            hostname: fresh("/etc/hostname", "sandbox\n")?,
            hosts: fresh("/etc/hosts", &hosts("sandbox"))?,
            machine_id: fresh("/etc/machine-id", "uninitialized\n")?,
            resolver: fresh("/etc/resolv.conf", RESOLVERS[0])?,
            random: File::options().write(true).open("/dev/random")?,
        })
    }

    /// Catches up with the time, and draws no number that another copy draws.
    fn wake(&self, unix_nanos: u64, entropy: &[u8; 32]) -> io::Result<()> {
        let now = Timespec {
            tv_sec: (unix_nanos / 1_000_000_000).cast_signed(),
            tv_nsec: (unix_nanos % 1_000_000_000).cast_signed(),
        };
        rustix::time::clock_settime(ClockId::Realtime, now)?;
        reseed(&self.random, entropy)
    }

    /// Says whether there is a resolver.
    pub(super) fn resolver(&self, there_is: bool) -> io::Result<()> {
        rewrite(&self.resolver, RESOLVERS[usize::from(there_is)])
    }

    fn rename(&self, hostname: &str, machine_id: &[u8; 16]) -> io::Result<()> {
        rustix::system::sethostname(hostname.as_bytes())?;
        rewrite(&self.hostname, &format!("{hostname}\n"))?;
        rewrite(&self.hosts, &hosts(hostname))?;
        let id: String = machine_id.iter().map(|byte| format!("{byte:02x}")).collect();
        rewrite(&self.machine_id, &format!("{id}\n"))
    }
}

/// Takes the identity on.
pub(super) async fn assume(init: &Rc<Init>, identity: Identity) -> io::Result<()> {
    check(&identity.hostname, &identity.environment)?;
    if identity.accounts.contains(&u32::MAX) {
        return Err(io::Error::other("there is no such account"));
    }
    // A container has its clock and names from its host.
    if let Some(names) = &init.names {
        names.wake(identity.unix_nanos, &identity.entropy)?;
        names.rename(&identity.hostname, &identity.machine_id)?;
    }
    let Identity { environment, accounts, .. } = identity;
    {
        let mut settings = init.settings.borrow_mut();
        (settings.environment, settings.accounts) = (environment, accounts);
    }
    announce(init).await;
    Ok(())
}

/// Catches up after standing still.
pub(super) fn wake(init: &Init, unix_nanos: u64, entropy: &[u8; 32]) -> io::Result<()> {
    match &init.names {
        Some(names) => names.wake(unix_nanos, entropy),
        None => Ok(()),
    }
}

/// Becomes another sandbox than the one that was captured. What runs, runs on.
pub(super) async fn become_other(init: &Rc<Init>, newcomer: Newcomer) -> io::Result<()> {
    check(&newcomer.hostname, &newcomer.environment)?;
    if let Some(names) = &init.names {
        names.wake(newcomer.unix_nanos, &newcomer.entropy)?;
        names.rename(&newcomer.hostname, &newcomer.machine_id)?;
    }
    {
        let mut settings = init.settings.borrow_mut();
        let mut environment: BTreeMap<_, _> = settings.environment.drain(..).collect();
        environment.extend(newcomer.environment);
        settings.environment = environment.into_iter().collect();
    }
    announce(init).await;
    Ok(())
}

/// Tells the API what holds now.
pub(super) async fn announce(init: &Init) {
    let message = init.settings.borrow().for_api();
    init.tell_api(message, Vec::new()).await;
}

/// What would otherwise fail later, and less clearly.
fn check(hostname: &str, environment: &[(String, String)]) -> io::Result<()> {
    check_variables(environment)?;
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if hostname.is_empty() || hostname.len() > 63 || !hostname.chars().all(valid) {
        return Err(io::Error::other("the host name is not one"));
    }
    Ok(())
}

/// The same for variables alone.
pub(super) fn check_variables(variables: &[(String, String)]) -> io::Result<()> {
    let bad_name = |name: &str| name.is_empty() || name.contains(['=', '\0']);
    if variables.len() > MAX_VARIABLES {
        return Err(io::Error::other("too many variables"));
    }
    if variables.iter().any(|(name, value)| bad_name(name) || value.contains('\0')) {
        return Err(io::Error::other("a variable has a name or a value that no process can have"));
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
    // Cutting a file that is not longer does nothing, and not at once.
    if file.metadata()?.len() > text.len() as u64 {
        file.set_len(text.len() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_cannot_be_assumed_is_refused() {
        let variable = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert!(check("sandbox-a", &variable("A", "b=c")).is_ok());
        assert!(check("a b", &[]).is_err());
        assert!(check("", &[]).is_err());
        assert!(check("a", &variable("A=B", "")).is_err());
        assert!(check("a", &variable("A", "\0")).is_err());
    }

    #[test]
    fn localhost_and_the_host_name_resolve() {
        let text = hosts("box");
        assert!(text.starts_with("127.0.0.1\tlocalhost box\n") && text.contains("::1\tlocalhost"));
    }
}
