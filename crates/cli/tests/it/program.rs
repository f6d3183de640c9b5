//! Starting the program and looking at what came of it.

use std::{
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
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
    prepared(Command::new(env!("CARGO_BIN_EXE_coldframe")), state, arguments)
}

fn prepared(mut command: Command, state: &Path, arguments: &[&str]) -> Command {
    command.args(arguments).env_clear().stdin(Stdio::null());
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("COLDFRAME_STATE_DIR", state);
    command
}

/// Runs it.
pub(crate) fn run(command: &mut Command) -> Left {
    command.output().expect("the program starts").into()
}

/// The same as somebody who is not root.
pub(crate) fn as_nobody(state: &Path, arguments: &[&str]) -> Command {
    // Only root can become somebody else; anybody else is not root already.
    if !rustix::process::geteuid().is_root() {
        return coldframe(state, arguments);
    }
    // Where it was built may be closed to others, such as root's own folder.
    let folder = state.join("bin");
    let program = folder.join("coldframe");
    let open = || std::fs::Permissions::from_mode(0o755);
    for made in [
        std::fs::create_dir_all(&folder),
        std::fs::copy(env!("CARGO_BIN_EXE_coldframe"), &program).map(drop),
        std::fs::set_permissions(&program, open()),
        std::fs::set_permissions(&folder, open()),
        std::fs::set_permissions(state, open()),
    ] {
        made.expect("a copy that others can run");
    }
    let mut command = prepared(Command::new(program), state, arguments);
    command.uid(65_534).gid(65_534);
    command
}
