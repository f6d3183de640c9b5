//! Volumes of real machines.

use crate::{
    service::Service,
    site::{left_by, until},
};

/// Writes files and prints their digests.
const FILL: &str = "cd /persist && mkdir -p d && head -c 5000000 /dev/urandom > d/x && \
                    echo hello > y && sha256sum d/x y";
const DIGESTS: &str = "cd /persist && sha256sum d/x y";

#[track_caller]
fn said(service: &Service, sandbox: &str, line: &str) -> String {
    let left = service.shell(sandbox, line);
    assert_eq!(left.code, Some(0), "{line}: {left:?}");
    left.text().to_owned()
}

#[track_caller]
fn refused(service: &Service, arguments: &[&str]) -> String {
    let left = left_by(&mut service.client(arguments), None);
    assert_ne!(left.code, Some(0), "{arguments:?}: {left:?}");
    left.stderr
}

/// S26, S32, S38, U13, U37: what one sandbox wrote, the next one reads, through
/// an end, a restart of the server and a move between running sandboxes.
#[test]
fn a_volume_outlives_sandboxes_and_the_server() {
    let Some(mut service) = Service::start() else { return };
    service.ok(&["volume", "create", "data", "--size-mb", "64"]);
    let first = service.create(&["--volume", "data"]);
    let digests = said(&service, &first, FILL);
    assert_eq!(said(&service, &first, "stat -c %U /persist; id -un"), "user\nuser\n");
    assert!(refused(&service, &["volume", "delete", "data"]).contains(&first));
    let second = service.create(&[]);
    assert!(refused(&service, &["volume", "attach", "data", &second]).contains(&first));
    service.ok(&["sandbox", "kill", &first]);

    service.ok(&["volume", "attach", "data", &second, "--path", "/persist"]);
    assert_eq!(said(&service, &second, DIGESTS), digests);
    assert_eq!(service.end("-KILL"), None);
    service.again();
    assert_eq!(said(&service, &second, DIGESTS), digests);
    said(&service, &second, "echo more > /persist/z");
    // In use: the directory of a process.
    let busy = "cd /persist && (sleep 1000 > /dev/null 2>&1 &) && echo begun";
    said(&service, &second, busy);
    assert!(refused(&service, &["volume", "detach", "data", &second]).contains("uses the volume"));
    said(&service, &second, "pkill sleep; while pgrep sleep; do :; done; true");
    service.ok(&["volume", "detach", "data", &second]);
    assert_eq!(service.shell(&second, "ls /persist/y").code, Some(2));

    let third = service.create(&["--volume", "data:/workspace/deep/data"]);
    let line = "cd /workspace/deep/data && sha256sum d/x y && cat z";
    assert_eq!(said(&service, &third, line), format!("{digests}more\n"));
    // The one that was detached takes it again, in the same slot.
    service.ok(&["volume", "detach", "data", &third]);
    service.ok(&["volume", "attach", "data", &second]);
    assert_eq!(said(&service, &second, DIGESTS), digests);
    for id in [&second, &third] {
        service.ok(&["sandbox", "kill", id]);
    }
    service.ok(&["volume", "delete", "data"]);
}

/// S39, S40: a checkpoint of a volume in use restores to what it was then.
#[test]
fn a_checkpoint_of_a_volume_in_use_restores() {
    let Some(service) = Service::start() else { return };
    service.ok(&["volume", "create", "data", "--size-mb", "64"]);
    let writer = service.create(&["--volume", "data"]);
    let digests = said(&service, &writer, FILL);
    // Somebody writes all the while, and waits while the volume is held still.
    let writing = "(i=0; while true; do echo $i >> /persist/log; i=$((i+1)); done) \
                   > /dev/null 2>&1 & echo begun";
    said(&service, &writer, writing);
    let checkpoint = service.ok(&["volume", "checkpoint", "data"]);
    let again = service.ok(&["volume", "checkpoint", "data", "--json"]);
    let again: serde_json::Value = serde_json::from_str(&again).expect("json");
    let bytes = |key: &str| again[key].as_u64().expect("a number");
    assert!(bytes("stored_bytes") < bytes("data_bytes"), "{again}");
    said(&service, &writer, "echo changed > /persist/y");

    service.ok(&["volume", "restore", &checkpoint, "copy"]);
    let reader = service.create(&["--volume", "copy"]);
    assert_eq!(said(&service, &reader, DIGESTS), digests);
    let whole = "awk '$1 != NR - 1 { bad = 1 } END { print (NR > 0), bad + 0 }' /persist/log";
    assert_eq!(said(&service, &reader, whole), "1 0\n");
    assert_eq!(said(&service, &writer, "cat /persist/y"), "changed\n");
    for sandbox in [&writer, &reader] {
        service.ok(&["sandbox", "kill", sandbox]);
    }
    service.ok(&["volume", "delete", "data", "copy"]);
    let mut left = Vec::new();
    for folder in ["volumes", "objects"] {
        crate::site::walk(&service.state.path().join(folder), &mut |path| {
            if path.is_file() {
                left.push(path.to_owned());
            }
        });
    }
    assert!(left.is_empty(), "{left:?}");
}

