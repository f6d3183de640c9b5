//! What a guest survives.

use serde_json::{Value, json};

use crate::{
    guest,
    host::Host,
    processes::{finish, pid, run, shell, start},
};

/// Names root to the API.
const ROOT: (&str, &str) = ("authorization", "Basic cm9vdDo=");

/// `kill -9 -1` by the ordinary account reaches none of the guest's own
/// processes but the file worker of that account, which comes back.
#[tokio::test]
async fn the_guest_survives_a_user_who_kills_everything() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let headers = [("content-type", "application/octet-stream")];
    assert_eq!(host.post("/files?path=/tmp/a", &headers, "x").await.0, 200);
    let killed = run(&host, "kill -9 -1; echo alive").await;
    assert!(killed.end["status"].is_string(), "{killed:?}");
    assert_eq!(run(&host, "echo again").await.stdout, "again\n");
    assert_eq!(host.get("/files?path=/tmp/a").await.0, 200);
}

/// `kill -9 -1` by root inside kills the API and the relay; both come back on
/// the same link.
#[tokio::test]
async fn the_guest_survives_root_who_kills_everything() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    let before = api_number(&host).await.expect("an API");
    // It may be over before its start was told.
    let kill = shell("kill -9 -1");
    if let Some(mut messages) = host.try_stream("/process.Process/Start", &[ROOT], &kill).await {
        finish(&mut messages).await;
    }
    // What was under way breaks off, and the old API may still answer.
    let mut after = None;
    for _ in 0..500 {
        after = api_number(&host).await.filter(|number| *number != before);
        if after.is_some() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(after.is_some(), "no new API");
    assert_eq!(run(&host, "echo $FROM").await.stdout, "sandbox\n");
}

/// The process number of the API.
async fn api_number(host: &Host) -> Option<String> {
    host.revived().await;
    let script = "grep -l '^Uid:.990' /proc/[0-9]*/status";
    let mut messages = host.try_stream("/process.Process/Start", &[ROOT], &shell(script)).await?;
    Some(finish(&mut messages).await.stdout).filter(|text| !text.is_empty())
}

/// A new API learns what runs, and the streams go on.
#[tokio::test]
async fn processes_outlive_the_api() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    let mut messages = start(&host, &[], &shell("read line; echo got $line")).await;
    let number = pid(&mut messages).await;
    let script =
        "for p in /proc/[0-9]*; do grep -q '^Uid:.990' $p/status && kill -9 ${p#/proc/}; done";
    if let Some(mut killer) =
        host.try_stream("/process.Process/Start", &[ROOT], &shell(script)).await
    {
        finish(&mut killer).await;
    }
    assert!(finish(&mut messages).await.error.is_some(), "the stream broke off");
    host.revived().await;
    let follow = json!({ "process": { "pid": number } });
    let mut messages = host.stream("/process.Process/Connect", &[], &follow).await;
    assert_eq!(pid(&mut messages).await, number);
    let input = json!({ "process": { "pid": number }, "input": { "stdin": "aXQK" } });
    host.call::<Value>("/process.Process/SendInput", &input).await.unwrap();
    assert_eq!(finish(&mut messages).await.stdout, "got it\n");
}

/// A host that can only run a program inside has the same link, and a new
/// session takes the place of the last.
#[tokio::test]
async fn the_link_may_be_the_pipes_of_a_program() {
    let guest = guest!();
    let before = guest.identified(&[1000]).await;
    let (host, mut program) = guest.connect_by_program().await;
    assert_eq!(run(&host, "echo $FROM").await.stdout, "sandbox\n");
    assert!(before.try_stream("/process.Process/Start", &[], &shell("id")).await.is_none());
    drop(host);
    let again = guest.connect().await;
    assert_eq!(run(&again, "echo again").await.stdout, "again\n");
    program.wait().unwrap();
}

/// Output that nobody reads is dropped, and its writer goes on.
#[tokio::test]
async fn output_without_a_reader_does_not_stop_a_process() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let script = "head -c 50000000 /dev/zero; touch /tmp/written; sleep 1000";
    let messages = start(&host, &[], &shell(script)).await;
    drop(messages);
    let written = run(&host, "while ! [ -e /tmp/written ]; do sleep 0.05; done; echo yes").await;
    assert_eq!(written.stdout, "yes\n");
}

/// U17, U18: what the workload can reach answers little and refuses clearly.
#[tokio::test]
async fn the_loopback_ports_answer_what_they_should() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let ask = |port: u16, line: &str| {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{line} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; cat <&3"
        )
    };
    let bash = |script: String| json!({ "process": { "cmd": "bash", "args": ["-c", script] } });
    let answer = async |port, line| {
        finish(&mut start(&host, &[], &bash(ask(port, line))).await).await.stdout
    };
    assert!(answer(49983, "GET /health").await.starts_with("HTTP/1.1 204"));
    assert!(answer(49983, "GET /envs").await.contains(r#"{"BOTH":"sandbox","FROM":"sandbox"}"#));
    assert!(answer(49983, "GET /files?path=/etc/passwd").await.starts_with("HTTP/1.1 404"));
    assert!(answer(49983, "POST /init").await.starts_with("HTTP/1.1 404"));
    for (port, line) in [(8788, "GET /model/v1"), (8789, "CONNECT example.com:443")] {
        let refusal = answer(port, line).await;
        assert!(refusal.starts_with("HTTP/1.1 403"), "{refusal}");
        assert!(refusal.contains("mode_denied"), "{refusal}");
    }
}

/// The orchestrator's own paths of other daemons do not exist.
#[tokio::test]
async fn there_is_no_door_besides_the_documented_ones() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    for path in ["/init", "/freeze", "/unfreeze", "/fsfreeze", "/collapse", "/files/compose"] {
        assert_eq!(host.post(path, &[], "{}").await.0, 404, "{path}");
    }
    assert_eq!(host.get("/health").await.0, 204);
    let (status, body) = host.get("/metrics").await;
    let metrics: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status, 200);
    for name in ["cpu_count", "mem_total", "disk_total", "ts"] {
        assert!(metrics[name].as_u64().unwrap() > 0, "{metrics}");
    }
}

/// G-07: an account file that never answers stops what needs a name, in time,
/// and nothing else.
#[tokio::test]
async fn an_account_file_that_never_answers_does_not_stop_the_api() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    // A file system whose server never says a word.
    let script = r#"
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=100000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"x", b"/etc/passwd", b"fuse", 0, options):
    raise OSError(ctypes.get_errno(), "mount")
print("mounted", flush=True)
time.sleep(1000)
"#;
    let message = json!({ "process": { "cmd": "python3", "args": ["-c", script] } });
    let mut messages = start(&host, &[ROOT], &message).await;
    pid(&mut messages).await;
    let first = messages.next().await.unwrap();
    if first["event"]["data"]["stdout"].is_null() {
        println!("SKIPPED: this kernel has no FUSE: {first}");
        return;
    }
    for _ in 0..6 {
        let (status, body) = host.get("/files?path=/tmp/a&username=root").await;
        assert_eq!(status, 503, "{body:?}");
        // The ordinary account needs no file.
        assert_eq!(host.get("/files?path=/tmp/a").await.0, 404);
        assert_eq!(host.get("/health").await.0, 204);
    }
    assert_eq!(host.get("/metrics").await.0, 200);
    host.call::<Value>("/process.Process/List", &json!({})).await.unwrap();
}
