//! A server that goes, and the next one that finds what it left.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::{Duration, UNIX_EPOCH},
};

use backends::qemu::Lifetime;
use domain::id::SandboxId;
use sandbox::backend::Backend as _;
use testkit::fixtures::sandbox_id;
use tokio::time::timeout;

use crate::rig::{BOUND, Rig, run};

/// A machine and its processes outlive the server that made it.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_finds_a_running_machine() {
    let Some(mut rig) = Rig::open("survival", Lifetime::Outlives).await else { return };
    let id = sandbox_id();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let command = "echo first words > /dev/console; sleep 1000 >/dev/null 2>&1 & echo $!";
    let started = run(&*rig.backend, &id, 1, "root", command).await.unwrap();
    let sleeper = started.trim().to_owned();
    // Reading empties QEMU's ring.
    rig.backend.console(&id).await.unwrap();

    // Nothing is told to stop: this is what `kill -9` leaves.
    let next = rig.reopen();
    rig.backend = next;
    assert_eq!(rig.backend.list().await.unwrap(), std::slice::from_ref(&id));
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let command = format!("kill -0 {sleeper} && echo alive");
    let alive = run(&*rig.backend, &id, 2, "root", &command).await.unwrap();
    assert_eq!(alive.trim(), "alive");
    let console = rig.backend.console(&id).await.unwrap();
    assert!(String::from_utf8_lossy(&console).contains("first words"), "{console:?}");

    let pid = rig.pid(&id).to_string();
    std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    timeout(BOUND, rig.backend.wait(&id)).await.unwrap();
    rig.backend.destroy(&id).await.unwrap();
    assert_eq!(rig.backend.list().await.unwrap(), []);
}

/// What a crash left half-made is listed, and goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_made_sandbox_is_found_and_removed() {
    let Some(rig) = Rig::open("survival-half", Lifetime::Outlives).await else { return };
    let id = sandbox_id();
    let folder = rig.config.run_dir.join(id.as_str());
    std::fs::create_dir_all(&folder).unwrap();
    assert_eq!(rig.backend.list().await.unwrap(), std::slice::from_ref(&id));
    assert!(rig.backend.connect(&id).await.is_err());
    timeout(BOUND, rig.backend.wait(&id)).await.unwrap();
    // A repeated create makes it whole.
    rig.backend.create(&id, &rig.spec).await.unwrap();
    assert_eq!(run(&*rig.backend, &id, 1, "user", "echo hi").await.unwrap().trim(), "hi");
    rig.backend.destroy(&id).await.unwrap();
    assert!(!folder.exists());
}

/// A machine that was made to end with its maker does, also without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_can_be_made_to_end_with_its_maker() {
    let Some(rig) = Rig::open("survival-not", Lifetime::EndsWithCaller).await else { return };
    let id = sandbox_id();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let process = format!("/proc/{}", rig.pid(&id));
    let running = || {
        let text = std::fs::read_to_string(format!("{process}/stat")).unwrap_or_default();
        text.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    };
    assert!(running());
    let next = rig.reopen();
    drop(rig.backend);
    let gone = async {
        while running() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    timeout(BOUND, gone).await.unwrap();
    next.destroy(&id).await.unwrap();
}

/// Says to the test below that it is the process to be killed.
const VICTIM: &str = "COLDFRAME_TEST_VICTIM";

/// Makes sandboxes for ever, in a process that another test kills.
#[tokio::test(flavor = "multi_thread")]
async fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let Some(rig) = Rig::open("survival-kill", Lifetime::Outlives).await else { return };
    println!("ready");
    loop {
        let id = SandboxId::from_random(rand_bytes());
        rig.backend.create(&id, &rig.spec).await.unwrap();
        rig.backend.destroy(&id).await.unwrap();
    }
}

fn rand_bytes() -> [u8; 16] {
    let nanos = UNIX_EPOCH.elapsed().unwrap().as_nanos();
    (nanos ^ (u128::from(std::process::id()) << 64)).to_be_bytes()
}

/// Whatever a server was doing when it was killed, the next one finds and
/// removes all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_nothing_that_the_next_cannot_remove() {
    let Some(rig) = Rig::open("survival-kill", Lifetime::Outlives).await else { return };
    rig.backend.prepare(&rig.spec).await.unwrap();
    for round in 0..15 {
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "survival::victim", "--nocapture"])
            .env(VICTIM, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        tokio::time::sleep(Duration::from_millis(round * 17)).await;
        victim.kill().unwrap();
        victim.wait().unwrap();

        let next = rig.reopen();
        for id in next.list().await.unwrap() {
            let group = Path::new("/sys/fs/cgroup/memory/coldframe").join(id.as_str());
            let unified = Path::new("/sys/fs/cgroup/coldframe").join(id.as_str());
            next.destroy(&id).await.unwrap();
            assert!(!group.exists() && !unified.exists(), "{id}");
        }
        assert_eq!(next.list().await.unwrap(), []);
    }
    // A jailer that lost its server has ended by itself. Those of other tests are
    // children of this process.
    let jailer = Path::new(env!("CARGO_BIN_EXE_coldframe-jail"));
    let own = format!("PPid:\t{}\n", std::process::id());
    let orphan = |process: &Path| {
        let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
        std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == jailer)
            && !status.contains(&own)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    assert_eq!(processes.filter(|entry| orphan(&entry.path())).count(), 0);
}