/// K15, U37: a machine that is killed gives its volume back, with everything
/// that reached the disk.
#[test]
fn a_killed_machine_gives_its_volume_back() {
    let Some(service) = Service::start() else { return };
    service.ok(&["volume", "create", "data", "--size-mb", "32"]);
    let sandbox = service.create(&["--volume", "data"]);
    said(&service, &sandbox, "echo kept > /persist/x && sync");
    for pid in service.state.machines() {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    }
    until("it is free", || {
        let text = service.ok(&["volume", "get", "data", "--json"]);
        if text.contains("\"attachment\"") { Err(text) } else { Ok(()) }
    });
    let next = service.create(&["--volume", "data"]);
    assert_eq!(said(&service, &next, "cat /persist/x"), "kept\n");
}

/// L20: a place that the workload prepared with links leads nowhere else.
#[test]
fn a_link_in_the_way_is_not_followed() {
    let Some(service) = Service::start() else { return };
    service.ok(&["volume", "create", "data", "--size-mb", "32"]);
    let sandbox = service.create(&[]);
    said(&service, &sandbox, "ln -s /etc /workspace/link");
    let place = ["volume", "attach", "data", &sandbox, "--path", "/workspace/link/x"];
    assert!(refused(&service, &place).contains("link"));
    assert!(said(&service, &sandbox, "ls /etc").lines().all(|name| name != "x"));
    service.ok(&["volume", "attach", "data", &sandbox]);
}

/// S37, K13, U13, U37: through pauses a volume stays where it is: nothing that
/// was written is lost, nobody else gets it, and no copy of its sandbox is made.
#[test]
fn a_paused_sandbox_keeps_its_volume() {
    let Some(mut service) = Service::start() else { return };
    service.ok(&["volume", "create", "data", "--size-mb", "64"]);
    let sandbox = service.create(&["--volume", "data"]);
    let digests = said(&service, &sandbox, FILL);
    let counting = "(i=0; while true; do echo $i >> /persist/log; i=$((i+1)); sleep 0.01; done) \
                    > /dev/null 2>&1 & echo begun";
    said(&service, &sandbox, counting);
    for copy in [["sandbox", "fork", &sandbox].as_slice(), &["snapshot", "create", &sandbox, "x"]] {
        assert!(refused(&service, copy).contains("volume"), "{copy:?}");
    }
    let lines = |service: &Service| -> u64 {
        said(service, &sandbox, "wc -l < /persist/log").trim().parse().expect("a number")
    };
    let mut before = lines(&service);
    for round in 0..crate::site::full(4, 100) {
        service.ok(&["sandbox", "pause", &sandbox]);
        let other = service.ok(&["volume", "get", "data", "--json"]);
        assert!(other.contains(&sandbox), "{other}");
        assert!(refused(&service, &["volume", "checkpoint", "data"]).contains("resume it first"));
        if round == 1 {
            assert_eq!(service.end("-KILL"), None);
            service.again();
        }
        service.ok(&["sandbox", "resume", &sandbox]);
        let after = lines(&service);
        assert!(after > before, "round {round}: {before} then {after}");
        before = after;
    }
    let whole = "awk '$1 != NR - 1 { bad = 1 } END { print bad + 0 }' /persist/log";
    assert_eq!(said(&service, &sandbox, whole), "0\n");
    assert_eq!(said(&service, &sandbox, DIGESTS), digests);
    // What a paused sandbox had written is there when it ends without a resume.
    said(&service, &sandbox, "pkill -f '[p]ersist/log'; echo last > /persist/last");
    service.ok(&["sandbox", "pause", &sandbox]);
    service.ok(&["sandbox", "kill", &sandbox]);
    let next = service.create(&["--volume", "data"]);
    assert_eq!(said(&service, &next, "cat /persist/last"), "last\n");
    assert_eq!(said(&service, &next, DIGESTS), digests);
}

