//! What is written down: one well-formed record for each event, metadata only.

use std::{
    io::Write,
    sync::{Arc, Mutex, OnceLock},
};

use api::{audit::ListAudit, exec::ExecRequest, files::FileQuery};
use testkit::app::App;
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    raw,
    sandboxes::{base, code},
};

fn about(id: &domain::id::SandboxId) -> ListAudit {
    ListAudit { sandbox: Some(id.clone()), ..Default::default() }
}

/// S92, S44: a write is on the record as path and size, a command as its
/// program and the number of arguments.
#[tokio::test]
async fn the_record_holds_metadata_only() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let file = FileQuery { path: "/home/user/report".into(), user: None };
    client.write_file(&id, &file, "the content").await.unwrap();
    let exec = ExecRequest {
        cmd: Some(vec!["echo".into(), "an argument".into()]),
        env: api::variables::Variables([("KEY".into(), "a value".into())].into()),
        ..Default::default()
    };
    client.exec(&id, &exec).await.unwrap();
    let lines = client.list_audit(&about(&id)).await.unwrap().items;
    let find = |action: &str| lines.iter().find(|line| line.action == action).unwrap();
    let write = find("file.write");
    assert_eq!(write.detail["path"], "/home/user/report");
    assert_eq!(write.detail["size"], 11);
    let start = find("process.start");
    assert_eq!((&start.detail["program"], &start.detail["arguments"]), (&"echo".into(), &1.into()));
    let whole = serde_json::to_string(&lines).unwrap();
    for content in ["the content", "an argument", "a value"] {
        assert!(!whole.contains(content), "{content}");
    }
    // The whole log is for administrators.
    assert_eq!(code(client.list_audit(&ListAudit::default()).await), "missing_scope");
    let all = app.client(&app.tokens.admin).list_audit(&ListAudit::default()).await.unwrap();
    assert!(all.items.len() > lines.len());
    app.stop().await;
}

/// L-01: whatever a path holds, there is one line for one event, and the line
/// holds it escaped.
#[tokio::test]
async fn a_path_cannot_write_a_line_of_its_own() {
    let app = App::start().await;
    let client = app.sandboxes();
    let id = client.create_sandbox(&base()).await.unwrap().id;
    let before = client.list_audit(&about(&id)).await.unwrap().items.len();
    let path = "/x\n2026-11-29T00:00:00Z APPROVED by owner\u{1b}[2K\r";
    let file = FileQuery { path: path.into(), user: None };
    client.write_file(&id, &file, "x").await.unwrap();
    let lines = client.list_audit(&about(&id)).await.unwrap().items;
    // One for the write, one for the first look at the log.
    assert_eq!(lines.len(), before + 2);
    let write = lines.iter().find(|line| line.action == "file.write").unwrap();
    assert_eq!(write.detail["path"], path);
    app.stop().await;
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// What this process logs from the first call on. It is one log for all tests,
/// because a subscriber of one thread is not asked about what another thread
/// logged first.
fn log() -> Sink {
    static LOG: OnceLock<Sink> = OnceLock::new();
    let begin = || {
        let sink = Sink::default();
        let subscriber = tracing_subscriber::fmt().json().with_writer(sink.clone()).finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
        sink
    };
    LOG.get_or_init(begin).clone()
}

/// L-01, U16: the access log is one JSON record for each request, and nothing a
/// client writes is in it.
#[tokio::test]
async fn the_access_log_holds_nothing_a_client_writes() {
    let sink = log();
    let app = App::start().await;
    let id = app.sandboxes().create_sandbox(&base()).await.unwrap().id;
    let token = app.tokens.sandboxes.expose().to_owned();
    let host = "host: localhost\r\n";
    let odd = format!("{host}authorization: Bearer {token}\r\nuser-agent: a\\x1b[2K\r\n");
    let path = format!("/v1/sandboxes/{id}/files?path=/hunter2%0aAPPROVED");
    let requests = [
        raw::get("/x%0a2026-11-29T00:00:00Z%20APPROVED%20by%20owner", host),
        raw::get(&path, &odd),
    ];
    let mut names = Vec::new();
    for request in &requests {
        let answer = raw::exchange(app.address, request).await;
        let name = answer.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        names.push(name.unwrap().to_owned());
    }
    app.stop().await;
    let log = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    let records: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("one record a line")).collect();
    for name in names {
        let named = |record: &&serde_json::Value| record["span"]["request.id"] == *name;
        let about: Vec<_> = records.iter().filter(named).collect();
        assert_eq!(about.len(), 1, "{about:?}");
        assert!(about[0]["fields"]["route"].is_string());
    }
    for content in ["hunter2", "APPROVED", "x1b", &token, "coldframe_"] {
        assert!(!log.contains(content), "{content}: {log}");
    }
}
