//! What was answered is there after the process was killed.
//!
//! This test starts itself a second time, as a writer that says each line's id
//! once the store has answered, and kills it in the middle of its work.

use std::{
    collections::HashSet,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use domain::{
    id::{AuditId, OrganizationId},
    time::Timestamp,
};
use store::{
    Store,
    audit::{AuditFilter, AuditLine, Outcome},
};
use testkit::fixtures::distinct_bytes;

/// Where the second process finds its database.
const URL: &str = "COLDFRAME_TEST_URL";
/// How many answers are waited for.
const ANSWERS: usize = 200;

fn organization() -> OrganizationId {
    OrganizationId::from_random([1; 16])
}

fn line() -> AuditLine {
    AuditLine {
        id: AuditId::from_random(distinct_bytes()),
        time: Timestamp(1),
        organization: organization(),
        user: None,
        token: None,
        action: "test".to_owned(),
        object: None,
        outcome: Outcome::Allowed,
        detail: serde_json::Map::new(),
    }
}

/// The second process. Does nothing when the test runner comes by.
#[tokio::test]
async fn writer() {
    let Ok(url) = std::env::var(URL) else { return };
    let store = Store::open(&url).await.expect("it opens");
    loop {
        let line = line();
        store.append_audit(&line).await.expect("written");
        println!("answered {}", line.id);
    }
}

#[tokio::test]
async fn what_was_answered_is_there_after_the_process_was_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}", folder.path().join("killed.db").display());
    let mut writer = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "writer", "--nocapture"])
        .env(URL, &url)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut answers = BufReader::new(writer.stdout.take().expect("its output")).lines();
    let answered = |text: std::io::Result<String>| {
        let text = text.ok()?;
        text.split_once("answered ").and_then(|(_, id)| id.parse::<AuditId>().ok())
    };
    let mut ids: HashSet<AuditId> = answers.by_ref().filter_map(answered).take(ANSWERS).collect();
    writer.kill().expect("it is killed");
    // What it had said until then.
    ids.extend(answers.filter_map(answered));
    writer.wait().expect("it is gone");
    assert!(ids.len() >= ANSWERS, "{}", ids.len());

    let store = Store::open(&url).await.expect("it opens again");
    let filter =
        AuditFilter { organization: organization(), object: None, limit: 1_000_000, before: None };
    let lines = store.audit_lines(&filter).await.expect("it answers");
    for (_, line) in lines {
        ids.remove(&line.id);
    }
    assert!(ids.is_empty(), "{} answered lines are missing", ids.len());
    store.close().await;
}
