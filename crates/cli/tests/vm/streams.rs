//! Bytes in and out.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::Stdio,
    time::Duration,
};

use domain::image::digest::Digest;

use crate::{
    service::Service,
    site::{left_by, state, until},
};

/// Output that is long against every buffer on its way: 192 MiB, or 1 GiB.
fn long() -> u64 {
    crate::site::full(192 << 20, 1 << 30)
}

/// Bytes of every value, in no order that text has.
fn noise(length: usize) -> Vec<u8> {
    let mut word: u64 = 0x9e37_79b9_7f4a_7c15;
    let next = |_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()[3]
    };
    (0..length).map(next).collect()
}

/// S90
#[test]
fn bytes_come_back_as_they_went_in() {
    let Some(state) = state() else { return };
    let input = noise(3 << 20);
    let left = left_by(&mut state.run(&["-i", "--", "cat"]), Some(&input));
    assert_eq!((left.code, left.stderr.as_str()), (Some(0), ""));
    assert!(left.stdout == input, "{} of {} bytes", left.stdout.len(), input.len());
    let left = left_by(&mut state.run(&["-i", "--", "sha256sum"]), Some(&input));
    assert!(left.text().starts_with(&Digest::of(&input).hex()), "{left:?}");
}

#[test]
fn without_being_asked_for_no_input_enters() {
    let Some(state) = state() else { return };
    let left = left_by(&mut state.run(&["--", "wc", "-c"]), Some(b"not for you"));
    assert_eq!((left.code, left.text().trim()), (Some(0), "0"));
}

#[test]
fn the_two_outputs_stay_apart() {
    let Some(state) = state() else { return };
    let left = left_by(&mut state.run(&["--", "sh", "-c", "echo one; echo two >&2"]), None);
    assert_eq!((left.text(), left.stderr.as_str()), ("one\n", "two\n"));
}

#[test]
fn a_reader_that_goes_away_ends_the_program() {
    let Some(state) = state() else { return };
    let mut child = state.run(&["--", "yes"]).stdout(Stdio::piped()).spawn().expect("starts");
    let mut first = [0; 2];
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut first).expect("read");
    drop(stdout);
    assert_eq!(child.wait().expect("ends").code(), Some(141));
    state.nothing_is_left_of(&state.sandboxes());
}

#[test]
fn a_terminal_has_a_size_and_takes_keys() {
    let Some(state) = state() else { return };
    let script = "stty size; tty; read -r line; echo \"got $line\"";
    let (mut keyboard, terminal) = terminal();
    keyboard.write_all(b"hello\n").expect("typed");
    let mut command = state.run(&["-i", "-t", "--", "bash", "-c", script]);
    let left = left_by(command.stdin(terminal), None);
    assert_eq!(left.code, Some(0), "{left:?}");
    let text = left.text().replace('\r', "");
    assert!(text.contains("24 80\n/dev/pts/"), "{text}");
    assert!(text.contains("got hello\n"), "{text}");
}

/// What somebody types on, and what a program has of it.
fn terminal() -> (File, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&keyboard).expect("granted");
    unlockpt(&keyboard).expect("unlocked");
    let path = ptsname(&keyboard, Vec::new()).expect("its name").into_string().expect("text");
    let terminal = File::options().read(true).write(true).open(path).expect("opened");
    (keyboard.into(), terminal)
}

/// The server's memory stays bounded while a reader takes its time.
#[test]
fn long_output_through_a_slow_reader_grows_nothing() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let idle = resident_mib(service.pid());
    let length = long();
    let line = format!("head -c {length} /dev/zero");
    let arguments = ["sandbox", "exec", &sandbox, "--", "bash", "-c", &line];
    let mut child = service.client(&arguments).stdout(Stdio::piped()).spawn().expect("starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    // Long enough for everything on the way to fill up.
    std::thread::sleep(Duration::from_secs(3));
    let (mut n_bytes, mut peak, mut client_peak) = (0, 0, 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n_read = stdout.read(&mut buffer).expect("read");
        if n_read == 0 {
            break;
        }
        assert!(buffer[..n_read].iter().all(|byte| *byte == 0));
        let before = n_bytes >> 26;
        n_bytes += n_read as u64;
        if n_bytes >> 26 != before {
            peak = peak.max(resident_mib(service.pid()));
            client_peak = client_peak.max(resident_mib(child.id()));
        }
    }
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    assert_eq!(n_bytes, length);
    println!("server: {idle} MiB idle, {peak} MiB at most; client: {client_peak} MiB at most");
    assert!(peak < idle + 64, "the server grew from {idle} to {peak} MiB");
    assert!(client_peak < 128, "the client grew to {client_peak} MiB");
}

/// An argument of 10 MiB is more than a kernel takes; the answer says so.
#[test]
fn an_argument_that_is_too_long_is_refused_with_a_reason() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let token = domain::secret::Secret::new(service.token());
    let client = api::client::Client::new(service.url(), &token).expect("a client");
    let id = sandbox.parse().expect("an id");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for length in [200 << 10, 10 << 20] {
        let exec = api::exec::ExecRequest {
            cmd: Some(vec!["echo".to_owned(), "x".repeat(length)]),
            ..Default::default()
        };
        let error = runtime.block_on(client.exec(&id, &exec)).expect_err("refused");
        let api::client::ClientError::Refused(problem) = &error else { panic!("{error:?}") };
        assert!((400..500).contains(&problem.status), "{problem:?}");
        println!("{length} bytes: {problem}");
    }
    assert_eq!(service.shell(&sandbox, "echo well").text(), "well\n");
}

fn resident_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

#[test]
fn input_through_a_server_is_taken_to_its_end() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let input = noise(2 << 20);
    let mut command = service.client(&["sandbox", "exec", "-i", &sandbox, "--", "sha256sum"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    for piece in input.chunks(100_000) {
        stdin.write_all(piece).expect("taken");
    }
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with(&Digest::of(&input).hex()));
}

/// A client that is killed takes its program with it, unless that was not wanted.
#[test]
fn a_program_ends_with_its_client_unless_told_otherwise() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    for (word, left) in [("kill", 0), ("continue", 1)] {
        let arguments =
            ["sandbox", "exec", "--on-disconnect", word, &sandbox, "--", "sleep", "4321"];
        let mut child = service.client(&arguments).spawn().expect("starts");
        let count = || {
            let found = service.shell(&sandbox, "pgrep -c -x sleep || true");
            found.text().trim().parse::<u32>().expect("a number")
        };
        until("it runs", || if count() == 1 { Ok(()) } else { Err("not yet".to_owned()) });
        child.kill().expect("killed");
        child.wait().expect("reaped");
        if left == 0 {
            until("it ends", || if count() == 0 { Ok(()) } else { Err("it runs on".to_owned()) });
        } else {
            std::thread::sleep(Duration::from_secs(2));
        }
        assert_eq!(count(), left, "{word}");
    }
}
