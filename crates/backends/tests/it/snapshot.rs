//! Machines that are captured, and machines that continue.

use std::{collections::BTreeSet, path::PathBuf};

use backends::qemu::Lifetime;
use domain::{id::SandboxId, snapshot::SnapshotKey};
use sandbox::{
    backend::{Backend as _, BackendError, Sealed, Then},
    spec::{SandboxSpec, Source},
};
use testkit::fixtures::{sandbox_id, sealed};

use crate::rig::{Rig, become_and_run, run, wake_and_run};

/// A process that counts, and a file; both are in memory. The count is replaced
/// whole, so that nobody reads it while it is empty.
pub(crate) const BEGIN: &str = "echo written before > /tmp/file; \
    sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/next; mv /tmp/next /tmp/count; \
    sleep 0.05; done' \
    >/dev/null 2>&1 & echo $! > /tmp/pid; cat /proc/sys/kernel/random/boot_id";

/// What a machine that continues has to show.
pub(crate) const LOOK: &str = "cat /proc/sys/kernel/random/boot_id /tmp/file; \
    kill -0 $(cat /tmp/pid) && one=$(cat /tmp/count) && sleep 0.4 && two=$(cat /tmp/count) && \
    [ $two -gt $one ] && echo counts";

fn from(spec: &SandboxSpec, snapshot: &Sealed) -> SandboxSpec {
    SandboxSpec { source: Source::Snapshot(snapshot.clone()), ..spec.clone() }
}

impl Rig {
    /// The rig of a test, without the snapshots that a failed run left.
    pub(crate) async fn for_snapshots(name: &str) -> Option<Self> {
        let rig = Self::open(name, Lifetime::Outlives).await?;
        for id in rig.backend.snapshots().await.unwrap() {
            rig.backend.forget(&id).await.unwrap();
        }
        Some(rig)
    }

    /// A machine that did something, captured and gone.
    async fn captured(&self, command: &str) -> Sealed {
        let (id, snapshot) = (sandbox_id(), sealed());
        self.backend.create(&id, &self.spec).await.unwrap();
        run(&*self.backend, &id, 1, "user", command).await.unwrap();
        self.backend.capture(&id, &snapshot, Then::Hold).await.unwrap();
        self.backend.destroy(&id).await.unwrap();
        snapshot
    }

    fn files(&self, snapshot: &Sealed) -> PathBuf {
        self.config.snapshot_dir.join(snapshot.id.as_str())
    }

    async fn copy(&self, snapshot: &Sealed) -> Result<SandboxId, BackendError> {
        let id = sandbox_id();
        self.backend.create(&id, &from(&self.spec, snapshot)).await?;
        Ok(id)
    }
}

/// S33, S37: a captured sandbox runs on, and a copy of it is where it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_captured_machine_runs_on_and_its_copy_continues() {
    let Some(rig) = Rig::for_snapshots("snapshot").await else { return };
    let (id, copy, snapshot) = (sandbox_id(), sandbox_id(), sealed());
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let boot = run(&*rig.backend, &id, 1, "user", BEGIN).await.unwrap();
    let captured = rig.backend.capture(&id, &snapshot, Then::Continue).await.unwrap();
    println!("{captured:?}");
    let expected = format!("{}\nwritten before\ncounts\n", boot.trim());
    let source = wake_and_run(&*rig.backend, &id, 2, "user", LOOK).await.unwrap();
    assert_eq!(source, expected);

    rig.backend.loadable(&snapshot.id).await.unwrap();
    let spec = from(&rig.spec, &snapshot);
    rig.backend.prepare(&spec).await.unwrap();
    rig.backend.create(&copy, &spec).await.unwrap();
    let look = format!("{LOOK}; hostname");
    let continued = become_and_run(&*rig.backend, &copy, 3, "user", &look).await.unwrap();
    assert_eq!(continued, format!("{expected}copy-3\n"));
    rig.backend.forget(&snapshot.id).await.unwrap();
    rig.backend.destroy(&id).await.unwrap();
    rig.backend.destroy(&copy).await.unwrap();
}

