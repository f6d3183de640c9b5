//! What capturing and starting cost. Printed, not judged: a busy host is slow.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    time::{Duration, Instant},
};

use domain::size::Resources;
use sandbox::{
    backend::{Backend as _, Then},
    spec::{SandboxSpec, Source},
};
use testkit::fixtures::{sandbox_id, sealed};

use crate::rig::{Rig, run};

/// Writes and flushes as many bytes as a snapshot has, as `dd` would.
fn plain_write(folder: &std::path::Path, bytes: u64) -> Duration {
    let path = folder.join("plain");
    let begun = Instant::now();
    let mut file = File::create(&path).unwrap();
    let block = vec![0x5a; 1 << 20];
    for _ in 0..bytes.div_ceil(1 << 20) {
        file.write_all(&block).unwrap();
    }
    file.sync_all().unwrap();
    let took = begun.elapsed();
    std::fs::remove_file(path).unwrap();
    took
}

/// The middle of five.
async fn starts(rig: &Rig, spec: &SandboxSpec) -> Duration {
    let mut took = Vec::new();
    for _ in 0..5 {
        let id = sandbox_id();
        let begun = Instant::now();
        rig.backend.create(&id, spec).await.unwrap();
        took.push(begun.elapsed());
        rig.backend.destroy(&id).await.unwrap();
    }
    took.sort();
    took[2]
}

/// S33: capturing costs in proportion to what is used, and a start from a loaded
/// snapshot what a start from a template costs.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_capture_and_a_start_cost() {
    let Some(rig) = Rig::for_snapshots("cost").await else { return };
    let folder = rig.config.snapshot_dir.clone();
    for mib in [1, 64, 256] {
        let mut spec = rig.spec.clone();
        spec.resources = Resources::explicit(1, 1024).unwrap();
        let id = sandbox_id();
        rig.backend.create(&id, &spec).await.unwrap();
        let fill = format!(
            "head -c 1M /dev/urandom > /tmp/block; for n in $(seq {mib}); do cat /tmp/block; done \
             > /dev/shm/large; echo done"
        );
        assert_eq!(run(&*rig.backend, &id, 1, "root", &fill).await.unwrap(), "done\n");
        let snapshot = sealed();
        let begun = Instant::now();
        let captured = rig.backend.capture(&id, &snapshot, Then::Hold).await.unwrap();
        let capture = begun.elapsed();
        rig.backend.destroy(&id).await.unwrap();
        let plain = plain_write(&folder, captured.stored_bytes);
        let again = {
            let mut bytes = Vec::new();
            let path = folder.join(snapshot.id.as_str()).join("memory");
            let begun = Instant::now();
            File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
            begun.elapsed()
        };
        let from = SandboxSpec { source: Source::Snapshot(snapshot.clone()), ..spec.clone() };
        let begun = Instant::now();
        rig.backend.prepare(&from).await.unwrap();
        let load = begun.elapsed();
        let (template, copy) = (starts(&rig, &spec).await, starts(&rig, &from).await);
        println!(
            "{} MiB: capture {capture:?}, plain write {plain:?}, load {load:?}, plain read \
             {again:?}; start from template {template:?}, from snapshot {copy:?}",
            captured.memory_bytes >> 20,
        );
        rig.backend.forget(&snapshot.id).await.unwrap();
    }
}

/// A process that has loaded nothing starts a machine about as quickly as one
/// that has: memory is read while QEMU starts.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_first_start_costs() {
    let Some(mut rig) = Rig::for_snapshots("cost-first").await else { return };
    rig.backend.prepare(&rig.spec).await.unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        rig.backend = rig.reopen();
        for took in [&mut first, &mut second] {
            let id = sandbox_id();
            let begun = Instant::now();
            rig.backend.create(&id, &rig.spec).await.unwrap();
            took.push(begun.elapsed());
            rig.backend.destroy(&id).await.unwrap();
        }
    }
    first.sort();
    second.sort();
    println!("first start of a process {:?}, second {:?}", first[2], second[2]);
}
