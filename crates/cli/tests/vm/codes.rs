//! How a run ends, as an exit code.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    service::Service,
    site::{left_by, state},
};

#[test]
fn the_exit_code_is_the_programs() {
    let Some(state) = state() else { return };
    for (arguments, code) in [
        (&["--", "true"][..], 0),
        (&["--", "sh", "-c", "exit 3"], 3),
        (&["--", "sh", "-c", "exit 255"], 255),
        (&["--", "sh", "-c", "kill -KILL $$"], 137),
        (&["--", "sh", "-c", "kill -SEGV $$"], 139),
    ] {
        let left = left_by(&mut state.run(arguments), None);
        assert_eq!((left.code, left.stderr.as_str()), (Some(code), ""), "{arguments:?} {left:?}");
    }
}

#[test]
fn what_cannot_be_run_is_told_as_a_shell_does() {
    let Some(state) = state() else { return };
    for (arguments, code, said) in [
        (&["--", "no-such-program"][..], 127, "no-such-program"),
        (&["--", "/no/such/program"], 127, "no such file"),
        (&["--", "/etc/passwd"], 126, "permission denied"),
        (&["--cwd", "/no/such/folder", "--", "true"], 125, "does not exist"),
        (&["--user", "nobody", "--", "true"], 125, "nobody"),
        (&["--template", "nothing", "--", "true"], 125, "no image nothing"),
        (&["--cpus", "1", "--memory-mb", "99999999", "--", "true"], 125, "8192 mib"),
    ] {
        let left = left_by(&mut state.run(arguments), None);
        assert_eq!(left.code, Some(code), "{arguments:?} {left:?}");
        assert!(left.stderr.to_lowercase().contains(said), "{said:?} {left:?}");
    }
}

/// U19, K16
#[test]
fn memory_beyond_the_host_is_refused_before_anything_is_made() {
    let Some(state) = state() else { return };
    let mut command = state.run(&["--cpus", "1", "--memory-mb", "4000000", "--", "true"]);
    let left = left_by(command.env("COLDFRAME_MAX_MEMORY_MB", "5000000"), None);
    assert_eq!(left.code, Some(125), "{left:?}");
    assert!(left.stderr.contains("memory"), "{left:?}");
}

#[test]
fn a_time_limit_ends_a_program_whose_input_stays_open() {
    let Some(state) = state() else { return };
    let mut command = state.run(&["--timeout", "2s", "-i", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().expect("starts");
    let held = child.stdin.take();
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(124));
    let said = "coldframe: error: the program was ended after 2s (--timeout)\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    assert!(begun.elapsed() >= Duration::from_secs(2));
    drop(held);
}

/// S88
#[test]
fn json_has_everything_about_the_end() {
    let Some(state) = state() else { return };
    let script = r"printf 'a\n'; printf '\377' >&2; exit 4";
    let left = left_by(&mut state.run(&["--json", "--", "sh", "-c", script]), None);
    assert_eq!(left.code, Some(4), "{left:?}");
    let value: serde_json::Value = serde_json::from_str(left.text()).expect("JSON");
    assert_eq!(value["stdout"], "a\n");
    assert_eq!(value["stderr_base64"], "/w==");
    assert_eq!(value["exit_code"], 4);
    assert_eq!(value["timed_out"], false);
    assert!(value["duration_ms"].as_u64().is_some());
    let left = left_by(&mut state.run(&["--json", "--timeout", "1s", "--", "sleep", "60"]), None);
    let value: serde_json::Value = serde_json::from_str(left.text()).expect("JSON");
    assert_eq!((left.code, &value["timed_out"]), (Some(124), &true.into()));
}

#[test]
fn signals_reach_the_program_and_twice_means_now() {
    let Some(state) = state() else { return };
    for (trap, signals, code) in [
        ("trap 'exit 9' TERM", &["-TERM"][..], 9),
        ("trap 'exit 8' INT", &["-INT"], 8),
        ("trap '' INT", &["-INT", "-INT"], 130),
    ] {
        let script = format!("{trap}; echo ready; while :; do sleep 0.1; done");
        let mut command = state.run(&["--", "bash", "-c", &script]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("read");
        assert_eq!(line, "ready\n");
        for signal in signals {
            let pid = child.id().to_string();
            let sent = std::process::Command::new("kill").args([signal, pid.as_str()]).status();
            assert!(sent.expect("kill runs").success());
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(child.wait().expect("ends").code(), Some(code), "{trap}");
    }
    state.nothing_is_left_of(&state.sandboxes());
}

/// What a client is told, by a real server, and what to do about it.
#[test]
fn a_sandbox_that_cannot_be_used_has_a_way_forward() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let exec = ["sandbox", "exec", "--timeout", "1s", &sandbox, "--", "sleep", "60"];
    let left = left_by(&mut service.client(&exec), None);
    let said = "coldframe: error: the program was ended after 1s (--timeout)\n";
    assert_eq!((left.code, left.stderr.as_str()), (Some(124), said));
    service.ok(&["sandbox", "kill", &sandbox]);
    let left = service.shell(&sandbox, "true");
    assert_eq!(left.code, Some(125), "{left:?}");
    assert!(left.stderr.contains("`coldframe sandbox create`"), "{left:?}");
    let left = service.shell("sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa", "true");
    assert_eq!(left.code, Some(125), "{left:?}");
    assert!(left.stderr.contains("`coldframe sandbox list`"), "{left:?}");
    let create = ["sandbox", "create", "--template", "nothing"];
    let left = left_by(&mut service.client(&create), None);
    assert_eq!(left.code, Some(2), "{left:?}");
    assert!(left.stderr.contains("`coldframe image list`"), "{left:?}");
}
