//! Starting the program and looking at what came of it.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

/// A token that checks itself and that no server knows.
pub(crate) fn token() -> String {
    domain::token::Token::from_random([5; 32]).expose().to_owned()
}

/// What a program left behind.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Left {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// The program with an environment of its own and a state folder.
pub(crate) fn coldframe(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coldframe"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("COLDFRAME_STATE_DIR", state);
    command
}

/// Runs it.
pub(crate) fn run(command: &mut Command) -> Left {
    command.output().expect("the program starts").into()
}

/// The same as somebody who is not root.
pub(crate) fn as_nobody(command: &mut Command) -> &mut Command {
    // Only root can become somebody else; anybody else is not root already.
    let root = rustix::process::geteuid().is_root();
    if root { command.uid(65_534).gid(65_534) } else { command }
}
