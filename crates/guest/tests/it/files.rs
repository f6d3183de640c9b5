//! `/files` and `filesystem.Filesystem`.

use std::io::Write as _;

use guest_protocol::{
    connect::{Code, Error},
    process::Empty,
};
use serde_json::{Value, json};

use crate::{guest, host::Host, processes::run};

const OCTETS: (&str, &str) = ("content-type", "application/octet-stream");

async fn call(host: &Host, method: &str, message: Value) -> Result<Value, Error> {
    host.call(&format!("/filesystem.Filesystem/{method}"), &message).await
}

#[tokio::test]
async fn a_file_is_written_where_the_path_says_and_belongs_to_the_account() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let (status, body) = host.post("/files?path=a/b/c.txt", &[OCTETS], "text").await;
    assert_eq!(status, 200, "{body:?}");
    let written: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(written[0]["path"], "/home/user/a/b/c.txt");
    let entry = call(&host, "Stat", json!({ "path": "~/a/b/c.txt" })).await.unwrap();
    let entry = &entry["entry"];
    assert_eq!((&entry["owner"], &entry["group"]), (&json!("user"), &json!("user")));
    assert_eq!((&entry["permissions"], &entry["size"]), (&json!("-rw-r--r--"), &json!("4")));
    let parent = call(&host, "Stat", json!({ "path": "a" })).await.unwrap();
    assert_eq!(parent["entry"]["permissions"], "drwxr-xr-x");
    let (status, body) = host.get("/files?path=/home/user/a/b/c.txt").await;
    assert_eq!((status, &body[..]), (200, &b"text"[..]));
}

#[tokio::test]
async fn a_name_may_hold_anything() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let path = "/tmp/a%20b%0Ac%26d%23%25";
    assert_eq!(host.post(&format!("/files?path={path}"), &[OCTETS], "x").await.0, 200);
    assert_eq!(&host.get(&format!("/files?path={path}")).await.1[..], b"x");
    let list = call(&host, "ListDir", json!({ "path": "/tmp" })).await.unwrap();
    assert_eq!(list["entries"][0]["name"], "a b\nc&d#%");
}

#[tokio::test]
async fn what_cannot_be_read_says_why() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    run(&host, "mkfifo /tmp/pipe; mkdir /tmp/dir").await;
    let cases = [
        ("/files?path=/none", 404, "path '/none' does not exist"),
        ("/files?path=/tmp/dir", 400, "is a directory"),
        ("/files?path=/tmp/pipe", 400, "is not a regular file"),
        ("/files?path=/etc/shadow", 403, "permission denied"),
        ("/files?path=/tmp&username=ghost", 401, "user ghost does not exist"),
        ("/files?path=/tmp&username=root", 403, "may not be used"),
    ];
    for (path, status, text) in cases {
        let (got, body) = host.get(path).await;
        let error: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((got, &error["code"]), (status, &json!(status)), "{path}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    }
    // A pipe is not written to either, and nobody waits for its reader.
    assert_eq!(host.post("/files?path=/tmp/pipe", &[OCTETS], "x").await.0, 400);
}

#[tokio::test]
async fn several_files_come_as_parts_with_their_whole_names() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut body = Vec::new();
    for (name, content) in [("one/a.txt", "1"), ("/tmp/b", "")] {
        write!(body, "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{content}\r\n").unwrap();
    }
    body.extend_from_slice(b"--B--\r\n");
    let headers = [("content-type", "multipart/form-data; boundary=B")];
    let (status, answer) = host.post("/files", &headers, body.clone()).await;
    let written: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(status, 200, "{written}");
    assert_eq!(written[0]["path"], "/home/user/one/a.txt");
    assert_eq!(written[1]["path"], "/tmp/b");
    // One path for two files makes no sense.
    assert_eq!(host.post("/files?path=/tmp/c", &headers, body).await.0, 400);
}

#[tokio::test]
async fn a_compressed_body_is_written_plain() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&vec![b'x'; 500_000]).unwrap();
    let headers = [OCTETS, ("content-encoding", "gzip")];
    let (status, _) = host.post("/files?path=/tmp/z", &headers, encoder.finish().unwrap()).await;
    assert_eq!(status, 200);
    assert_eq!(host.get("/files?path=/tmp/z").await.1.len(), 500_000);
    assert_eq!(host.post("/files?path=/tmp/z", &headers, "plain").await.0, 400);
}

/// S25, G-05: an upload that does not fit is refused at once, and what was
/// written of it is gone.
#[tokio::test]
async fn a_full_disk_is_said_and_the_guest_goes_on() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let full = &br#"{"code":507,"message":"not enough disk space"}"#[..];
    let gone = async || call(&host, "Stat", json!({ "path": "/tmp/big" })).await.unwrap_err().code;
    // The test's /tmp holds 64 MiB. An announced length is enough for a refusal.
    assert_eq!(host.post("/files?path=/tmp/old", &[OCTETS], "kept").await.0, 200);
    for path in ["big", "old"] {
        let (status, body) =
            host.post_unfinished(&format!("/files?path=/tmp/{path}"), 80 << 20).await;
        assert_eq!((status, &body[..]), (507, full));
    }
    assert_eq!(gone().await, Code::NotFound);
    assert_eq!(&host.get("/files?path=/tmp/old").await.1[..], b"kept");
    // Without one, what was written is removed.
    let (status, body) = host.post_endless("/files?path=/tmp/big").await;
    assert_eq!((status, &body[..]), (507, full));
    assert_eq!(gone().await, Code::NotFound);
    assert_eq!(run(&host, "df --output=used /tmp | tail -1 | tr -d ' '").await.stdout, "4\n");
    assert_eq!(host.post("/files?path=/tmp/small", &[OCTETS], "x").await.0, 200);
}

