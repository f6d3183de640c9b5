//! `process.Process`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use guest_protocol::{
    connect::{Code, Error},
    control::{Request, Response},
    process::Empty,
};
use serde_json::{Value, json};

use crate::{
    guest,
    host::{Host, Messages},
};

/// Everything a process said, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: String,
    pub(crate) end: Value,
    pub(crate) error: Option<Error>,
}

pub(crate) async fn start(host: &Host, headers: &[(&str, &str)], message: &Value) -> Messages {
    host.stream("/process.Process/Start", headers, message).await
}

/// Reads the pid from the first message.
pub(crate) async fn pid(messages: &mut Messages) -> u64 {
    let first = messages.next().await.expect("a start event");
    first["event"]["start"]["pid"].as_u64().expect("a pid")
}

/// Reads to the end; the start may have been read already.
pub(crate) async fn finish(messages: &mut Messages) -> Run {
    let mut run = Run::default();
    loop {
        match messages.next().await {
            Ok(message) => {
                let event = &message["event"];
                add(&mut run.stdout, &event["data"]["stdout"]);
                add(&mut run.stderr, &event["data"]["stderr"]);
                add(&mut run.terminal, &event["data"]["pty"]);
                if event["end"].is_object() {
                    run.end = event["end"].clone();
                }
            }
            Err(error) => {
                run.error = error;
                return run;
            }
        }
    }
}

fn add(text: &mut String, piece: &Value) {
    if let Some(piece) = piece.as_str() {
        text.push_str(&String::from_utf8_lossy(&STANDARD.decode(piece).expect("base64")));
    }
}

pub(crate) fn shell(script: &str) -> Value {
    json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script] } })
}

pub(crate) async fn run(host: &Host, script: &str) -> Run {
    finish(&mut start(host, &[], &shell(script)).await).await
}

fn selector(pid: u64) -> Value {
    json!({ "pid": pid })
}

async fn input(host: &Host, pid: u64, kind: &str, text: &str) -> Result<Empty, Error> {
    let message = json!({ "process": selector(pid), "input": { kind: STANDARD.encode(text) } });
    host.call("/process.Process/SendInput", &message).await
}

async fn signal(host: &Host, pid: u64, signal: &str) -> Result<Empty, Error> {
    let message = json!({ "process": selector(pid), "signal": signal });
    host.call("/process.Process/SendSignal", &message).await
}

#[tokio::test]
async fn a_process_runs_and_its_output_and_end_come_back() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let run = run(&host, "echo out; echo err >&2; exit 3").await;
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(run.end["exitCode"], 3);
    assert_eq!(run.end["status"], "exit status 3");
    assert_eq!(run.error, None);
}

/// K2, L34: the ordinary account, its home, which is its own, and its
/// environment; nothing of ours.
#[tokio::test]
async fn a_process_has_the_account_and_the_environment_it_should() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let message = json!({ "process": {
        "cmd": "sh",
        "args": ["-c", "mkdir -p ~/.cache/x && id -u; id -g; pwd; umask; env | sort"],
        "envs": { "BOTH": "caller", "MINE": "1" },
    }});
    let run = finish(&mut start(&host, &[], &message).await).await;
    let expected = "1000\n1000\n/home/user\n0022\nBOTH=caller\nFROM=sandbox\nHOME=/home/user\n\
                    LOGNAME=user\nMINE=1\n";
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
    assert!(run.stdout.contains("\nUSER=user\n") && !run.stdout.contains("CARGO"));
}

#[tokio::test]
async fn a_process_of_an_account_that_is_not_listed_is_refused() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    for (user, code) in [("other:", Code::PermissionDenied), ("ghost:", Code::Unauthenticated)] {
        let value = format!("Basic {}", STANDARD.encode(user));
        let headers = [("authorization", value.as_str())];
        let run = finish(&mut start(&host, &headers, &shell("id")).await).await;
        assert_eq!(run.error.expect("refused").code, code, "{user}");
    }
    let host = guest.identified(&[1000, 0]).await;
    let value = format!("Basic {}", STANDARD.encode("root:"));
    let run = finish(&mut start(&host, &[("authorization", &value)], &shell("id -u")).await).await;
    assert_eq!(run.stdout, "0\n");
}

