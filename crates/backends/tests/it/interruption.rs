//! A server that is killed while it captures a machine.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use backends::qemu::Lifetime;
use domain::{
    id::{SandboxId, SnapshotId},
    snapshot::SnapshotKey,
};
use sandbox::{
    backend::{Backend as _, BackendError, Sealed, Then},
    spec::{SandboxSpec, Source},
};
use testkit::fixtures::sandbox_id;

use crate::{
    rig::{BOUND, Rig, become_and_run, run, wake_and_run},
    snapshot::{BEGIN, LOOK},
};

/// Says to the test below that it is the process to be killed, and what to do.
const VICTIM: &str = "COLDFRAME_TEST_CAPTURES";

fn machine() -> SandboxId {
    SandboxId::from_random([0x51; 16])
}

fn snapshot() -> Sealed {
    let key = SnapshotKey::from_random([0x52; 32]);
    Sealed { id: SnapshotId::from_random([0x53; 16]), key }
}

/// Captures the machine, in a process that another test kills.
#[tokio::test(flavor = "multi_thread")]
async fn victim() {
    let Ok(then) = std::env::var(VICTIM) else { return };
    let Some(rig) = Rig::again("interruption", Lifetime::Outlives) else { return };
    let then = if then == "hold" { Then::Hold } else { Then::Continue };
    println!("captures now");
    rig.backend.capture(&machine(), &snapshot(), then).await.unwrap();
    println!("captured");
    std::future::pending::<()>().await;
}

fn start(then: &str) -> Child {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "interruption::victim", "--nocapture"])
        .env(VICTIM, then)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("captures now")));
    victim
}

/// When to kill.
enum Moment {
    /// This long after it began.
    After(Duration),
    /// When a file has this many bytes.
    Written(&'static str, u64),
}

impl Moment {
    fn wait(&self, folder: &Path) {
        match self {
            Self::After(time) => std::thread::sleep(*time),
            Self::Written(name, bytes) => {
                let path: PathBuf = folder.join(format!("{}{name}", snapshot().id));
                let end = folder.join(format!("{}/manifest.json", snapshot().id));
                let begun = Instant::now();
                // A moment that was missed was as short as the end is near.
                while std::fs::metadata(&path).map_or(true, |file| file.len() < *bytes)
                    && !end.exists()
                {
                    assert!(begun.elapsed() < BOUND, "nothing was captured");
                    std::hint::spin_loop();
                }
            }
        }
    }
}

/// S33, K14: whenever the server is killed, the machine goes on where it was,
/// and the snapshot is whole or none.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_while_it_captures_loses_nothing() {
    let Some(mut rig) = Rig::open("interruption", Lifetime::Outlives).await else { return };
    let folder = rig.config.snapshot_dir.clone();
    for id in rig.backend.snapshots().await.unwrap() {
        rig.backend.forget(&id).await.unwrap();
    }
    let id = machine();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let boot = run(&*rig.backend, &id, 1, "user", BEGIN).await.unwrap();
    // Whoever holds the machine must go: QEMU listens to one.
    rig.backend = rig.reopen();
    let expected = format!("{}\nwritten before\ncounts\n", boot.trim());
    let moments = [
        Moment::After(Duration::ZERO),
        Moment::After(Duration::from_millis(3)),
        Moment::After(Duration::from_millis(12)),
        Moment::Written(".new", 0),
        Moment::Written(".new/memory", 1 << 20),
        Moment::Written(".new/memory", 50 << 20),
        Moment::Written(".new/index", 1),
        Moment::Written(".new/manifest.json", 1),
        Moment::Written("/manifest.json", 1),
    ];
    let mut whole = 0;
    for (round, moment) in (2..).zip(moments) {
        let mut victim = start(if round % 2 == 0 { "hold" } else { "continue" });
        moment.wait(&folder);
        victim.kill().unwrap();
        victim.wait().unwrap();

        let next = rig.reopen();
        assert_eq!(next.list().await.unwrap(), std::slice::from_ref(&id));
        next.proceed(&id).await.unwrap();
        let seen = wake_and_run(&*next, &id, 100 + round, "user", LOOK).await.unwrap();
        assert_eq!(seen, expected);
        let spec = SandboxSpec { source: Source::Snapshot(snapshot()), ..rig.spec.clone() };
        let copy = sandbox_id();
        match next.loadable(&snapshot().id).await {
            Ok(()) => {
                next.create(&copy, &spec).await.unwrap();
                let seen = become_and_run(&*next, &copy, 2, "user", LOOK).await.unwrap();
                assert_eq!(seen, expected);
                next.destroy(&copy).await.unwrap();
                whole += 1;
            }
            Err(BackendError::NoSnapshot) => {
                let error = next.create(&copy, &spec).await.unwrap_err();
                assert!(matches!(error, BackendError::NoSnapshot));
            }
            Err(other) => panic!("{other}"),
        }
        next.forget(&snapshot().id).await.unwrap();
        // There is no folder before the first capture gets that far.
        assert_eq!(std::fs::read_dir(&folder).map_or(0, Iterator::count), 0);
    }
    assert!(whole > 0, "no kill came after the end");
    rig.backend.destroy(&id).await.unwrap();
}
