//! What a machine's process can see and do on the host: nothing of it.

use std::{collections::BTreeSet, fs};

use backends::qemu::Lifetime;
use sandbox::backend::Backend as _;
use testkit::fixtures::sandbox_id;

use crate::rig::{Rig, run};

fn status(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// S2, S4, S8, S10, L19, L20
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_confined() {
    let Some(rig) = Rig::open("confinement", Lifetime::Outlives).await else { return };
    let (id, other) = (sandbox_id(), sandbox_id());
    rig.backend.create(&id, &rig.spec).await.unwrap();
    rig.backend.create(&other, &rig.spec).await.unwrap();
    let pid = rig.pid(&id);

    let uid = status(pid, "Uid:");
    assert!(uid.starts_with("2000"), "{uid}");
    assert_ne!(uid, status(rig.pid(&other), "Uid:"), "two machines share a user");
    for (name, expected) in [
        ("CapInh:", "0000000000000000"),
        ("CapPrm:", "0000000000000000"),
        ("CapEff:", "0000000000000000"),
        ("CapBnd:", "0000000000000000"),
        ("CapAmb:", "0000000000000000"),
        ("Groups:", ""),
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
    ] {
        assert_eq!(status(pid, name), expected, "{name}");
    }
    for namespace in ["mnt", "net", "ipc", "uts", "pid", "cgroup"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_ne!(of(&pid.to_string()), of("self"), "{namespace}");
    }

    let entries = |path: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(format!("/proc/{pid}/root/{path}")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let root = entries("");
    let expected = ["dev", "firmware", "lib", "lib64", "proc", "usr"].map(str::to_owned);
    assert!(root.is_subset(&expected.into()), "{root:?}");
    assert!(entries("dev").is_subset(&["kvm", "null", "urandom"].map(str::to_owned).into()));
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    assert!(root.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro"), "{root}");
    let interfaces = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    assert_eq!(interfaces.lines().skip(2).count(), 1, "{interfaces}");
    assert!(fs::read(format!("/proc/{pid}/environ")).unwrap().is_empty());

    // Only what was passed, and what QEMU made itself.
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = fs::read_link(descriptor.unwrap().path()).unwrap();
        let target = target.to_string_lossy().into_owned();
        let ours = [
            "socket:",
            "pipe:",
            "anon_inode:",
            "/memfd:coldframe-",
            "/dev/null",
            "/memfd:tcg-jit",
            "/memfd:memory-backend",
        ];
        let known = ours.iter().any(|prefix| target.starts_with(prefix))
            || ["rootfs.erofs", "stderr"].iter().any(|name| target.ends_with(name))
            || target.contains("coldframe/uids/");
        assert!(known, "{target}");
    }

    // And what the guest sees of it.
    let inside = run(&*rig.backend, &id, 1, "user", "ls /sys/class/net; cat /proc/cmdline; env");
    let inside = inside.await.unwrap();
    assert_eq!(inside.lines().next(), Some("lo"));
    assert!(!inside.contains(env!("CARGO_TARGET_TMPDIR")), "{inside}");
    rig.backend.destroy(&id).await.unwrap();
    rig.backend.destroy(&other).await.unwrap();
}

/// S4: what the template gives to every clone cannot be changed through a clone,
/// not even by the host's root through the machine's own descriptor.
#[tokio::test(flavor = "multi_thread")]
async fn no_machine_can_write_into_its_template() {
    let Some(rig) = Rig::open("template", Lifetime::Outlives).await else { return };
    let id = sandbox_id();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let pid = rig.pid(&id);
    let mut checked = 0;
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = descriptor.unwrap().path();
        let Ok(target) = fs::read_link(&path) else { continue };
        if !target.to_string_lossy().starts_with("/memfd:coldframe-") {
            continue;
        }
        checked += 1;
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let write = std::os::unix::fs::FileExt::write_at(&file, b"x", 0);
        assert_eq!(write.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied, "{target:?}");
        assert!(file.set_len(0).is_err(), "{target:?}");
    }
    assert!(checked >= 3, "memory, state and kernel are such files; {checked} were seen");
    rig.backend.destroy(&id).await.unwrap();
}
