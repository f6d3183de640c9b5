//! How a machine ends, and what is said about it.

use backends::qemu::Lifetime;
use sandbox::backend::Backend as _;
use testkit::fixtures::sandbox_id;
use tokio::time::timeout;

use crate::rig::{BOUND, Rig, run};

/// K16: the end of a machine names its cause, with the console's last words.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_stops_itself_says_why() {
    let Some(rig) = Rig::open("endings", Lifetime::Outlives).await else { return };
    for (command, expected) in [
        ("echo last words > /dev/console; sync; echo b > /proc/sysrq-trigger", "restarted itself"),
        ("echo last words > /dev/console; sync; echo o > /proc/sysrq-trigger", "shut itself down"),
        (
            "echo last words > /dev/console; echo c > /proc/sysrq-trigger",
            "Kernel panic - not syncing",
        ),
    ] {
        let id = sandbox_id();
        rig.backend.create(&id, &rig.spec).await.unwrap();
        // The session ends before the command does.
        let talking = run(&*rig.backend, &id, 1, "root", command);
        tokio::select! {
            _ = talking => {}
            _ = rig.backend.wait(&id) => {}
        }
        let reason = timeout(BOUND, rig.backend.wait(&id)).await.unwrap();
        assert!(reason.contains(expected), "{command}: {reason}");
        let console = rig.backend.console(&id).await.map(|bytes| bytes.len());
        println!("{reason} (console: {console:?})");
        rig.backend.destroy(&id).await.unwrap();
    }
}

/// K16: a killed machine is noticed at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_killed_is_noticed() {
    let Some(rig) = Rig::open("endings-kill", Lifetime::Outlives).await else { return };
    let id = sandbox_id();
    rig.backend.create(&id, &rig.spec).await.unwrap();
    let pid = rig.pid(&id).to_string();
    std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    let reason = timeout(BOUND, rig.backend.wait(&id)).await.unwrap();
    assert!(reason.contains("signal 9"), "{reason}");
    rig.backend.destroy(&id).await.unwrap();
}

/// K16, U19: what cannot start is refused with the reason, and leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_start_names_the_cause() {
    let Some(rig) = Rig::open("endings-refused", Lifetime::Outlives).await else { return };
    let mut spec = rig.spec.clone();
    spec.resources.memory_mib = 1 << 24;
    let error = rig.backend.create(&sandbox_id(), &spec).await.unwrap_err();
    assert!(error.to_string().contains("does not fit on this host"), "{error}");

    let mut spec = rig.spec.clone();
    spec.image.kernel = spec.image.rootfs.clone();
    spec.image.manifest.files.vmlinuz.size += 1;
    spec.image.digest = domain::image::digest::Digest::of(b"another");
    let error = rig.backend.create(&sandbox_id(), &spec).await.unwrap_err();
    let cause = std::error::Error::source(&error).map(|cause| cause.to_string());
    println!("{error}: {cause:?}");
    assert!(cause.is_some());
    assert_eq!(rig.backend.list().await.unwrap(), []);
}
