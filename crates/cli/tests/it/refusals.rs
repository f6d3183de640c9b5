//! What the program refuses, with which code, and what it says to do.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::program::{as_nobody, coldframe, run, token};

const SANDBOX: &str = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";

/// Any key; nothing here is signed with it.
const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
    -----END PUBLIC KEY-----\n";

/// The exit code of a command line, and what it says on standard error.
#[track_caller]
fn check(arguments: &[&str], code: i32, said: &[&str]) {
    let state = tempfile::tempdir().expect("folder");
    let left = run(&mut coldframe(state.path(), arguments));
    assert_eq!(left.code, Some(code), "{left:?}");
    for text in said {
        assert!(left.stderr.contains(text), "{text:?}: {left:?}");
    }
    assert_eq!(left.stdout, "", "a failure leaves nothing in a pipe");
}

#[test]
fn a_mistake_on_the_command_line_is_told_from_a_programs_own_code() {
    check(&["run", "--nope", "--", "true"], 122, &["--nope"]);
    check(&["run"], 122, &["COMMAND"]);
    check(&["run", "--timeout", "soon", "--", "true"], 122, &["30s"]);
    check(&["run", "--cpus", "2", "--", "true"], 122, &["--memory-mb"]);
    check(&["run", "--size", "huge", "--", "true"], 122, &["small, medium or large"]);
    check(&["run", "--env", "1A=x", "--", "true"], 122, &["not a variable name"]);
    check(&["run", "--env", "NOT_SET_HERE", "--", "true"], 122, &["no such variable"]);
    check(&["run", "--template", "../x", "--", "true"], 122, &["--template"]);
    check(&["sandbox", "exec", "sbx_x", "--", "true"], 122, &["sandbox id"]);
    check(&["sandbox", "list", "--nope"], 2, &["--nope"]);
    check(&["token", "create", "--scopes", "everything"], 2, &["not a scope"]);
    check(&["nope"], 2, &["nope"]);
    // The flag that every command has may stand before its name.
    check(&["--config", "/dev/null", "run", "badarg"], 122, &["badarg"]);
    check(&["--config=/dev/null", "sandbox", "exec", "sbx_x", "--", "true"], 122, &["sandbox id"]);
    check(&["--config", "/nowhere/f", "run", "--", "true"], 122, &["/nowhere/f"]);
    check(&["--config", "/dev/null", "sandbox", "list", "--nope"], 2, &["--nope"]);
}

/// Nobody can type on it, so the program would wait for ever.
#[test]
fn a_terminal_is_not_promised_where_there_is_none() {
    for arguments in [
        &["run", "-it", "--", "bash", "-l"][..],
        &["run", "-t", "--", "true"],
        &["sandbox", "exec", "-it", SANDBOX, "--", "bash"],
    ] {
        check(arguments, 122, &["-t needs a terminal on standard input; use -i without -t"]);
    }
    let way_on = format!("coldframe sandbox exec -i {SANDBOX} -- bash");
    check(&["sandbox", "shell", SANDBOX], 122, &["terminal on standard input", &way_on]);
}

/// One form for every failure, the parser's included.
#[test]
fn every_failure_begins_alike() {
    for (arguments, code) in [
        (&["nope"][..], 2),
        (&[], 2),
        (&["sandbox", "list", "--state", "runing"], 2),
        (&["run"], 122),
        (&["run", "--size", "3", "--", "x"], 122),
        (&["run", "--cpus", "99", "--memory-mb", "512", "--", "x"], 122),
        (&["sandbox", "exec", "\x1b[2J", "--", "x"], 122),
    ] {
        let state = tempfile::tempdir().expect("folder");
        let left = run(&mut coldframe(state.path(), arguments));
        assert_eq!(left.code, Some(code), "{arguments:?} {left:?}");
        assert!(left.stderr.starts_with("coldframe: error: "), "{arguments:?} {left:?}");
        assert!(!left.stderr.contains('\x1b'), "{arguments:?} {left:?}");
    }
    let state = tempfile::tempdir().expect("folder");
    let left = run(&mut coldframe(state.path(), &["image", "list", "--json", "--nope"]));
    let value: serde_json::Value = serde_json::from_str(&left.stdout).expect("JSON");
    assert_eq!(value["error"]["code"], "usage");
}

