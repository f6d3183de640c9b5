//! A server that goes, and the next one that finds what it left.

use backends::qemu::Lifetime;
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
