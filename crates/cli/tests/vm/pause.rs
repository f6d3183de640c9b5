//! Pausing, resuming and copying, with real machines.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::{
    service::Service,
    site::{full, left_by, until},
};

/// A process that counts, one line for each number, and a file that grows.
const COUNTER: &str = "setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i >> /workspace/count; \
                       sleep 0.05; done' </dev/null >/dev/null 2>&1 & echo $!";

/// Creates one with a time limit of its own.
fn created(service: &Service, arguments: &[&str]) -> String {
    service.ok(&[&["sandbox", "create"], arguments].concat())
}

fn pause(service: &Service, sandbox: &str) {
    let text = service.ok(&["sandbox", "pause", sandbox]);
    assert_eq!(text.trim(), format!("{sandbox} paused"));
}

fn resume(service: &Service, sandbox: &str) {
    let text = service.ok(&["sandbox", "resume", sandbox]);
    assert_eq!(text.trim(), format!("{sandbox} running"));
}

fn say(service: &Service, sandbox: &str, line: &str) -> String {
    let left = service.shell(sandbox, line);
    assert_eq!(left.code, Some(0), "{line}: {left:?}");
    left.text().trim().to_owned()
}

/// No number of the counter is missing and none is there twice.
fn counted(service: &Service, sandbox: &str) -> u64 {
    let line = "awk 'NR != $1 { print \"line\", NR, \"is\", $1; exit 1 } END { print NR }' \
                /workspace/count";
    say(service, sandbox, line).parse().expect("a number")
}

/// S33, S37, K10, K11, K13, U13: what runs goes on where it stood, files are what
/// they were, the clock is right, randomness is fresh, and no time passed.
#[test]
fn what_runs_goes_on_after_a_pause() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&["--env", "NAME=value"]);
    let pid = say(&service, &sandbox, COUNTER);
    let boot = say(&service, &sandbox, "cat /proc/sys/kernel/random/boot_id");
    let host = say(&service, &sandbox, "hostname; cat /etc/machine-id");
    say(&service, &sandbox, "head -c 3000000 /dev/urandom > /workspace/file; echo kept > /tmp/x");
    let digest = say(&service, &sandbox, "sha256sum /workspace/file");
    let mut drawn = BTreeSet::new();
    let mut last = 0;
    for round in 0..full(10, 100) {
        pause(&service, &sandbox);
        assert!(service.state.machines().is_empty(), "round {round}: a machine is left");
        let left = service.describe(&sandbox);
        let remaining = left["remaining_seconds"].as_u64().expect("it is kept");
        resume(&service, &sandbox);
        assert_eq!(say(&service, &sandbox, "cat /proc/sys/kernel/random/boot_id"), boot);
        assert_eq!(say(&service, &sandbox, "sha256sum /workspace/file"), digest, "round {round}");
        let alive = format!("kill -0 {pid} && cat /tmp/x && echo $NAME");
        assert_eq!(say(&service, &sandbox, &alive), "kept\nvalue", "round {round}");
        let count = counted(&service, &sandbox);
        assert!(count > last, "round {round}: the counter stands still at {count}");
        last = count;
        assert!(drawn.insert(say(&service, &sandbox, "head -c 16 /dev/urandom | od -An -tx1")));
        let now: u64 = say(&service, &sandbox, "date +%s").parse().expect("a time");
        let real = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
        assert!(now.abs_diff(real) <= 5, "round {round}: the clock is {now}, it is {real}");
        assert!(remaining > 0, "round {round}: its time ran out");
    }
    assert_eq!(say(&service, &sandbox, "hostname; cat /etc/machine-id"), host);
    service.ok(&["sandbox", "kill", &sandbox]);
    service.state.nothing_is_left_of(&BTreeSet::from([sandbox]));
}