#[test]
fn a_program_without_the_separator_is_told_of_it() {
    check(&["run", "python3", "-c", "print(1)"], 122, &["coldframe run -- python3 …"]);
    check(
        &["sandbox", "exec", SANDBOX, "ls", "/"],
        122,
        &["put `--` before the program: coldframe sandbox exec SANDBOX -- ls …"],
    );
}

#[test]
fn what_cannot_be_asked_for_is_said_in_the_callers_words() {
    for (arguments, said) in [
        (&["create", "--timeout", "2h"][..], "--timeout must be between 10s and 1h"),
        (&["create", "--timeout", "9s"], "--timeout must be between 10s and 1h"),
        (&["create", "--cpus", "99", "--memory-mb", "512"], ": --cpus must be 1 to 16\n"),
        (&["create", "--cpus", "1", "--memory-mb", "1"], "--memory-mb must be at least 256"),
        (&["list", "--state", "runing"], "provisioning, running"),
        (&["list", "--url", "foo"], "\"foo\" is not a URL"),
        (&["list", "--url", "ftp://foo"], "is not a URL"),
    ] {
        let arguments: Vec<_> = ["sandbox"].iter().chain(arguments).copied().collect();
        check(&arguments, 2, &[said]);
    }
}

/// The content of a file is not shown, whatever it is.
#[test]
fn what_is_no_archive_is_refused_in_one_line() {
    let state = tempfile::tempdir().expect("folder");
    fs::create_dir(state.path().join("images")).expect("made");
    fs::write(state.path().join("images/trusted.pub"), PUBLIC_KEY).expect("written");
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03not deflate at all".to_vec();
    for content in [b"a,b\n1,\x1b[2J\n".repeat(200), b"a,b\n".to_vec(), gzip] {
        let file = state.path().join("data.csv");
        fs::write(&file, content).expect("written");
        let path = file.to_str().expect("text");
        let left = run(&mut coldframe(state.path(), &["image", "import", path]));
        assert_eq!(left.code, Some(1), "{left:?}");
        let said = format!("coldframe: error: {path} is not a release archive (tar or tar.gz)\n");
        assert_eq!(left.stderr, said);
    }
}

#[test]
fn both_ends_of_a_copy_cannot_be_on_one_side() {
    let state = tempfile::tempdir().expect("folder");
    let mut command = coldframe(state.path(), &["sandbox", "cp", "a", "b"]);
    let left = run(command.env("COLDFRAME_TOKEN", token()));
    assert_eq!(left.code, Some(2), "{left:?}");
    assert!(left.stderr.contains("SANDBOX:PATH"), "{left:?}");
}

#[test]
fn every_mistake_in_the_configuration_is_told_at_once() {
    let state = tempfile::tempdir().expect("folder");
    let file = state.path().join("config.toml");
    fs::write(&file, "listne = \"x\"\nmax_cpus = 0\n").expect("written");
    let file = file.to_str().expect("text");
    let left = run(&mut coldframe(state.path(), &["--config", file, "sandbox", "list"]));
    assert_eq!(left.code, Some(2), "{left:?}");
    assert!(left.stderr.contains("listne") && left.stderr.contains("max_cpus"), "{left:?}");
    let left = run(&mut coldframe(state.path(), &["--config", "/nonexistent", "image", "list"]));
    assert_eq!(left.code, Some(2), "{left:?}");
}