#[tokio::test]
async fn what_cannot_be_started_says_why_before_any_start() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let cases = [
        (json!({ "cmd": "nonsense" }), Code::NotFound, "executable file not found in $PATH"),
        (json!({ "cmd": "/no/such" }), Code::NotFound, "no such file"),
        (json!({ "cmd": "/etc/passwd" }), Code::PermissionDenied, "permission denied"),
        (json!({ "cmd": "" }), Code::InvalidArgument, "no program"),
        (
            json!({ "cmd": "ls", "cwd": "/nowhere" }),
            Code::InvalidArgument,
            "cwd '/nowhere' does not exist",
        ),
        (json!({ "cmd": "ls", "cwd": "/etc/passwd" }), Code::InvalidArgument, "not a directory"),
        (json!({ "cmd": "ls", "args": ["x".repeat(200_000)] }), Code::InvalidArgument, "too long"),
        (
            json!({ "cmd": "ls", "args": ["x".repeat(10 << 20)] }),
            Code::InvalidArgument,
            "longer than",
        ),
        (json!({ "cmd": "ls", "args": ["a\0b"] }), Code::InvalidArgument, "zero byte"),
    ];
    for (process, code, text) in cases {
        let mut messages = start(&host, &[], &json!({ "process": process })).await;
        let error = messages.next().await.expect_err("no start").expect("an error");
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(text), "{error:?}");
    }
}

#[tokio::test]
async fn input_reaches_a_process_until_it_is_closed() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut messages = start(&host, &[], &shell("cat; echo done")).await;
    let pid = pid(&mut messages).await;
    input(&host, pid, "stdin", "hello ").await.expect("taken");
    input(&host, pid, "stdin", "world\n").await.expect("taken");
    assert_eq!(input(&host, pid, "pty", "x").await.unwrap_err().code, Code::InvalidArgument);
    let close = json!({ "process": selector(pid) });
    host.call::<Empty>("/process.Process/CloseStdin", &close).await.expect("closed");
    let run = finish(&mut messages).await;
    assert_eq!(run.stdout, "hello world\ndone\n");
    assert_eq!(input(&host, pid, "stdin", "late").await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn without_input_a_process_reads_end_of_file_at_once() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut message = shell("cat; echo end");
    message["stdin"] = json!(false);
    assert_eq!(finish(&mut start(&host, &[], &message).await).await.stdout, "end\n");
}

#[tokio::test]
async fn a_signal_ends_a_process_and_what_it_started() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut messages = start(&host, &[], &shell("sleep 1000 & sleep 1000; true")).await;
    let pid = pid(&mut messages).await;
    signal(&host, pid, "SIGNAL_SIGKILL").await.expect("sent");
    let run = finish(&mut messages).await;
    assert_eq!(
        (&run.end["exitCode"], run.end["status"].as_str()),
        (&json!(-1), Some("signal: killed"))
    );
    assert_eq!(signal(&host, pid, "SIGNAL_SIGTERM").await.unwrap_err().code, Code::NotFound);
    assert_eq!(signal(&host, pid, "SIGNAL_NONE").await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(self::run(&host, "pgrep -c sleep").await.stdout, "0\n");
}

#[tokio::test]
async fn a_deadline_ends_a_process_with_an_error() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let headers = [("connect-timeout-ms", "200")];
    let run = finish(&mut start(&host, &headers, &shell("echo first; sleep 1000")).await).await;
    assert_eq!(run.stdout, "first\n");
    assert_eq!(run.error.expect("an error").code, Code::DeadlineExceeded);
    assert_eq!(self::run(&host, "pgrep -c sleep").await.stdout, "0\n");
}

#[tokio::test]
async fn a_process_outlives_its_stream_and_can_be_followed_again() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut message = shell("read line; echo got $line");
    message["tag"] = json!("mine");
    let mut messages = start(&host, &[], &message).await;
    let pid = pid(&mut messages).await;
    drop(messages);
    // A new session, as after a restart of the host.
    let host = guest.connect().await;
    let list: Value = host.call("/process.Process/List", &json!({})).await.expect("a list");
    assert_eq!(list["processes"][0]["pid"], pid);
    assert_eq!(list["processes"][0]["tag"], "mine");
    assert_eq!(list["processes"][0]["config"]["cmd"], "/bin/sh");
    let follow = json!({ "process": { "tag": "mine" } });
    let mut messages = host.stream("/process.Process/Connect", &[], &follow).await;
    assert_eq!(self::pid(&mut messages).await, pid);
    input(&host, pid, "stdin", "it\n").await.expect("taken");
    assert_eq!(finish(&mut messages).await.stdout, "got it\n");
    // Retained: the end is still told.
    let mut late =
        host.stream("/process.Process/Connect", &[], &json!({ "process": selector(pid) })).await;
    assert_eq!(finish(&mut late).await.end["status"], "exit status 0");
    let unknown = json!({ "process": selector(99_999) });
    let mut none = host.stream("/process.Process/Connect", &[], &unknown).await;
    let error = none.next().await.expect_err("not found").expect("an error");
    assert_eq!(error.message, "process with pid 99999 not found");
}