#[tokio::test]
async fn what_was_written_of_an_upload_that_breaks_off_is_removed() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    host.post_broken("/files?path=/tmp/half").await;
    let script = "while [ -e /tmp/half ]; do sleep 0.05; done; ls /tmp";
    assert_eq!(run(&host, script).await.stdout, "");
}

#[tokio::test]
async fn metadata_stays_with_a_file_until_it_is_written_without() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    let headers = [OCTETS, ("X-Metadata-Author", "me")];
    let (status, body) = host.post("/files?path=/tmp/m", &headers, "x").await;
    if status == 400 && String::from_utf8_lossy(&body).contains("not supported") {
        println!("SKIPPED: this kernel's tmpfs has no user attributes");
        return;
    }
    assert_eq!(status, 200, "{body:?}");
    let moved = call(&host, "Move", json!({ "source": "/tmp/m", "destination": "/tmp/d/n" })).await;
    assert_eq!(moved.unwrap()["entry"]["metadata"], json!({ "author": "me" }));
    host.post("/files?path=/tmp/d/n", &[OCTETS], "x").await;
    let entry = call(&host, "Stat", json!({ "path": "/tmp/d/n" })).await.unwrap();
    assert_eq!(entry["entry"]["metadata"], Value::Null);
}

#[tokio::test]
async fn directories_are_made_listed_moved_and_removed() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    call(&host, "MakeDir", json!({ "path": "x/y" })).await.unwrap();
    let again = call(&host, "MakeDir", json!({ "path": "x/y" })).await.unwrap_err();
    assert_eq!(again.code, Code::AlreadyExists);
    // Between two file systems.
    host.post("/files?path=x/y/f", &[OCTETS], "x").await;
    let moved =
        call(&host, "Move", json!({ "source": "x", "destination": "/tmp/q/x" })).await.unwrap();
    assert_eq!(moved["entry"]["path"], "/tmp/q/x");
    let list = call(&host, "ListDir", json!({ "path": "/tmp/q", "depth": 5 })).await.unwrap();
    let names: Vec<&str> =
        list["entries"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["/tmp/q/x", "/tmp/q/x/y", "/tmp/q/x/y/f"]);
    assert_eq!(
        call(&host, "ListDir", json!({ "path": "x" })).await.unwrap_err().code,
        Code::NotFound
    );
    for _ in 0..2 {
        host.call::<Empty>("/filesystem.Filesystem/Remove", &json!({ "path": "/tmp/q" }))
            .await
            .unwrap();
    }
    let denied = call(&host, "Remove", json!({ "path": "/etc/passwd" })).await.unwrap_err();
    assert!(matches!(denied.code, Code::PermissionDenied | Code::InvalidArgument), "{denied:?}");
}

/// L30, L31, U17, U32: file work has the account's rights, whoever parses the request.
#[tokio::test]
async fn file_work_has_the_rights_of_its_account() {
    let guest = guest!();
    let host = guest.identified(&[1000, 0]).await;
    assert_eq!(host.post("/files?path=/root/x&username=root", &[OCTETS], "x").await.0, 200);
    assert_eq!(host.get("/files?path=/root/x").await.0, 403);
    assert_eq!(host.get("/files?path=/root/x&username=root").await.0, 200);
    // The API and the worker hold nothing, and the account cannot look into them.
    let script = r#"
for p in /proc/[0-9]*; do
    [ "$(cat $p/comm)" = guestd ] || continue
    grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs)' $p/status | tr '\n\t' '  '
    for secret in mem environ maps fd/0; do head -c1 $p/$secret >/dev/null 2>&1 && echo "OPEN $p/$secret"; done
    kill -0 ${p#/proc/} 2>/dev/null && echo REACHABLE
    echo
done"#;
    let status = run(&host, script).await;
    assert!(!status.stdout.contains("OPEN"), "{}", status.stdout);
    let none = "CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1";
    for uid in [990, 991, 1000] {
        let line = format!("Uid: {uid} {uid} {uid} {uid} {none}");
        assert!(status.stdout.contains(&line), "{uid}: {}", status.stdout);
    }
}

#[tokio::test]
async fn a_range_is_a_part_of_a_file() {
    let guest = guest!();
    let host = guest.identified(&[1000]).await;
    host.post("/files?path=/tmp/r", &[OCTETS], "0123456789").await;
    let request = hyper::Request::get("/files?path=/tmp/r").header("range", "bytes=2-4");
    let response = host.send(request.body(Default::default()).unwrap()).await;
    assert_eq!(response.status(), 206);
    assert_eq!(response.headers()["content-range"], "bytes 2-4/10");
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    assert_eq!(&body[..], b"234");
}
