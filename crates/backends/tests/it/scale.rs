//! Many machines, at once and one after the other. What they take is printed.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use backends::qemu::Lifetime;
use domain::id::SandboxId;
use sandbox::backend::Backend as _;
use testkit::fixtures::sandbox_id;

use crate::rig::{Rig, run};

/// Everything of ours that can be seen on the host.
fn traces(rig: &Rig) -> BTreeSet<String> {
    let mut traces = BTreeSet::new();
    let mut folder = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        traces.extend(entries.map(|entry| entry.path().display().to_string()));
    };
    folder(&rig.config.run_dir);
    folder(Path::new("/run/coldframe/uids"));
    for tree in ["", "memory", "cpu", "pids"] {
        folder(&Path::new("/sys/fs/cgroup").join(tree).join("coldframe"));
    }
    let ours = rig.config.run_dir.display().to_string();
    for file in ["/proc/self/mountinfo", "/proc/net/unix"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        traces.extend(text.lines().filter(|line| line.contains(&ours)).map(str::to_owned));
    }
    traces.extend(processes());
    // Files of a cgroup are always there.
    traces.retain(|trace| !trace.starts_with("/sys") || Path::new(trace).is_dir());
    traces
}

/// Our children, whether they run or were not waited for.
fn processes() -> Vec<String> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let statuses = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let ours = statuses.filter(|stat| {
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().nth(1));
        fields.flatten() == Some(&own)
    });
    ours.map(|stat| stat.chars().take(40).collect()).collect()
}

fn pss_kib(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// S14: nothing is left of a hundred sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_hundred_sandboxes() {
    let Some(rig) = Rig::open("scale-cycles", Lifetime::Outlives).await else { return };
    rig.backend.prepare(&rig.spec).await.unwrap();
    let before = traces(&rig);
    let (mut creates, mut destroys) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let id = sandbox_id();
        let begun = Instant::now();
        rig.backend.create(&id, &rig.spec).await.unwrap();
        creates.push(begun.elapsed());
        let begun = Instant::now();
        rig.backend.destroy(&id).await.unwrap();
        destroys.push(begun.elapsed());
    }
    println!("create: median {:?}; destroy: median {:?}", median(creates), median(destroys));
    // Other tests run beside this one and have folders of their own.
    let left: Vec<_> = traces(&rig).difference(&before).cloned().collect();
    println!("new since the beginning: {left:#?}");
    assert_eq!(fs::read_dir(&rig.config.run_dir).unwrap().count(), 0);
}

/// S14
#[tokio::test(flavor = "multi_thread")]
async fn twenty_sandboxes_start_at_once() {
    let Some(rig) = Rig::open("scale-burst", Lifetime::Outlives).await else { return };
    rig.backend.prepare(&rig.spec).await.unwrap();
    let ids: Vec<SandboxId> = (0..20).map(|_| sandbox_id()).collect();
    let begun = Instant::now();
    let mut creates = tokio::task::JoinSet::new();
    for id in ids.clone() {
        let (backend, spec) = (rig.backend.clone(), rig.spec.clone());
        creates.spawn(async move { backend.create(&id, &spec).await.map(|()| begun.elapsed()) });
    }
    let times: Vec<_> = creates.join_all().await.into_iter().map(|one| one.unwrap()).collect();
    println!("20 at once: median {:?}, last {:?}", median(times.clone()), times.iter().max());
    let uids: BTreeSet<_> = ids
        .iter()
        .map(|id| {
            let status = fs::read_to_string(format!("/proc/{}/status", rig.pid(id))).unwrap();
            status.lines().find(|line| line.starts_with("Uid:")).unwrap().to_owned()
        })
        .collect();
    assert_eq!(uids.len(), 20);
    let pss: Vec<_> = ids.iter().map(|id| pss_kib(rig.pid(id)) / 1024).collect();
    println!("PSS of 20 idle machines in MiB: {pss:?}");
    for id in &ids {
        assert_eq!(run(&*rig.backend, id, 1, "user", "echo hi").await.unwrap().trim(), "hi");
    }
    for id in &ids {
        rig.backend.destroy(id).await.unwrap();
    }
}