#[tokio::test]
async fn a_terminal_has_a_size_and_an_owner() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut message = shell("stty size; tty -s && echo tty; read x; stty size; echo $x");
    message["pty"] = json!({ "size": { "cols": 80, "rows": 24 } });
    let mut messages = start(&host, &[], &message).await;
    let pid = pid(&mut messages).await;
    let resize =
        json!({ "process": selector(pid), "pty": { "size": { "cols": 100, "rows": 30 } } });
    let mut seen = String::new();
    while !seen.contains("tty") {
        let message = messages.next().await.expect("output");
        add(&mut seen, &message["event"]["data"]["pty"]);
    }
    host.call::<Empty>("/process.Process/Update", &resize).await.expect("resized");
    let close = json!({ "process": selector(pid) });
    let refused = host.call::<Empty>("/process.Process/CloseStdin", &close).await;
    assert_eq!(refused.unwrap_err().code, Code::FailedPrecondition);
    input(&host, pid, "pty", "word\n").await.expect("taken");
    let run = finish(&mut messages).await;
    assert!(seen.starts_with("24 80\r\ntty"), "{seen:?}");
    assert!(run.terminal.contains("30 100\r\nword\r\n"), "{:?}", run.terminal);
}

#[tokio::test]
async fn a_stream_of_input_is_answered_when_all_was_taken() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut messages = start(&host, &[], &shell("head -c 300000 | wc -c")).await;
    let pid = pid(&mut messages).await;
    let mut body = Vec::new();
    let mut push = |event: Value| {
        body.extend_from_slice(
            &guest_protocol::connect::message(&json!({ "event": event })).unwrap(),
        );
    };
    push(json!({ "start": { "process": selector(pid) } }));
    for _ in 0..3 {
        push(json!({ "data": { "input": { "stdin": STANDARD.encode(vec![b'x'; 100_000]) } } }));
    }
    let headers = [("content-type", guest_protocol::connect::STREAM)];
    let (status, answer) = host.post("/process.Process/StreamInput", &headers, body).await;
    assert_eq!(status, 200);
    assert_eq!(&answer[..], b"\0\0\0\0\x02{}\x02\0\0\0\x02{}");
    assert_eq!(finish(&mut messages).await.stdout, "300000\n");
}

#[tokio::test]
async fn a_background_process_does_not_hold_up_the_end() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let run = run(&host, "(sleep 1000; echo late) & echo now").await;
    assert_eq!((run.stdout.as_str(), &run.end["exitCode"]), ("now\n", &json!(0)));
    // It is alive, and so is its output.
    assert_eq!(self::run(&host, "pgrep -c sleep").await.stdout, "1\n");
}

#[tokio::test]
async fn binary_output_and_much_of_it_come_through_whole() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let script = "head -c 3000000 /dev/zero | tr '\\0' 'x'; printf '\\377\\000\\n' >&2";
    let run = run(&host, script).await;
    assert_eq!(run.stdout.len(), 3_000_000);
    assert_eq!(run.stderr, "\u{fffd}\0\n");
}

/// A start finds a child that waits, whoever ended it before it is needed.
#[tokio::test]
async fn a_child_stands_ready_and_is_not_missed() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    // It looks for a while, because each end of a process makes the next child.
    let look = r#"for i in $(seq 100); do
        child=$(ps -eo pid=,ppid=,args= | awk '$2 == 1 && / init --hosted/ { print $1 }' | tail -n 1)
        if [ -n "$child" ]; then echo "$child"; $0 "$child"; exit; fi
        sleep 0.1
    done"#;
    for fate in ["true", "kill -9"] {
        let root = [("authorization", "Basic cm9vdDo=")];
        let script = shell(&look.replace("$0", fate));
        let mut looking = start(&host, &root, &script).await;
        assert_eq!(run(&host, "echo here").await.stdout, "here\n");
        let found = finish(&mut looking).await.stdout;
        assert!(found.trim().parse::<u32>().is_ok(), "one child waits: {found:?}");
        assert_eq!(run(&host, "echo here").await.stdout, "here\n", "{fate}");
    }
}

#[tokio::test]
async fn init_answers_and_warms_up() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    assert_eq!(host.control(Request::Ping { nonce: 5 }).await, Response::Pong { nonce: 5 });
    let commands = vec![vec!["/bin/true".into()], vec!["sh".into(), "-c".into(), "exit 1".into()]];
    assert_eq!(host.control(Request::Warm { commands }).await, Response::Done);
    // Not every image has every program.
    let commands = vec![vec!["/no/such/program".into()]];
    assert_eq!(host.control(Request::Warm { commands }).await, Response::Done);
}
