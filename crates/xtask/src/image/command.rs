//! Running the programs that do the work, with errors that show what they said.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::workspace::is_installed;

/// Lines of a failed program's output that an error repeats.
const TAIL_LINES: usize = 20;

/// Programs that building an image needs and the packages that bring them.
const NEEDED: [(&str, &str); 5] = [
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.erofs", "erofs-utils"),
    ("xz", "xz-utils"),
];

/// Runs `command` and returns what it wrote to its standard output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let command = command.stdin(Stdio::null()).env("LC_ALL", "C.UTF-8");
    let output = command.output().with_context(|| format!("{name} could not be started"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n  ");
        bail!("{name} ended with {}:\n  {tail}", output.status);
    }
    Ok(output.stdout)
}

/// Like [`output`], as text.
pub(crate) fn text(command: &mut Command) -> anyhow::Result<String> {
    Ok(String::from_utf8(output(command)?)?)
}

/// Refuses to begin without root and every needed program.
pub(crate) fn check_machine() -> anyhow::Result<()> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !is_installed(program)).collect();
    if !missing.is_empty() {
        let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
        bail!("programs are missing; install them with: apt-get install {}", packages.join(" "));
    }
    if !rustix::process::geteuid().is_root() {
        bail!("building an image sets owners and mounts file systems; run it as root or with sudo");
    }
    Ok(())
}

/// The version of a tool as it prints it.
pub(crate) fn version(program: &str, argument: &str) -> anyhow::Result<String> {
    let output = Command::new(program).arg(argument).output()?;
    // mkfs.erofs prints its version to standard error.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    said.lines().next().map(str::to_owned).with_context(|| format!("{program} has no version"))
}