/// S33, S37, K10: five times in a row, a sandbox is stored, its machine is gone,
/// and it continues with every file and process it had.
#[tokio::test(flavor = "multi_thread")]
async fn five_rounds_of_pause_and_resume_lose_nothing() {
    let Some(rig) = Rig::for_snapshots("snapshot-rounds").await else { return };
    let id = sandbox_id();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    // 100 MiB, no two of them alike.
    let begin = format!(
        "{BEGIN}; head -c 1M /dev/urandom > /tmp/block; \
         for n in $(seq 100); do echo $n; cat /tmp/block; done > /dev/shm/large"
    );
    let boot = run(&*rig.backend, &id, 1, "user", &begin).await.unwrap();
    let boot = boot.lines().next().unwrap().to_owned();
    let digest = "sha256sum < /dev/shm/large";
    let digest = wake_and_run(&*rig.backend, &id, 2, "user", digest).await.unwrap();
    let mut counted = 0;
    for round in 0..5 {
        let write = format!("echo round {round} >> /tmp/rounds; cat /tmp/count");
        let count = wake_and_run(&*rig.backend, &id, 10 * round + 3, "user", &write).await.unwrap();
        let count: u32 = count.trim().parse().unwrap();
        assert!(count >= counted);
        counted = count;

        let snapshot = sealed();
        let captured = rig.backend.capture(&id, &snapshot, Then::Hold).await.unwrap();
        // Asked again, because an answer was lost, it is the same snapshot.
        assert_eq!(rig.backend.capture(&id, &snapshot, Then::Hold).await.unwrap(), captured);
        rig.backend.destroy(&id).await.unwrap();
        assert_eq!(rig.backend.list().await.unwrap(), []);
        rig.backend.create(&id, &from(&rig.spec, &snapshot)).await.unwrap();
        rig.backend.forget(&snapshot.id).await.unwrap();

        // Looking at all of it takes long where machines are translated.
        let (sum, digest) = match round {
            0 | 4 => ("sha256sum < /dev/shm/large", digest.as_str()),
            _ => ("true", ""),
        };
        let look = format!("{LOOK}; cat /tmp/rounds; {sum}; cat /tmp/count");
        let seen = wake_and_run(&*rig.backend, &id, 10 * round + 4, "user", &look).await.unwrap();
        let rounds: String = (0..=round).map(|round| format!("round {round}\n")).collect();
        let expected = format!("{boot}\nwritten before\ncounts\n{rounds}{digest}");
        let count: u32 = seen.strip_prefix(&expected).expect(&seen).trim().parse().unwrap();
        // It went on from where it was, not from the beginning.
        assert!(count > counted);
        counted = count;
    }
    rig.backend.destroy(&id).await.unwrap();
}

/// S37: what is said over the link while the machine is captured arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_capture_interrupts_no_stream() {
    let Some(rig) = Rig::for_snapshots("snapshot-stream").await else { return };
    let (id, snapshot) = (sandbox_id(), sealed());
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let talk =
        "for n in $(seq 12); do head -c 200000 /dev/zero | tr '\\0' x; echo $n; sleep 0.02; done";
    let talking = run(&*rig.backend, &id, 1, "user", talk);
    let capturing = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        rig.backend.capture(&id, &snapshot, Then::Continue).await.unwrap();
    };
    let (printed, ()) = tokio::join!(talking, capturing);
    let printed = printed.unwrap();
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines.len(), 12);
    for (number, line) in (1..).zip(lines) {
        assert_eq!(line.len(), 200_000 + number.to_string().len());
        assert!(line.ends_with(&format!("x{number}")));
    }
    // And a copy was not left with half a stream that blocks it.
    let copy = rig.copy(&snapshot).await.unwrap();
    assert_eq!(become_and_run(&*rig.backend, &copy, 2, "user", "echo hi").await.unwrap(), "hi\n");
    rig.backend.destroy(&copy).await.unwrap();
    rig.backend.destroy(&id).await.unwrap();
    rig.backend.forget(&snapshot.id).await.unwrap();
}

