//! From a fork of init to a program of the workload. Runs in the child.
//!
//! Everything that touches files happens after the rights are gone, so a
//! program, its folder and its interpreter are found with exactly the rights
//! of the account. The environment is built from nothing.

use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use guest_protocol::connect::{Code, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    account::{Account, Accounts, Known},
    messages::Command,
    privilege,
};

/// The search path unless the sandbox or the caller says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The kernel's limit for one argument or variable, its final zero included.
pub(super) const MAX_ARGUMENT: usize = 128 * 1024;

/// A program about to be started.
#[derive(Debug)]
pub(super) struct Program<'a> {
    pub(super) uid: u32,
    /// What init remembers of the ordinary account.
    pub(super) known: Option<&'a Known>,
    pub(super) command: &'a Command,
    /// The sandbox's variables.
    pub(super) environment: &'a [(String, String)],
    /// Standard input, output, error.
    pub(super) streams: [BorrowedFd<'a>; 3],
    /// Whether they are a terminal, which the process shall control.
    pub(super) terminal: bool,
}

/// Becomes the program, in a process that is [`separate`] already. Returns only
/// when that fails, with the reason.
pub(super) fn exec(program: &Program<'_>) -> Error {
    match prepare(program) {
        Ok(ready) => run(&ready, &program.command.cmd),
        Err(error) => error,
    }
}

/// Says why a program could not be started, to whoever waits for that.
pub(super) fn tell(pipe: BorrowedFd<'_>, reason: &Error) {
    let reason = postcard::to_allocvec(reason).unwrap_or_default();
    rustix::io::write(pipe, &reason).ok();
}

