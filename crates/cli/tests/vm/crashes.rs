//! Processes that are killed, and what is left of them.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    service::Service,
    site::{left_by, state, until},
};

/// S30, S31
#[test]
fn nothing_is_left_of_a_run() {
    let Some(state) = state() else { return };
    let mut command =
        state.run(&["-i", "--", "sh", "-c", "echo x > /workspace/file; echo up; cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("read");
    assert_eq!(line, "up\n");
    let ids = state.sandboxes();
    assert_eq!(ids.len(), 1);
    assert!(!state.machines().is_empty());
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    // At once: when the command has ended, so has everything of it.
    assert!(state.machines().is_empty());
    assert!(state.sandboxes().is_empty());
    state.nothing_is_left_of(&ids);
    let names: Vec<_> = std::fs::read_dir(state.path()).expect("folder").flatten().collect();
    assert!(names.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with("run-")));
}

/// S30
#[test]
fn nothing_is_left_of_a_run_that_was_killed() {
    let Some(state) = state() else { return };
    let mut command = state.run(&["--", "sh", "-c", "echo up; sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("read");
    assert_eq!(line, "up\n");
    let ids = state.sandboxes();
    assert_eq!(ids.len(), 1);
    child.kill().expect("killed");
    child.wait().expect("gone");
    state.nothing_is_left_of(&ids);
    until("the private folder is gone", || {
        let left: Vec<_> = std::fs::read_dir(state.path())
            .expect("folder")
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().starts_with("run-"))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

/// A run that was killed at any moment of its start leaves nothing either.
#[test]
fn nothing_is_left_of_a_run_that_was_killed_while_it_started() {
    let Some(state) = state() else { return };
    // The template first, so that the kills fall into starts.
    assert_eq!(left_by(&mut state.run(&["--", "true"]), None).code, Some(0));
    let mut ids = BTreeSet::new();
    for pause_ms in [5, 20, 50, 90, 140, 200, 270, 350] {
        let mut child = state.run(&["--", "sleep", "1000"]).spawn().expect("starts");
        std::thread::sleep(Duration::from_millis(pause_ms));
        ids.extend(state.sandboxes());
        child.kill().expect("killed");
        child.wait().expect("gone");
    }
    state.nothing_is_left_of(&ids);
    assert_eq!(left_by(&mut state.run(&["--", "true"]), None).code, Some(0));
    until("the private folders are gone", || {
        let entries = std::fs::read_dir(state.path()).expect("folder").flatten();
        let left: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        // The cache is elsewhere and there is no server.
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

/// A server that was killed takes its sandboxes over again, their processes alive.
#[test]
fn a_killed_server_takes_over_what_ran() {
    let Some(mut service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let line =
        "echo kept > /workspace/file; setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!";
    let pid = service.shell(&sandbox, line).text().trim().to_owned();
    let machines = service.state.machines();
    assert_eq!(service.end("-KILL"), None);
    service.again();
    assert_eq!(service.describe(&sandbox)["state"], "running");
    assert_eq!(service.state.machines(), machines, "the same machine");
    let look = format!("cat /workspace/file; kill -0 {pid} && echo alive");
    assert_eq!(service.shell(&sandbox, &look).text(), "kept\nalive\n");
}

/// TERM ends a server in order; its sandboxes live on.
#[test]
fn a_server_that_is_told_to_stop_ends_with_zero() {
    let Some(mut service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    // A stream that would never end by itself.
    let arguments = ["sandbox", "exec", &sandbox, "--", "sh", "-c", "echo up; sleep 1000"];
    let mut command = service.client(&arguments);
    let mut follower =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let stdout = follower.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("read");
    assert_eq!(line, "up\n");
    let machines = service.state.machines();
    assert_eq!(service.end("-TERM"), Some(0));
    assert_eq!(follower.wait().expect("ends").code(), Some(123));
    assert_eq!(service.state.machines(), machines);
    service.again();
    assert_eq!(service.shell(&sandbox, "echo back").text(), "back\n");
}

/// S30, S31
#[test]
fn nothing_is_left_of_a_terminated_sandbox() {
    let Some(service) = Service::start() else { return };
    let ids: BTreeSet<_> = [service.create(&[]), service.create(&[])].into_iter().collect();
    let arguments: Vec<_> =
        ["sandbox", "kill"].into_iter().chain(ids.iter().map(String::as_str)).collect();
    service.ok(&arguments);
    // When the answer is there, so is the end.
    assert!(service.state.machines().is_empty());
    service.state.nothing_is_left_of(&ids);
    for id in &ids {
        assert_eq!(service.describe(id)["state"], "terminated");
        assert_eq!(service.shell(id, "true").code, Some(125));
    }
    // Again succeeds.
    service.ok(&arguments);
}

/// A machine that dies is noticed, and its sandbox says so.
#[test]
fn a_sandbox_whose_machine_ended_has_failed_with_a_reason() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let left = service.shell(&sandbox, "sudo -n sh -c 'echo o > /proc/sysrq-trigger'; sleep 100");
    assert_eq!(left.code, Some(123), "{left:?}");
    let described = until("it has failed", || {
        let described = service.describe(&sandbox);
        if described["state"] == "failed" { Ok(described) } else { Err(described.to_string()) }
    });
    assert!(described["ending"]["detail"].as_str().is_some_and(|text| !text.is_empty()));
}

/// A server that is killed at any moment, again and again: what it answered as
/// done is done, and at the end nothing is left.
#[test]
fn a_server_that_is_killed_again_and_again_forgets_nothing() {
    let Some(mut service) = Service::start() else { return };
    let seconds = crate::site::full(30, 60);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut created = BTreeSet::new();
    let mut n_kills = 0_u32;
    while Instant::now() < end {
        let pause = Duration::from_millis(300 + u64::from(n_kills * 997 % 4000));
        // Kept apart from the server, which is killed under them.
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let mut create = service.client(&["sandbox", "create", "--timeout", "1h"]);
                std::thread::spawn(move || left_by(&mut create, None))
            })
            .collect();
        std::thread::sleep(pause);
        assert_eq!(service.end("-KILL"), None);
        n_kills += 1;
        for client in clients {
            let left = client.join().expect("it ends");
            match left.code {
                Some(0) => drop(created.insert(left.text().trim().to_owned())),
                // The connection broke, or was not there any more.
                Some(3) => {}
                _ => panic!("neither an answer nor a closed connection: {left:?}"),
            }
        }
        service.again();
        // Half of what there is, so that the rest is taken over once more.
        for id in service.state.sandboxes().iter().step_by(2) {
            let left = left_by(&mut service.client(&["sandbox", "kill", id]), None);
            assert_eq!(left.code, Some(0), "{left:?}");
        }
    }
    println!("{n_kills} kills, {} sandboxes answered as created", created.len());
    for id in &created {
        let state = service.describe(id)["state"].as_str().map(str::to_owned);
        assert!(matches!(state.as_deref(), Some("running" | "terminated")), "{id}: {state:?}");
    }
    let running = service.ok(&["sandbox", "list", "--state", "running"]);
    for id in running.lines().filter_map(|line| line.split('\t').next()) {
        assert_eq!(service.shell(id, "echo alive").text(), "alive\n");
        service.ok(&["sandbox", "kill", id]);
    }
    let all: BTreeSet<_> = service.state.sandboxes().union(&created).cloned().collect();
    service.state.nothing_is_left_of(&all);
    assert!(service.state.sandboxes().is_empty());
}

/// Many sandboxes in a row leave as little as one.
#[test]
fn many_sandboxes_in_a_row_leave_nothing() {
    let Some(service) = Service::start() else { return };
    let mut all = BTreeSet::new();
    let before = descriptors(service.pid());
    for _ in 0..crate::site::full(10, 200) {
        let id = service.create(&[]);
        service.ok(&["sandbox", "kill", &id]);
        all.insert(id);
    }
    service.state.nothing_is_left_of(&all);
    let after = descriptors(service.pid());
    assert!(after <= before + 4, "descriptors grew from {before} to {after}");
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the server runs").count()
}