/// Begins a client command, kills the server after a moment, and starts it again.
#[track_caller]
fn cut_short(service: &mut Service, arguments: &[&str], pause_ms: u64) {
    let mut client = service.client(arguments);
    client.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut client = client.spawn().expect("it starts");
    std::thread::sleep(std::time::Duration::from_millis(pause_ms));
    assert_eq!(service.end("-KILL"), None);
    client.wait().expect("it ends");
    service.again();
}

/// What a volume is once nothing is under way with it; nothing where it is gone.
#[track_caller]
fn settled(service: &Service, volume: &str) -> Option<serde_json::Value> {
    until("nothing is under way", || {
        let left = left_by(&mut service.client(&["volume", "get", volume, "--json"]), None);
        if left.code != Some(0) {
            return Ok(None);
        }
        let found: serde_json::Value = serde_json::from_str(left.text()).expect("JSON");
        let lease = found["attachment"]["state"].as_str().unwrap_or("attached");
        let state = found["state"].as_str().expect("a state");
        match (state, lease) {
            ("ready" | "failed", "attached") => Ok(Some(found)),
            other => Err(format!("{other:?}")),
        }
    })
}

/// K17, S39: a server that is killed while it attaches, detaches, saves or
/// restores leaves a volume that is attached or free, and nothing half-made that
/// can be used.
#[test]
fn a_killed_server_leaves_no_volume_half_made() {
    let Some(mut service) = Service::start() else { return };
    service.ok(&["volume", "create", "data", "--size-mb", "64"]);
    let sandbox = service.create(&["--volume", "data"]);
    let digests = said(&service, &sandbox, FILL);
    let whole = service.ok(&["volume", "checkpoint", "data"]);
    for (round, pause_ms) in [0, 15, 40, 80, 150].into_iter().enumerate() {
        cut_short(&mut service, &["volume", "detach", "data", &sandbox], pause_ms);
        if settled(&service, "data").expect("it is there")["attachment"].is_object() {
            service.ok(&["volume", "detach", "data", &sandbox]);
        }
        cut_short(&mut service, &["volume", "attach", "data", &sandbox], pause_ms);
        if !settled(&service, "data").expect("it is there")["attachment"].is_object() {
            service.ok(&["volume", "attach", "data", &sandbox]);
        }
        assert_eq!(said(&service, &sandbox, DIGESTS), digests, "round {round}");

        cut_short(&mut service, &["volume", "checkpoint", "data"], pause_ms);
        // Held still by a server that is gone, it is let go by the guest itself.
        said(&service, &sandbox, "echo written > /persist/z && sync");
        let list = service.ok(&["volume", "checkpoints", "data", "--json"]);
        let list: Vec<serde_json::Value> = serde_json::from_str(&list).expect("JSON");
        assert!(list.iter().all(|one| one["state"] != "making"), "{list:?}");

        let copy = format!("copy-{round}");
        cut_short(&mut service, &["volume", "restore", &whole, &copy], pause_ms);
        if let Some(found) = settled(&service, &copy) {
            if found["state"] == "ready" {
                service.ok(&["volume", "attach", &copy, &sandbox, "--path", "/mnt/copy"]);
                let found = said(&service, &sandbox, "cd /mnt/copy && sha256sum d/x y");
                assert_eq!(found, digests, "round {round}");
                service.ok(&["volume", "detach", &copy, &sandbox]);
            }
            service.ok(&["volume", "delete", &copy]);
        }
    }
    let last = service.ok(&["volume", "checkpoint", "data"]);
    service.ok(&["volume", "restore", &last, "last"]);
    service.ok(&["volume", "attach", "last", &sandbox, "--path", "/mnt/last"]);
    let found = said(&service, &sandbox, "cd /mnt/last && sha256sum d/x y && cat z");
    assert_eq!(found, format!("{digests}written\n"));
}
