//! Attacks on the file API and on what output may cost, in kinds and not in
//! strings: the spellings are made here, and each is tried on a real sandbox.

use std::{fs, process::Command};

use crate::{
    service::Service,
    site::{Left, left_by},
};

/// An HTTP request by a program that sends a path as it is told.
fn curl(service: &Service, arguments: &[&str], path: &str) -> (u16, String) {
    let authorization = format!("Authorization: Bearer {}", service.token());
    let mut command = Command::new("curl");
    command.args(["-sS", "--path-as-is", "--max-time", "150", "-w", "\n%{http_code}"]);
    command.args(["-H", &authorization]).args(arguments).arg(format!("{}{path}", service.url()));
    let left = left_by(&mut command, None);
    let text = String::from_utf8_lossy(&left.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or_else(|| panic!("{left:?}"));
    (status.parse().unwrap_or_else(|_| panic!("{left:?}")), body.to_owned())
}

/// Every spelling of a path that some server has taken for another path.
fn spellings(path: &str) -> Vec<String> {
    let up = "../".repeat(12);
    let path = path.trim_start_matches('/');
    let plain = [
        format!("/{path}"),
        format!("{up}{path}"),
        format!("/workspace/{up}{path}"),
        format!("//{path}"),
        format!("/./{path}"),
        format!("/workspace/..;/{path}"),
        format!("..\\..\\{path}"),
        format!("/proc/self/root/{path}"),
        format!("/proc/1/root/{path}"),
        format!("/dev/../{path}"),
        format!("file:///{path}"),
        format!("{path}\0.png"),
        format!("~/{up}{path}"),
    ];
    // As a URL carries it: as it is where that is possible, everything escaped,
    // only dots and slashes escaped, and escaped twice.
    let escaped = |text: &str, which: &dyn Fn(u8) -> bool| {
        let piece = |byte: u8| match which(byte) {
            true => format!("%{byte:02x}"),
            false => char::from(byte).to_string(),
        };
        text.bytes().map(piece).collect::<String>()
    };
    let needed = |byte: u8| !byte.is_ascii_alphanumeric() && !b"./-_~".contains(&byte);
    let mut all = Vec::new();
    for text in &plain {
        all.push(escaped(text, &needed));
        all.push(escaped(text, &|_| true));
        all.push(escaped(text, &|byte| needed(byte) || b"./".contains(&byte)));
        all.push(escaped(text, &|byte| needed(byte) || b"./".contains(&byte)).replace('%', "%25"));
    }
    // Longer forms of a dot and a slash than UTF-8 allows.
    all.push(format!("%c0%ae%c0%ae%c0%af{path}"));
    all.push(format!("%e0%80%ae%e0%80%ae/{path}"));
    all
}

/// F-01: a file of the host is not reached by any spelling of its path, for
/// reading, writing or removing, below the API and below the edge.
#[test]
fn no_spelling_of_a_path_reaches_the_host() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let folder = tempfile::tempdir().expect("folder");
    let canary = folder.path().join("canary");
    fs::write(&canary, "the host's own").expect("written");
    let token = service.state.path().join("token");
    for path in [&canary, &token] {
        let kept = fs::read_to_string(path).expect("there");
        for spelt in spellings(path.to_str().expect("text")) {
            let base = format!("/v1/sandboxes/{sandbox}");
            let read = curl(&service, &[], &format!("{base}/files?path={spelt}"));
            assert!([400, 403, 404].contains(&read.0), "{spelt}: {read:?}");
            assert!(!read.1.contains(kept.trim()), "{spelt}: {read:?}");
            let edge = curl(&service, &[], &format!("{base}/guest/files?path={spelt}"));
            assert!(edge.0 >= 400 && !edge.1.contains(kept.trim()), "{spelt}: {edge:?}");
        }
        // Written inside, it is a file inside.
        for spelt in spellings(path.to_str().expect("text")).iter().step_by(5) {
            let kind = ["-X", "POST", "-H", "Content-Type: application/octet-stream"];
            let written = [&kind[..], &["--data-binary", "not the host's"]].concat();
            let files = format!("/v1/sandboxes/{sandbox}/files?path={spelt}");
            curl(&service, &written, &files);
            curl(&service, &["-X", "DELETE"], &files);
            assert_eq!(fs::read_to_string(path).expect("there"), kept, "{spelt}");
        }
    }
    // The same in the path of the request itself: what is not a route is none.
    for spelt in spellings(canary.to_str().expect("text")).iter().filter(|one| !one.contains('\\'))
    {
        let at = format!("/v1/sandboxes/{sandbox}/files/{spelt}");
        let (status, body) = curl(&service, &[], &at);
        assert!(status >= 400 && !body.contains("the host's own"), "{at}: {status} {body}");
    }
}