/// K13: a pause that is longer than the time limit leaves what was left of it.
#[test]
fn a_pause_may_be_longer_than_the_time_limit() {
    let Some(service) = Service::start() else { return };
    let sandbox = created(&service, &["--timeout", "20s"]);
    pause(&service, &sandbox);
    let before = service.describe(&sandbox)["remaining_seconds"].as_u64().expect("it is kept");
    std::thread::sleep(Duration::from_secs(22));
    assert_eq!(service.describe(&sandbox)["remaining_seconds"].as_u64(), Some(before));
    resume(&service, &sandbox);
    assert_eq!(say(&service, &sandbox, "echo alive"), "alive");
    until("its time limit ends it", || match service.describe(&sandbox)["state"].as_str() {
        Some("terminated") => Ok(()),
        state => Err(format!("{state:?}")),
    });
}

/// The next use of a paused sandbox resumes it; its time limit and idleness pause
/// it, where that was asked for.
#[test]
fn it_rests_and_wakes_by_itself() {
    let Some(service) = Service::start() else { return };
    let paused = |sandbox: &str| {
        until("it is paused", || match service.describe(sandbox)["state"].as_str() {
            Some("paused") => Ok(()),
            state => Err(format!("{state:?}")),
        });
    };
    let limited =
        created(&service, &["--timeout", "10s", "--on-timeout", "pause", "--auto-resume"]);
    let pid = say(&service, &limited, COUNTER);
    paused(&limited);
    assert_eq!(say(&service, &limited, &format!("kill -0 {pid} && echo alive")), "alive");
    let idle = service.create(&["--idle-timeout", "5s", "--auto-resume"]);
    say(&service, &idle, "echo kept > /workspace/file");
    paused(&idle);
    let target = service.state.path().join("file");
    let from = format!("{idle}:/workspace/file");
    service.ok(&["sandbox", "cp", &from, target.to_str().expect("text")]);
    assert_eq!(std::fs::read_to_string(target).expect("a file"), "kept\n");
    let plain = service.create(&[]);
    pause(&service, &plain);
    let left = service.shell(&plain, "true");
    assert_eq!(left.code, Some(125), "{left:?}");
    assert!(left.stderr.contains("paused"), "{left:?}");
}

/// Copies share nothing that says who they are: host name, machine id, randomness.
/// Each has what the sandbox had, and what one does no other sees.
#[test]
fn copies_are_each_somebody_else() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&["--env", "NAME=value"]);
    let pid = say(&service, &sandbox, COUNTER);
    say(&service, &sandbox, "echo shared > /workspace/file");
    let copies = service.ok(&["sandbox", "fork", &sandbox, "--count", "3", "--env", "MORE=1"]);
    let mut all: Vec<String> = copies.lines().map(str::to_owned).collect();
    assert_eq!(all.len(), 3);
    let identity = "hostname; cat /etc/machine-id; head -c 32 /dev/urandom | od -An -tx1";
    let mut seen = BTreeSet::new();
    all.push(sandbox.clone());
    for id in &all {
        for word in say(&service, id, identity).lines() {
            assert!(seen.insert(word.to_owned()), "{word} is there twice");
        }
        let line = format!("kill -0 {pid} && cat /workspace/file && echo $NAME");
        assert_eq!(say(&service, id, &line), "shared\nvalue");
        say(&service, id, &format!("echo {id} > /workspace/own"));
        let first = counted(&service, id);
        until("the counter goes on", || match counted(&service, id) {
            count if count > first => Ok(()),
            count => Err(count.to_string()),
        });
    }
    assert_eq!(say(&service, &all[0], "echo $MORE"), "1");
    assert_eq!(say(&service, &sandbox, "echo ${MORE:-none}"), "none");
    for id in &all {
        assert_eq!(say(&service, id, "cat /workspace/own"), *id);
    }
    for id in &all {
        service.ok(&["sandbox", "kill", id]);
    }
    service.state.nothing_is_left_of(&all.into_iter().collect());
    assert_eq!(snapshots(&service), Vec::<String>::new());
}