#[test]
fn a_server_that_is_not_there_has_a_code_of_its_own() {
    let state = tempfile::tempdir().expect("folder");
    for (arguments, code) in [
        (&["sandbox", "list", "--url", "http://127.0.0.1:1"][..], 3),
        (&["sandbox", "exec", "--url", "http://127.0.0.1:1", SANDBOX, "--", "true"], 123),
        (&["token", "list", "--url", "http://127.0.0.1:1"], 3),
    ] {
        let left = run(coldframe(state.path(), arguments).env("COLDFRAME_TOKEN", token()));
        assert_eq!(left.code, Some(code), "{left:?}");
        assert!(left.stderr.contains("coldframe serve"), "{left:?}");
    }
}

#[test]
fn a_failure_is_json_where_json_was_asked_for() {
    let state = tempfile::tempdir().expect("folder");
    let arguments = ["sandbox", "list", "--json", "--url", "http://127.0.0.1:1"];
    let left = run(coldframe(state.path(), &arguments).env("COLDFRAME_TOKEN", token()));
    let value: serde_json::Value = serde_json::from_str(&left.stdout).expect("JSON");
    assert_eq!(value["error"]["code"], "unreachable");
    assert!(value["error"]["detail"].as_str().is_some_and(|text| text.contains("127.0.0.1:1")));
}

#[test]
fn a_token_is_needed_checked_and_never_shown() {
    let state = tempfile::tempdir().expect("folder");
    let left = run(&mut coldframe(state.path(), &["sandbox", "list"]));
    assert_eq!(left.code, Some(2), "{left:?}");
    assert!(left.stderr.contains("COLDFRAME_TOKEN"), "{left:?}");
    let mut command = coldframe(state.path(), &["sandbox", "list"]);
    let left = run(command.env("COLDFRAME_TOKEN", "coldframe_hunter2"));
    assert_eq!(left.code, Some(2), "{left:?}");
    assert!(!left.stderr.contains("hunter2"), "{left:?}");
}

#[test]
fn a_token_file_that_others_can_read_is_refused() {
    let state = tempfile::tempdir().expect("folder");
    let file = state.path().join("token");
    fs::write(&file, token()).expect("written");
    for (mode, code) in [(0o644, 2), (0o640, 2), (0o600, 3)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("mode");
        // By name, and as what a client on the server's machine falls back to.
        let path = file.to_str().expect("text");
        for arguments in [
            &["sandbox", "list", "--url", "http://127.0.0.1:1", "--token-file", path][..],
            &["sandbox", "list", "--url", "http://127.0.0.1:1"],
        ] {
            let left = run(&mut coldframe(state.path(), arguments));
            assert_eq!(left.code, Some(code), "{mode:o} {left:?}");
            assert_eq!(left.stderr.contains("chmod 600"), code == 2, "{left:?}");
        }
    }
}

#[test]
fn the_local_token_is_not_sent_elsewhere() {
    let state = tempfile::tempdir().expect("folder");
    let file = state.path().join("token");
    fs::write(&file, token()).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
    let url = "http://coldframe.invalid:7070";
    let left = run(&mut coldframe(state.path(), &["sandbox", "list", "--url", url]));
    assert_eq!(left.code, Some(2), "{left:?}");
    assert!(left.stderr.contains("no token"), "{left:?}");
}

#[test]
fn without_root_there_is_a_way_forward() {
    let state = tempfile::tempdir().expect("folder");
    for (arguments, code) in [(&["run", "--", "true"][..], 125), (&["serve"], 1)] {
        let left = run(&mut as_nobody(state.path(), arguments));
        assert_eq!(left.code, Some(code), "{left:?}");
        assert!(left.stderr.contains("needs root") && left.stderr.contains("sudo"), "{left:?}");
        assert!(left.stderr.contains("coldframe sandbox"), "{left:?}");
    }
}

#[test]
fn without_an_image_a_run_says_how_to_get_one() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let state = tempfile::tempdir().expect("folder");
    let left = run(&mut coldframe(state.path(), &["run", "--", "true"]));
    assert_eq!(left.code, Some(125), "{left:?}");
    assert!(left.stderr.contains("coldframe doctor"), "{left:?}");
}