/// All that execve needs.
struct Ready {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

fn prepare(program: &Program<'_>) -> Result<Ready, Error> {
    let command = program.command;
    wire(program).map_err(|error| internal("connect the streams", &error))?;
    let known = program.known.and_then(|known| known.recall(program.uid));
    let (account, groups) = known.map_or_else(|| look_up(program.uid), Ok)?;
    drop_rights(&account, &groups).map_err(|error| internal("drop the rights", &error))?;
    enter(command.cwd.as_deref(), &account.home)?;
    let environment = environment(&account, program.environment, &command.envs);
    let path = environment.get("PATH").map_or(PATH, String::as_str);
    let candidates = candidates(&command.cmd, path)
        .into_iter()
        .map(|path| text(path.to_string_lossy().as_ref()))
        .collect::<Result<_, _>>()?;
    let words = std::iter::once(&command.cmd).chain(&command.args);
    let arguments = words.map(|word| text(word)).collect::<Result<_, _>>()?;
    let environment = environment
        .iter()
        .map(|(name, value)| text(&format!("{name}={value}")))
        .collect::<Result<_, _>>()?;
    Ok(Ready { candidates, arguments, environment })
}

fn look_up(uid: u32) -> Result<(Account, Vec<u32>), Error> {
    let accounts = Accounts::read().map_err(|error| internal("read the accounts", &error))?;
    let account = accounts.by_uid(uid).ok_or_else(|| {
        Error::new(Code::Unauthenticated, format!("account {uid} does not exist"))
    })?;
    let groups = accounts.groups_of(&account);
    Ok((account, groups))
}

/// A session of its own, and without what every child of init must shed. The
/// part of a start that does not depend on the program.
pub(super) fn separate() -> io::Result<()> {
    rustix::process::setsid()?;
    std::fs::write("/proc/self/oom_score_adj", "0")?;
    // Debian's default; a program that wants more may raise it to the maximum.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum })?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    default_signals();
    Ok(())
}

/// Gives it its streams.
fn wire(program: &Program<'_>) -> io::Result<()> {
    if program.terminal {
        rustix::process::ioctl_tiocsctty(program.streams[0])?;
    }
    for (target, stream) in program.streams.iter().enumerate() {
        // SAFETY: both are descriptor numbers. The targets are 0, 1 and 2, which
        // init keeps open, so no source is one of them.
        if unsafe { libc::dup2(stream.as_raw_fd(), target as libc::c_int) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Undoes what the runtime did to signals; execve resets handlers by itself.
pub(super) fn default_signals() {
    // SAFETY: the default action is always valid for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // SAFETY: an all-zero set is a valid, empty set, and it outlives the call.
    unsafe {
        let empty: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &empty, std::ptr::null_mut());
    }
}

/// U17: leaves root and verifies that nothing of it is left.
fn drop_rights(account: &Account, groups: &[u32]) -> io::Result<()> {
    privilege::change_account(account.uid, account.gid, groups)?;
    if account.uid == 0 {
        return Ok(());
    }
    privilege::check_workload(account.uid)
}

fn enter(cwd: Option<&str>, home: &str) -> Result<(), Error> {
    let Some(cwd) = cwd.filter(|cwd| !cwd.is_empty()) else {
        // An account whose home is missing can still work somewhere.
        return match std::env::set_current_dir(home) {
            Ok(()) => Ok(()),
            Err(_) => std::env::set_current_dir("/").map_err(|error| internal("enter /", &error)),
        };
    };
    let path = crate::files::path::resolve(cwd, Path::new(home));
    std::env::set_current_dir(path).map_err(|error| {
        let text = match error.kind() {
            io::ErrorKind::NotFound => format!("cwd '{cwd}' does not exist"),
            io::ErrorKind::NotADirectory => format!("cwd '{cwd}' is not a directory"),
            _ => format!("cwd '{cwd}' cannot be entered: {error}"),
        };
        Error::new(Code::InvalidArgument, text)
    })
}

/// The later wins: ours, the account's, the sandbox's, the caller's.
fn environment(
    account: &Account,
    sandbox: &[(String, String)],
    caller: &[(String, String)],
) -> BTreeMap<String, String> {
    let own = [
        ("PATH", PATH),
        ("HOME", account.home.as_str()),
        ("USER", account.name.as_str()),
        ("LOGNAME", account.name.as_str()),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    own.into_iter().chain(sandbox.iter().cloned()).chain(caller.iter().cloned()).collect()
}

/// Where a program may be: itself if it is a path, else in each folder.
fn candidates(cmd: &str, path: &str) -> Vec<PathBuf> {
    if cmd.contains('/') {
        return vec![PathBuf::from(cmd)];
    }
    if cmd.is_empty() {
        return Vec::new();
    }
    // An empty folder means the current one to other programs; not here.
    path.split(':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| Path::new(folder).join(cmd))
        .collect()
}

/// Tries each candidate; the first that can be executed does not return.
fn run(ready: &Ready, cmd: &str) -> Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(&ready.arguments), pointers(&ready.environment));
    let mut refused = None;
    for candidate in &ready.candidates {
        // SAFETY: the path is a C string; both lists hold pointers to C strings
        // that outlive the call, and end with a null pointer.
        unsafe { libc::execve(candidate.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // Another folder may hold one that works; if none does, this is why.
            Some(libc::EACCES) => refused = Some(error),
            _ => return failure(cmd, &error),
        }
    }
    failure(cmd, &refused.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOENT)))
}

/// Says why a program could not be executed.
fn failure(cmd: &str, error: &io::Error) -> Error {
    let shown: String = cmd.chars().take(200).collect();
    match error.raw_os_error() {
        Some(libc::ENOENT) if shown.contains('/') => {
            Error::new(Code::NotFound, format!("{shown}: no such file or directory"))
        }
        Some(libc::ENOENT) => {
            Error::new(Code::NotFound, format!("executable file not found in $PATH: {shown}"))
        }
        Some(libc::EACCES) => {
            Error::new(Code::PermissionDenied, format!("{shown}: permission denied"))
        }
        Some(libc::E2BIG) => Error::new(
            Code::InvalidArgument,
            "arguments and environment are too long for the kernel; use a file",
        ),
        Some(libc::ENOEXEC) => Error::new(
            Code::InvalidArgument,
            format!("{shown}: not a program (a script needs a first line with #!)"),
        ),
        Some(libc::EAGAIN | libc::ENOMEM) => Error::new(
            Code::ResourceExhausted,
            format!("{shown}: the sandbox has no room for another process: {error}"),
        ),
        _ => Error::new(Code::Internal, format!("{shown}: {error}")),
    }
}

fn text(word: &str) -> Result<CString, Error> {
    if word.len() >= MAX_ARGUMENT {
        let text = format!(
            "an argument or variable of {} bytes is too long: the kernel takes less than {MAX_ARGUMENT}; use a file",
            word.len()
        );
        return Err(Error::new(Code::InvalidArgument, text));
    }
    CString::new(word)
        .map_err(|_| Error::new(Code::InvalidArgument, "an argument or variable holds a zero byte"))
}

pub(super) fn internal(what: &str, error: &io::Error) -> Error {
    Error::new(Code::Internal, format!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_for_in_each_folder() {
        let found = candidates("ls", "/usr/bin::/bin");
        assert_eq!(found, [Path::new("/usr/bin/ls"), Path::new("/bin/ls")]);
        assert_eq!(candidates("./ls", "/bin"), [Path::new("./ls")]);
        assert!(candidates("", "/bin").is_empty());
    }

    #[test]
    fn the_caller_wins_over_the_sandbox_and_the_sandbox_over_us() {
        let account = Account { name: "user".into(), uid: 1, gid: 1, home: "/home/user".into() };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let sandbox = [pair("PATH", "/s"), pair("A", "sandbox"), pair("B", "sandbox")];
        let all = environment(&account, &sandbox, &[pair("B", "caller")]);
        assert_eq!((all["PATH"].as_str(), all["A"].as_str()), ("/s", "sandbox"));
        assert_eq!((all["B"].as_str(), all["HOME"].as_str()), ("caller", "/home/user"));
        assert_eq!(all["LOGNAME"], "user");
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let check = |cmd: &str, errno: i32, code: Code, part: &str| {
            let error = failure(cmd, &io::Error::from_raw_os_error(errno));
            assert_eq!(error.code, code);
            assert!(error.message.contains(part), "{}", error.message);
        };
        check("nix", libc::ENOENT, Code::NotFound, "executable file not found in $PATH: nix");
        check("/x/y", libc::ENOENT, Code::NotFound, "/x/y: no such file");
        check("/x/y", libc::EACCES, Code::PermissionDenied, "permission denied");
        check("a", libc::E2BIG, Code::InvalidArgument, "use a file");
    }

    #[test]
    fn what_the_kernel_cannot_take_is_refused_with_its_size() {
        assert!(text(&"x".repeat(MAX_ARGUMENT)).unwrap_err().message.contains("131072 bytes"));
        assert!(text("a\0b").is_err());
    }
}
