//! A sandbox that takes all it can gets no more than its own.
//!
//! Each test does its worst in one sandbox, with another beside it that must go
//! on working. Afterwards the first one either works again or has ended with a
//! reason; which of the two is said in each test.

use crate::{
    service::Service,
    site::{left_by, until},
};

/// Two sandboxes: one to misbehave in, one beside it.
fn neighbours() -> Option<(Service, String, String)> {
    let service = Service::start()?;
    let (bad, good) = (service.create(&[]), service.create(&[]));
    Some((service, bad, good))
}

#[track_caller]
fn works(service: &Service, sandbox: &str) {
    let left = service.shell(sandbox, "echo $((6 * 7)); echo x > /tmp/x && cat /tmp/x");
    assert_eq!((left.code, left.text()), (Some(0), "42\nx\n"), "{left:?}");
}

/// Works again, or has ended with a reason.
#[track_caller]
fn settles(service: &Service, sandbox: &str) {
    let outcome = until("it settles", || {
        let described = service.describe(sandbox);
        match described["state"].as_str() {
            Some("failed") if described["ending"]["detail"].is_string() => Ok("failed"),
            Some("running") => {
                let left = service.shell(sandbox, "echo alive");
                if left.text() == "alive\n" { Ok("running") } else { Err(format!("{left:?}")) }
            }
            _ => Err(described.to_string()),
        }
    });
    println!("{sandbox}: {outcome}");
}

/// S14
#[test]
fn a_processor_that_is_kept_busy_is_its_own() {
    let Some((service, bad, good)) = neighbours() else { return };
    let line = "for n in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; sleep 6; kill 0";
    std::thread::scope(|scope| {
        scope.spawn(|| service.shell(&bad, line));
        for _ in 0..5 {
            works(&service, &good);
        }
        // Inside, the API keeps answering too.
        assert_eq!(service.shell(&bad, "echo here").text(), "here\n");
    });
    works(&service, &bad);
}

/// S14
#[test]
fn memory_that_runs_out_is_its_own() {
    let Some((service, bad, good)) = neighbours() else { return };
    let line = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'";
    let left = service.shell(&bad, line);
    assert_eq!(left.code, Some(137), "{left:?}");
    works(&service, &good);
    works(&service, &bad);
}

/// S14
#[test]
fn a_fork_bomb_is_its_own() {
    let Some((service, bad, good)) = neighbours() else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bomb = "bomb() { bomb | bomb & }; bomb; sleep 20";
            let arguments = ["sandbox", "exec", "--timeout", "10s", &bad, "--", "bash", "-c", bomb];
            left_by(&mut service.client(&arguments), None)
        });
        for _ in 0..5 {
            works(&service, &good);
        }
    });
    settles(&service, &bad);
    works(&service, &bad);
}

/// S13, S14
#[test]
fn a_full_disk_is_its_own() {
    let Some((service, bad, good)) = neighbours() else { return };
    let line = "head -c 2G /dev/zero > /workspace/full; echo $?; rm /workspace/full";
    let left = service.shell(&bad, line);
    assert_eq!(left.text(), "1\n", "{left:?}");
    assert!(left.stderr.contains("No space left"), "{left:?}");
    works(&service, &good);
    works(&service, &bad);
}

/// S14
#[test]
fn a_console_that_is_flooded_fills_nothing() {
    let Some((service, bad, good)) = neighbours() else { return };
    let before = size(service.state.path());
    let line = "sudo -n timeout 5 sh -c 'yes flood | tee /dev/console /dev/kmsg > /dev/null'";
    service.shell(&bad, line);
    works(&service, &good);
    settles(&service, &bad);
    let grown = size(service.state.path()).saturating_sub(before);
    assert!(grown < 8 << 20, "the state folder grew by {grown} bytes");
    let logs = service.ok(&["sandbox", "logs", &bad]);
    assert!(!logs.is_empty() && logs.len() < 1 << 20, "{} bytes", logs.len());
}

/// Killing everything one may kill does not reach the guest's own processes.
#[test]
fn killing_everything_as_user_leaves_the_guest() {
    let Some((service, bad, good)) = neighbours() else { return };
    service.shell(&bad, "kill -9 -1");
    works(&service, &bad);
    works(&service, &good);
}

/// Root may kill the guest's helpers; they come back, or the sandbox fails.
#[test]
fn killing_everything_as_root_is_survived_or_told() {
    let Some((service, bad, good)) = neighbours() else { return };
    service.shell(&bad, "sudo -n bash -c 'kill -9 -1'");
    settles(&service, &bad);
    works(&service, &good);
}

/// A process that writes for ever and that nobody reads holds nobody up.
#[test]
fn output_that_nobody_reads_holds_nobody_up() {
    let Some((service, bad, good)) = neighbours() else { return };
    service.shell(&bad, "(yes > /dev/null & yes | cat > /dev/null &) ; true");
    let arguments = ["sandbox", "exec", &bad, "--", "yes"];
    let mut command = service.client(&arguments);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("starts");
    std::thread::sleep(std::time::Duration::from_secs(2));
    works(&service, &bad);
    works(&service, &good);
    child.kill().expect("killed");
    child.wait().expect("gone");
    works(&service, &bad);
}

/// A busy sandbox is seen to be busy from outside, and says how full it is.
#[test]
fn how_busy_a_sandbox_is_can_be_seen() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let stats = || -> serde_json::Value {
        let text = service.ok(&["sandbox", "stats", "--json", &sandbox]);
        serde_json::from_str(&text).expect("JSON")
    };
    stats();
    service.shell(&sandbox, "head -c 20M /dev/zero > /workspace/x; (timeout 60 sh -c 'while :; do :; done') > /dev/null 2>&1 &");
    let busy = until("it is busy", || {
        let now = stats();
        let percent = now["cpu_percent"].as_f64().unwrap_or(0.0);
        if percent > 20.0 { Ok(now) } else { Err(now.to_string()) }
    });
    let number = |name: &str| busy[name].as_u64().unwrap_or_else(|| panic!("{name}: {busy}"));
    assert!(number("host_memory_bytes") > 20 << 20, "{busy}");
    assert!(number("disk_used_bytes") >= 20 << 20, "{busy}");
    assert!(number("disk_used_bytes") <= number("disk_total_bytes"), "{busy}");
    assert!(number("memory_used_bytes") < number("memory_total_bytes"), "{busy}");
    assert!(number("processes") >= 1, "{busy}");
    let table = service.ok(&["sandbox", "stats", &sandbox]);
    assert!(table.contains("processes"), "{table}");
}

fn size(folder: &std::path::Path) -> u64 {
    let mut total = 0;
    crate::site::walk(folder, &mut |path| {
        total += std::fs::symlink_metadata(path).map(|data| data.len()).unwrap_or(0);
    });
    total
}
