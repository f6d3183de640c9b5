//! Reaching into sandboxes.

use control::{error::Error, guest::GuestCall};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fixture::{Installation, request, scoped};

#[tokio::test]
async fn a_stream_leads_to_the_guest_api() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let opened = it.control.open_guest(&it.caller, &sandbox.id, &GuestCall::Health).await;
    let mut stream = opened.expect("a stream");
    let asked = b"GET /health HTTP/1.1\r\nhost: guest\r\nconnection: close\r\n\r\n";
    stream.write_all(asked).await.expect("sent");
    stream.flush().await.expect("sent");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1");
}

/// S42, S44, S92: what was started and touched is on record, as metadata only.
#[tokio::test]
async fn processes_and_files_are_on_record_without_their_content() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let path = || "/workspace/a".to_owned();
    for call in [
        GuestCall::ProcessStart { program: "python3".to_owned(), arguments: 2 },
        GuestCall::ProcessInput,
        GuestCall::ProcessConnect,
        GuestCall::FileWrite { path: path(), size: Some(7) },
        GuestCall::FileStat,
        GuestCall::FileRead { path: path() },
        GuestCall::FileMove { from: path(), to: "/b".to_owned() },
        GuestCall::FileRemove { path: "x".repeat(5000) },
    ] {
        it.control.open_guest(&it.caller, &sandbox.id, &call).await.expect("a stream");
    }
    let lines = it.lines(&it.caller).await;
    let told: Vec<_> = lines
        .iter()
        .filter(|line| line.action.starts_with("process.") || line.action.starts_with("file."))
        .map(|line| (line.action.as_str(), serde_json::Value::from(line.detail.clone())))
        .collect();
    assert_eq!(
        told,
        [
            ("process.start", serde_json::json!({"program": "python3", "arguments": 2})),
            ("file.write", serde_json::json!({"path": "/workspace/a", "size": 7})),
            ("file.read", serde_json::json!({"path": "/workspace/a"})),
            ("file.move", serde_json::json!({"path": "/workspace/a", "to": "/b"})),
            ("file.remove", serde_json::json!({"path": "x".repeat(1024)})),
        ]
    );
}

/// S45, S70: scope, then owner, then phase; every "no" is on record.
#[tokio::test]
async fn no_stream_leads_where_the_caller_may_not_go() {
    let it = Installation::new().await;
    let sandbox = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
    let reader = scoped(&it.caller, "sandboxes:read");
    let stranger = it.stranger().await;
    let start = GuestCall::ProcessStart { program: "id".to_owned(), arguments: 0 };
    let open = |caller, call| it.control.open_guest(caller, &sandbox.id, call);

    let error = open(&reader, &start).await.map(drop).expect_err("a reader starts nothing");
    assert!(matches!(error, Error::Forbidden { .. }), "{error:?}");
    let error = open(&reader, &GuestCall::ProcessInput).await.map(drop).expect_err("nor types");
    assert!(matches!(error, Error::Forbidden { .. }), "{error:?}");
    open(&reader, &GuestCall::ProcessList).await.map(drop).expect("a reader looks");
    let error = open(&stranger, &start).await.map(drop).expect_err("a stranger");
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect("ended");
    let error = open(&it.caller, &GuestCall::Health).await.map(drop).expect_err("it ended");
    assert_eq!(error.code(), "sandbox_not_running");

    let codes = |lines: Vec<control::audit::AuditLine>| -> Vec<String> {
        let code = |line: &control::audit::AuditLine| line.detail.get("code").cloned();
        lines.iter().filter_map(code).map(|code| code.as_str().unwrap_or("").to_owned()).collect()
    };
    let own = codes(it.lines(&it.caller).await);
    assert_eq!(own, ["missing_scope", "missing_scope", "sandbox_not_running"]);
    assert_eq!(codes(it.lines(&stranger).await), ["not_found"]);
}