/// S4, S36: copies of one machine draw different randomness and have names of
/// their own, though both were in one memory.
#[tokio::test(flavor = "multi_thread")]
async fn copies_differ_in_what_must_differ() {
    let Some(rig) = Rig::for_snapshots("snapshot-copies").await else { return };
    let snapshot = rig.captured("true").await;
    let mut seen = BTreeSet::new();
    for epoch in 1..=3 {
        let id = rig.copy(&snapshot).await.unwrap();
        let draw = "head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid";
        seen.extend(
            become_and_run(&*rig.backend, &id, epoch, "user", draw)
                .await
                .unwrap()
                .lines()
                .map(str::to_owned),
        );
        let name = become_and_run(&*rig.backend, &id, epoch, "user", "hostname").await.unwrap();
        assert_eq!(name.trim(), format!("copy-{epoch}"));
        rig.backend.destroy(&id).await.unwrap();
    }
    assert_eq!(seen.len(), 6);
    rig.backend.forget(&snapshot.id).await.unwrap();
}

/// U40: a captured machine that was itself a copy is captured as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_can_be_captured_again() {
    let Some(rig) = Rig::for_snapshots("snapshot-again").await else { return };
    let first = rig.captured("echo first > /tmp/one").await;
    let copy = rig.copy(&first).await.unwrap();
    let write = "echo second > /tmp/two; rm /tmp/one; cat /tmp/two";
    become_and_run(&*rig.backend, &copy, 2, "user", write).await.unwrap();
    let second = sealed();
    rig.backend.capture(&copy, &second, Then::Continue).await.unwrap();
    rig.backend.destroy(&copy).await.unwrap();
    rig.backend.forget(&first.id).await.unwrap();
    let copy = rig.copy(&second).await.unwrap();
    let look = "cat /tmp/two; test -e /tmp/one || echo gone";
    let seen = become_and_run(&*rig.backend, &copy, 3, "user", look).await.unwrap();
    assert_eq!(seen, "second\ngone\n");
    rig.backend.destroy(&copy).await.unwrap();
    rig.backend.forget(&second.id).await.unwrap();
}

/// U40, S49: with another key, or after it was changed, a snapshot starts
/// nothing, also while it is loaded; and what does not match is named.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_starts_only_what_it_may() {
    let Some(rig) = Rig::for_snapshots("snapshot-refused").await else { return };
    let snapshot = rig.captured("true").await;
    let mut wrong = snapshot.clone();
    wrong.key = SnapshotKey::from_random([0xee; 32]);
    let failed = |error| matches!(error, BackendError::Failed { .. });
    assert!(failed(rig.copy(&wrong).await.unwrap_err()));
    let copy = rig.copy(&snapshot).await.unwrap();
    assert!(failed(rig.copy(&wrong).await.unwrap_err()));

    let mut spec = from(&rig.spec, &snapshot);
    spec.resources.memory_mib = 1024;
    let error = rig.backend.create(&sandbox_id(), &spec).await.unwrap_err();
    assert!(matches!(&error, BackendError::Incompatible(text) if text.contains("512 MiB")));
    let mut spec = from(&rig.spec, &snapshot);
    spec.image.digest = domain::image::digest::Digest::of(b"another");
    let error = rig.backend.create(&sandbox_id(), &spec).await.unwrap_err();
    assert!(matches!(&error, BackendError::Incompatible(text) if text.contains("image base")));

    // The next server has nothing loaded.
    let next = rig.reopen();
    let file = rig.files(&snapshot).join("memory");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let spec = from(&rig.spec, &snapshot);
    assert!(failed(next.create(&sandbox_id(), &spec).await.unwrap_err()));
    bytes.truncate(middle);
    std::fs::write(&file, &bytes).unwrap();
    let error = next.create(&sandbox_id(), &spec).await.unwrap_err();
    assert!(matches!(error, BackendError::NoSnapshot));
    assert_eq!(rig.backend.list().await.unwrap(), std::slice::from_ref(&copy));
    rig.backend.destroy(&copy).await.unwrap();
    rig.backend.forget(&snapshot.id).await.unwrap();
}

/// S49: a forgotten snapshot starts nothing more, and what runs runs on.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_snapshot_is_gone_for_later_starts_only() {
    let Some(rig) = Rig::for_snapshots("snapshot-forgotten").await else { return };
    let snapshot = rig.captured("echo kept > /tmp/file").await;
    assert_eq!(rig.backend.snapshots().await.unwrap(), std::slice::from_ref(&snapshot.id));
    let copy = rig.copy(&snapshot).await.unwrap();
    rig.backend.forget(&snapshot.id).await.unwrap();
    rig.backend.forget(&snapshot.id).await.unwrap();
    assert_eq!(rig.backend.snapshots().await.unwrap(), []);
    assert!(!rig.files(&snapshot).exists());
    let gone = |error| matches!(error, BackendError::NoSnapshot);
    assert!(gone(rig.backend.loadable(&snapshot.id).await.unwrap_err()));
    assert!(gone(rig.copy(&snapshot).await.unwrap_err()));
    let kept = become_and_run(&*rig.backend, &copy, 2, "user", "cat /tmp/file").await.unwrap();
    assert_eq!(kept, "kept\n");
    rig.backend.destroy(&copy).await.unwrap();
}