/// A snapshot by name starts any number of sandboxes, also after its sandbox has
/// ended and after a start of the server, and none once it was removed.
#[test]
fn sandboxes_start_from_a_snapshot() {
    let Some(mut service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let pid = say(&service, &sandbox, COUNTER);
    service.ok(&["snapshot", "create", &sandbox, "warm"]);
    assert_eq!(say(&service, &sandbox, "echo on"), "on");
    service.ok(&["sandbox", "kill", &sandbox]);
    assert_eq!(service.end("-TERM"), Some(0));
    service.again();
    let mut hosts = BTreeSet::new();
    for _ in 0..2 {
        let id = service.ok(&["sandbox", "create", "--snapshot", "warm"]).trim().to_owned();
        assert!(hosts.insert(say(&service, &id, "hostname")));
        assert_eq!(say(&service, &id, &format!("kill -0 {pid} && echo alive")), "alive");
        counted(&service, &id);
    }
    service.ok(&["snapshot", "delete", "warm"]);
    assert_eq!(snapshots(&service), Vec::<String>::new());
    let mut create = service.client(&["sandbox", "create", "--snapshot", "warm"]);
    let left = left_by(&mut create, None);
    assert_eq!(left.code, Some(1), "{left:?}");
}

/// U13: what survives a termination of a paused sandbox is nothing.
#[test]
fn nothing_is_left_of_a_paused_sandbox() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    pause(&service, &sandbox);
    assert_eq!(snapshots(&service).len(), 1);
    service.ok(&["sandbox", "kill", &sandbox]);
    assert_eq!(snapshots(&service), Vec::<String>::new());
    service.state.nothing_is_left_of(&BTreeSet::from([sandbox]));
}

/// A server that is killed in the middle of pauses and resumes, again and again:
/// the sandbox is running or paused, and nothing that it did is lost.
#[test]
fn a_server_that_is_killed_in_a_pause_loses_nothing() {
    let Some(mut service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    say(&service, &sandbox, COUNTER);
    say(&service, &sandbox, "head -c 2000000 /dev/urandom > /workspace/file");
    let digest = say(&service, &sandbox, "sha256sum /workspace/file");
    let end = Instant::now() + Duration::from_secs(full(40, 300));
    let (mut n_kills, mut last, mut halves) = (0_u64, 0, BTreeSet::new());
    while Instant::now() < end {
        let state = service.describe(&sandbox)["state"].as_str().map(str::to_owned);
        let verb = if state.as_deref() == Some("running") { "pause" } else { "resume" };
        halves.insert(verb);
        let mut command = service.client(&["sandbox", verb, &sandbox]);
        let client = std::thread::spawn(move || left_by(&mut command, None));
        std::thread::sleep(Duration::from_millis(30 + n_kills * 137 % 1500));
        assert_eq!(service.end("-KILL"), None);
        n_kills += 1;
        drop(client.join().expect("it ends"));
        service.again();
        let state = service.describe(&sandbox)["state"].as_str().map(str::to_owned);
        assert!(
            matches!(state.as_deref(), Some("running" | "paused")),
            "kill {n_kills}: {state:?}"
        );
        if n_kills % 3 == 0 {
            if state.as_deref() == Some("paused") {
                resume(&service, &sandbox);
            }
            assert_eq!(say(&service, &sandbox, "sha256sum /workspace/file"), digest);
            let count = counted(&service, &sandbox);
            assert!(count >= last, "kill {n_kills}: {count} after {last}");
            last = count;
        }
    }
    println!("{n_kills} kills in the middle of {halves:?}");
    if service.describe(&sandbox)["state"] == "paused" {
        resume(&service, &sandbox);
    }
    assert_eq!(say(&service, &sandbox, "sha256sum /workspace/file"), digest);
    assert!(counted(&service, &sandbox) >= last);
    service.ok(&["sandbox", "kill", &sandbox]);
    until("no snapshot is left", || {
        let left = snapshots(&service);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    service.state.nothing_is_left_of(&BTreeSet::from([sandbox]));
}

/// The snapshots that lie in the state folder.
fn snapshots(service: &Service) -> Vec<String> {
    let mut found = Vec::new();
    crate::site::walk(service.state.path(), &mut |path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("snp_") {
            found.push(name.to_owned());
        }
    });
    found
}