/// F-02: links that a sandbox makes lead to its own files, whoever follows them,
/// and a file that only root inside may read stays unread.
#[test]
fn links_lead_to_the_sandboxes_own_files() {
    let Some(service) = Service::start() else { return };
    let (sandbox, sibling) = (service.create(&[]), service.create(&[]));
    let folder = tempfile::tempdir().expect("folder");
    let canary = folder.path().join("canary");
    fs::write(&canary, "the host's own").expect("written");
    let canary = canary.to_str().expect("text");
    service.shell(&sibling, "echo sibling > /workspace/secret");
    let line = format!(
        "cd /workspace && echo inside > secret && mkdir d && ln -s / d/root && \
         ln -s /etc/hostname leak && ln -s {canary} host && ln -s ../../../../../../{canary} up && \
         ln -s /proc/1/root/{canary} through && ln -s loop loop && ln -s secret chain1 && \
         ln -s chain1 chain2 && mkfifo pipe"
    );
    let made = service.shell(&sandbox, &line);
    assert_eq!(made.code, Some(0), "{made:?}");
    let get = |path: &str| {
        curl(&service, &[], &format!("/v1/sandboxes/{sandbox}/files?path=/workspace/{path}"))
    };
    let name = service.shell(&sandbox, "hostname").text().to_owned();
    assert_eq!(get("leak"), (200, name.clone()));
    assert_eq!(get("d/root/etc/hostname"), (200, name));
    assert_eq!(get("chain2"), (200, "inside\n".to_owned()));
    assert_eq!(get("d/root/workspace/secret").1, "inside\n");
    for path in ["host", "up", "through", "loop", "pipe", "d/root/etc/shadow"] {
        let (status, body) = get(path);
        assert!(status >= 400, "{path}: {status} {body}");
        assert!(!body.contains("the host's own"), "{path}: {body}");
    }
    // A write through a link is one inside; the host's and the sibling's stay.
    let kind = ["-X", "POST", "-H", "Content-Type: application/octet-stream"];
    let written = [&kind[..], &["--data-binary", "changed"]].concat();
    for path in ["host", "up", "through", "chain2", "leak", "loop"] {
        let at = format!("/v1/sandboxes/{sandbox}/files?path=/workspace/{path}");
        curl(&service, &written, &at);
        curl(&service, &["-X", "DELETE"], &at);
    }
    assert_eq!(fs::read_to_string(canary).expect("there"), "the host's own");
    assert_eq!(service.shell(&sibling, "cat /workspace/secret").text(), "sibling\n");
    let shadow = curl(
        &service,
        &written,
        &format!("/v1/sandboxes/{sandbox}/files?path=/workspace/d/root/etc/shadow"),
    );
    assert!(shadow.0 >= 400, "{shadow:?}");
}

/// output without end, of every kind, is cut and said to be cut, and costs
/// the server neither memory nor disk, by exec, by a stream and by the console.
#[test]
fn output_without_end_costs_little() {
    let Some(service) = Service::start() else { return };
    let sandbox = service.create(&[]);
    let exec = |line: &str, seconds: u32| -> serde_json::Value {
        let body = serde_json::json!({ "command": line, "timeout_seconds": seconds }).to_string();
        let arguments = ["-X", "POST", "-H", "Content-Type: application/json", "-d", &body];
        let (status, body) = curl(&service, &arguments, &format!("/v1/sandboxes/{sandbox}/exec"));
        assert_eq!(status, 200, "{line}: {body}");
        serde_json::from_str(&body).expect("JSON")
    };
    exec("true", 60);
    let memory = |name: &str| {
        let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") / 1024
    };
    let disk = || {
        let mut total = 0;
        crate::site::walk(service.state.path(), &mut |path| {
            total += fs::symlink_metadata(path).map(|data| data.len()).unwrap_or(0);
        });
        total
    };
    fs::write(format!("/proc/{}/clear_refs", service.pid()), "5").expect("reset");
    let (before, disk_before) = (memory("VmRSS:"), disk());
    for line in [
        "yes | head -c 16M",
        "head -c 16M /dev/zero",
        "head -c 16M /dev/zero | tr '\\0' x",
        "head -c 16M /dev/urandom",
        "head -c 16M /dev/zero | tr '\\0' '\\033' >&2",
    ] {
        let answer = exec(line, 120);
        let (stdout, stderr) = (&answer["truncated"]["stdout"], &answer["truncated"]["stderr"]);
        assert!(stdout == true || stderr == true, "{line}: {}", answer["truncated"]);
        assert_eq!(answer["exit_code"], 0, "{line}");
    }
    let endless = exec("yes", 5);
    assert_eq!(endless["timed_out"], true);
    // A stream that is followed for a while and left.
    for line in ["yes", "cat /dev/zero"] {
        let follow =
            format!("timeout 3 {} | head -c 32M | wc -c", stream(&service, &sandbox, line));
        let left: Left = left_by(Command::new("bash").args(["-c", &follow]), None);
        assert!(left.text().trim().parse::<u64>().is_ok_and(|bytes| bytes > 0), "{left:?}");
    }
    service
        .shell(&sandbox, "sudo -n timeout 5 sh -c 'cat /dev/zero | tr \"\\0\" x > /dev/console'");
    assert!(service.ok(&["sandbox", "logs", &sandbox]).len() < 1 << 20);
    let rise = memory("VmHWM:").saturating_sub(before);
    assert!(rise < 64, "the server grew by {rise} MiB");
    let grown = disk().saturating_sub(disk_before);
    assert!(grown < 8 << 20, "the state folder grew by {grown} bytes");
}

/// The client of a stream, as a shell line.
fn stream(service: &Service, sandbox: &str, line: &str) -> String {
    let command = service.client(&["sandbox", "exec", sandbox, "--", "bash", "-c", line]);
    let variables = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}='{}'", name.to_str()?, value?.to_str()?)));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| format!("'{}'", word.to_str().expect("text")));
    let all: Vec<_> = variables.chain(words).collect();
    format!("env {}", all.join(" "))
}
