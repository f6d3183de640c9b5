//! Running a command, showing what it prints, and counting the tests in it.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// How many tests passed and failed, and what is to be said about some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) passed: u32,
    pub(super) failed: u32,
    /// The names of those that failed.
    pub(super) names: Vec<String>,
    /// Why some did nothing, or only half of what they do. They have not passed.
    pub(super) not_run: Vec<String>,
}

impl Count {
    /// Something named `name` that is no test and failed.
    pub(super) fn failure(name: &str) -> Self {
        Self { failed: 1, names: vec![name.to_owned()], ..Self::default() }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.names.extend_from_slice(&other.names);
        self.not_run.extend_from_slice(&other.not_run);
    }

    /// Takes in one line of what `cargo test` prints.
    fn read(&mut self, line: &str) {
        if let Some((passed, failed)) = result(line) {
            self.passed += passed;
            self.failed += failed;
        } else if let Some(name) = failed_test(line) {
            self.names.push(name.to_owned());
        } else if let Some(reason) = line.strip_prefix("not run: ") {
            self.not_run.push(reason.to_owned());
        }
    }

    /// Takes back what was counted as passed and was not run.
    fn settle(&mut self) {
        let not_run = u32::try_from(self.not_run.len()).unwrap_or(u32::MAX);
        self.passed = self.passed.saturating_sub(not_run);
    }
}

/// `test result: ok. 3 passed; 1 failed; …`
fn result(line: &str) -> Option<(u32, u32)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    let passed = counts.next()?.strip_suffix(" passed")?.parse().ok()?;
    let failed = counts.next()?.strip_suffix(" failed")?.parse().ok()?;
    Some((passed, failed))
}

/// `test name ... FAILED`
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Runs `command` and counts its tests. A command that fails and names no failed
/// test, as when it does not compile, counts as one failure named `name`.
///
/// When `limit` is over, the command and all that it started in its process
/// group are ended, and that is an error.
pub(super) fn tests(name: &str, command: &mut Command, limit: Duration) -> anyhow::Result<Count> {
    let (count, succeeded) = run(command, limit)?;
    if !succeeded && count.failed == 0 {
        return Ok(Count { passed: count.passed, ..Count::failure(name) });
    }
    Ok(count)
}

/// Runs `command`, which is one check.
pub(super) fn check(name: &str, command: &mut Command, limit: Duration) -> anyhow::Result<Count> {
    let (_, succeeded) = run(command, limit)?;
    Ok(if succeeded { Count { passed: 1, ..Count::default() } } else { Count::failure(name) })
}

fn run(command: &mut Command, limit: Duration) -> anyhow::Result<(Count, bool)> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("{name} could not be started"))?;
    let output = child.stdout.take().context("standard output is a pipe")?;
    let (end, ended) = channel();
    let reader = thread::spawn(move || read(output, &end));
    let timed_out = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
    if timed_out && let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        // The group may have ended just now, which is what we want.
        kill_process_group(group, Signal::KILL).ok();
    }
    let status = child.wait()?;
    if timed_out {
        bail!("{name} did not end within {} min and was ended", limit.as_secs() / 60);
    }
    let count = reader.join().ok().context("reading the output panicked")??;
    Ok((count, status.success()))
}

/// Shows every line and counts. Tells `end` when there is no more.
fn read(output: impl std::io::Read, end: &Sender<()>) -> std::io::Result<Count> {
    let mut count = Count::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        count.read(&line);
    }
    count.settle();
    // Nobody listens any more once the time is over.
    end.send(()).ok();
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn tests_are_summed_over_all_programs() {
        let script = "echo 'running 2 tests'; echo 'test a::b ... FAILED'; \
            echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored; finished in 0.00s'; \
            echo 'test result: ok. 4 passed; 0 failed; 0 ignored; finished in 0.00s'; exit 101";
        let count = tests("x", &mut shell(script), LIMIT).expect("runs");
        assert_eq!((count.passed, count.failed), (5, 1));
        assert_eq!(count.names, ["a::b"]);
    }

    #[test]
    fn a_test_that_did_nothing_has_not_passed() {
        let script = "echo 'not run: machines need root'; \
            echo 'test result: ok. 3 passed; 0 failed; 0 ignored; finished in 0.00s'";
        let count = tests("x", &mut shell(script), LIMIT).expect("runs");
        assert_eq!(count.passed, 2);
        assert_eq!(count.not_run, ["machines need root"]);
    }

    #[test]
    fn a_command_that_fails_without_a_failed_test_is_a_failure() {
        let count = tests("x", &mut shell("exit 101"), LIMIT).expect("runs");
        assert_eq!(count, Count::failure("x"));
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let mut command = shell("sleep 1000 & sleep 1000");
        assert!(tests("x", &mut command, Duration::from_millis(50)).is_err());
    }
}
