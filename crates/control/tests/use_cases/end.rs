//! How sandboxes end.

use std::time::Duration;

use control::sandboxes::{Sandbox, request::Timeout};
use domain::{ending::Cause, phase::Phase};

use crate::fixture::{Installation, request};

async fn running(it: &Installation) -> Sandbox {
    it.control.create_sandbox(&it.caller, request()).await.expect("it starts")
}

/// S30, S74: and asking twice is not an error.
#[tokio::test]
async fn a_terminated_sandbox_is_gone_and_stays_on_record() {
    let it = Installation::new().await;
    let sandbox = running(&it).await;
    for _ in 0..3 {
        it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect("ended");
    }
    assert_eq!(it.machines().await, []);
    let row = it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("on record");
    assert_eq!(row.phase, Phase::Terminated);
    assert!(row.ended.is_some());
    assert_eq!(row.ending.map(|ending| ending.cause), Some(Cause::Requested));
    assert_eq!(
        it.actions(&sandbox.id).await,
        [
            "sandbox.create",
            "sandbox.running",
            "sandbox.terminate",
            "sandbox.ended",
            "sandbox.terminate",
            "sandbox.terminate",
            "sandbox.get",
        ]
    );
}

#[tokio::test]
async fn many_who_end_a_sandbox_at_once_all_learn_that_it_is_gone() {
    let it = Installation::new().await;
    let sandbox = running(&it).await;
    let mut ends = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (control, caller, id) = (it.control.clone(), it.caller.clone(), sandbox.id.clone());
        ends.spawn(async move { control.terminate_sandbox(&caller, &id).await });
    }
    for ended in ends.join_all().await {
        ended.expect("ended");
    }
    assert_eq!(it.machines().await, []);
    let ended = it.actions(&sandbox.id).await;
    assert_eq!(ended.iter().filter(|action| *action == "sandbox.ended").count(), 1);
}

#[tokio::test]
async fn a_machine_that_dies_is_on_record_as_failed_with_the_reason() {
    let it = Installation::new().await;
    let sandbox = running(&it).await;
    it.backend.fake.crash(&sandbox.id, "the kernel panicked");
    // The driver may have finished before this asks.
    drop(it.host.ended(&sandbox.id).await);
    let row = it.control.get_sandbox(&it.caller, &sandbox.id).await.expect("on record");
    assert_eq!(row.phase, Phase::Failed);
    let ending = row.ending.expect("an ending");
    assert_eq!(ending.cause, Cause::MachineExited);
    assert!(ending.detail.contains("the kernel panicked"), "{ending}");
    it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect("nothing to do");
}

/// S66
#[tokio::test]
async fn a_time_limit_is_moved_from_now_and_only_while_it_runs() {
    let it = Installation::new().await;
    let sandbox = running(&it).await;
    let hour = Timeout::seconds(3600).expect("a time limit");
    let moved = it.control.set_timeout(&it.caller, &sandbox.id, hour).await.expect("moved");
    assert!(moved.expires > sandbox.expires);
    assert!(moved.expires >= Some(sandbox.created.plus(Duration::from_secs(3600))));
    it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect("ended");
    let error = it.control.set_timeout(&it.caller, &sandbox.id, hour).await.expect_err("too late");
    assert_eq!(error.code(), "sandbox_not_running");
}

#[tokio::test]
async fn the_console_is_read_while_there_is_one() {
    let it = Installation::new().await;
    let sandbox = running(&it).await;
    let console = it.control.console(&it.caller, &sandbox.id).await.expect("a console");
    assert_eq!(console, b"fake console\n");
    it.control.terminate_sandbox(&it.caller, &sandbox.id).await.expect("ended");
    let error = it.control.console(&it.caller, &sandbox.id).await.expect_err("too late");
    assert_eq!(error.code(), "sandbox_not_running");
}