/// S49, Q-01: what was in the machine's memory is nowhere in the files.
#[tokio::test(flavor = "multi_thread")]
async fn no_memory_of_the_machine_is_in_the_files() {
    let Some(rig) = Rig::for_snapshots("snapshot-canary").await else { return };
    // Put together inside, so that no command line holds it whole.
    let write = "a=canary-of-a-machine; b=in-its-memory; \
        for n in $(seq 2000); do echo $a-$b; done > /tmp/secret; cat /tmp/secret | sort -u";
    let (id, snapshot) = (sandbox_id(), sealed());
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let canary = run(&*rig.backend, &id, 1, "user", write).await.unwrap();
    assert_eq!(canary.trim(), "canary-of-a-machine-in-its-memory");
    rig.backend.capture(&id, &snapshot, Then::Hold).await.unwrap();
    let mut looked = 0;
    for entry in std::fs::read_dir(rig.files(&snapshot)).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        looked += bytes.len();
        for part in [canary.trim().as_bytes(), b"Linux version", b"/bin/sh"] {
            assert!(!bytes.windows(part.len()).any(|window| window == part));
        }
    }
    assert!(looked > 10 << 20);
    rig.backend.destroy(&id).await.unwrap();
    // It was there: a copy has it.
    let copy = rig.copy(&snapshot).await.unwrap();
    let look = "sort -u /tmp/secret";
    assert_eq!(become_and_run(&*rig.backend, &copy, 2, "user", look).await.unwrap(), canary);
    rig.backend.destroy(&copy).await.unwrap();
    rig.backend.forget(&snapshot.id).await.unwrap();
}

/// Loaded snapshots take no more of the host than they may.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_over_the_budget_is_refused_with_numbers() {
    let Some(mut rig) = Rig::for_snapshots("snapshot-budget").await else { return };
    let snapshot = rig.captured("true").await;
    rig.config.snapshot_memory = Some(1 << 20);
    rig.backend = rig.reopen();
    let error = rig.copy(&snapshot).await.unwrap_err();
    assert!(matches!(&error, BackendError::Refused(text) if text.contains("1 of the 1 MiB")));
    rig.backend.forget(&snapshot.id).await.unwrap();
}

/// A small file system in memory, for as long as this lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(place: PathBuf) -> Self {
        std::fs::create_dir_all(&place).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=8m,mode=700", "small"];
        let mounted = std::process::Command::new("mount").args(options).arg(&place).status();
        assert!(mounted.unwrap().success());
        Self(place)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(&self.0).status().unwrap();
    }
}

/// K14: a disk that is full costs the snapshot and not the sandbox.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_the_machine_and_no_snapshot() {
    let Some(mut rig) = Rig::for_snapshots("snapshot-full").await else { return };
    let disk = SmallDisk::mount(rig.config.snapshot_dir.join("small"));
    rig.config.snapshot_dir.push("small");
    rig.backend = rig.reopen();
    let (id, snapshot) = (sandbox_id(), sealed());
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let boot = run(&*rig.backend, &id, 1, "user", BEGIN).await.unwrap();
    for then in [Then::Continue, Then::Hold] {
        let error = rig.backend.capture(&id, &snapshot, then).await.unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("No space left"), "{cause}");
        assert_eq!(rig.backend.snapshots().await.unwrap(), []);
        assert_eq!(std::fs::read_dir(&rig.config.snapshot_dir).unwrap().count(), 0);
    }
    let seen = wake_and_run(&*rig.backend, &id, 2, "user", LOOK).await.unwrap();
    assert_eq!(seen, format!("{}\nwritten before\ncounts\n", boot.trim()));
    rig.backend.destroy(&id).await.unwrap();
    drop(disk);
}
