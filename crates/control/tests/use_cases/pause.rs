//! Pausing and resuming, on both databases.

use std::time::Duration;

use control::{
    guest::GuestCall,
    sandboxes::{
        NewSandbox, Sandbox,
        request::{IdleTimeout, Timeout},
    },
    settings::TierLimits,
};
use domain::{ending::Cause, id::SandboxId, phase::Phase, snapshot::OnTimeout};
use store::audit::Outcome;
use testkit::{
    fake_backend::{Call, When},
    postgres::Postgres,
};
use tokio::task::JoinSet;

use crate::fixture::{Installation, request, scoped};

/// Runs a case on SQLite, and on Postgres where there is one.
async fn on_both(case: impl AsyncFn(Installation)) {
    case(Installation::new().await).await;
    if let Some(server) = Postgres::start() {
        case(Installation::with(TierLimits::default(), &server.database()).await).await;
    }
}

async fn create(it: &Installation, new: NewSandbox) -> Sandbox {
    it.control.create_sandbox(&it.caller, new).await.expect("it starts")
}

async fn row(it: &Installation, id: &SandboxId) -> Sandbox {
    it.store.sandbox(id).await.expect("read").expect("on record")
}

async fn health(it: &Installation, id: &SandboxId) -> Result<(), control::error::Error> {
    it.control.open_guest(&it.caller, id, &GuestCall::Health).await.map(drop)
}

async fn nothing_left(it: &Installation) {
    assert_eq!(it.machines().await, []);
    assert_eq!(it.host.snapshots().await.expect("a list"), []);
    assert_eq!(it.store.all_snapshots().await.expect("read"), []);
}

/// S33, S37, K10, K11, S49: rounds of a pause and a resume right after it, each
/// on record; nothing is left of a snapshot once the sandbox runs.
#[tokio::test]
async fn a_sandbox_is_paused_and_resumed_again_and_again() {
    on_both(async |it| {
        let made = create(&it, request()).await;
        for _ in 0..5 {
            let paused = it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
            assert_eq!(paused.phase, Phase::Paused);
            assert_eq!(it.machines().await, []);
            let again = it.control.pause_sandbox(&it.caller, &made.id).await.expect("again");
            assert_eq!(again.phase, Phase::Paused);
            let error = health(&it, &made.id).await.expect_err("it is paused");
            assert_eq!(error.code(), "sandbox_paused");
            let resumed = it.control.resume_sandbox(&it.caller, &made.id, None).await;
            assert_eq!(resumed.expect("resumed").phase, Phase::Running);
            health(&it, &made.id).await.expect("it answers");
            assert_eq!(it.host.snapshots().await.expect("a list"), []);
        }
        let actions = it.actions(&made.id).await;
        for action in ["sandbox.pause", "sandbox.paused", "sandbox.resume", "sandbox.resumed"] {
            let times = actions.iter().filter(|found| *found == action).count();
            assert_eq!(times, if action == "sandbox.pause" { 10 } else { 5 }, "{action}");
        }
        it.control.terminate_sandbox(&it.caller, &made.id).await.expect("ended");
        nothing_left(&it).await;
    })
    .await;
}

/// K13: what was left of its time is left after the pause, however long it was.
#[tokio::test]
async fn time_stands_still() {
    on_both(async |it| {
        let new = NewSandbox { timeout: Timeout::seconds(10).expect("a limit"), ..request() };
        let made = create(&it, new).await;
        it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
        let paused = row(&it, &made.id).await;
        let remaining = paused.rest.remaining.expect("it is kept");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        it.control.resume_sandbox(&it.caller, &made.id, None).await.expect("resumed");
        let now = (testkit::fixtures::sources().clock)();
        let left = now.until(row(&it, &made.id).await.expires.expect("a limit"));
        assert!(left <= remaining && left + Duration::from_millis(1400) > remaining, "{left:?}");
        // And a new one may be given.
        it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
        let timeout = Timeout::seconds(3000).expect("a limit");
        let resumed = it.control.resume_sandbox(&it.caller, &made.id, Some(timeout)).await;
        assert!(now.until(resumed.expect("resumed").expires.expect("a limit")) > left * 10);
    })
    .await;
}

/// K3: a snapshot that fails leaves a running sandbox; its cause is told and on
/// record, and nothing of the snapshot is left.
#[tokio::test]
async fn a_pause_that_fails_leaves_it_running() {
    on_both(async |it| {
        let made = create(&it, request()).await;
        it.backend.fake.fail(Call::Capture, Some("no space left on the disk"));
        let error = it.control.pause_sandbox(&it.caller, &made.id).await.expect_err("it fails");
        assert_eq!(error.code(), "snapshot_failed");
        assert!(error.to_string().contains("no space left"), "{error}");
        assert_eq!(row(&it, &made.id).await.phase, Phase::Running);
        health(&it, &made.id).await.expect("it answers");
        assert_eq!(it.store.all_snapshots().await.expect("read"), []);
        let lines = it.lines(&it.caller).await;
        assert!(lines.iter().any(|line| line.outcome == Outcome::Refused
            && line.detail.get("code") == Some(&"snapshot_failed".into())));
    })
    .await;
}

/// K14: a resume that fails says why, is on record, and leaves it paused.
#[tokio::test]
async fn a_resume_that_fails_leaves_it_paused() {
    on_both(async |it| {
        let made = create(&it, request()).await;
        it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
        it.backend.fake.fail(Call::Create, Some("no memory left"));
        let error =
            it.control.resume_sandbox(&it.caller, &made.id, None).await.expect_err("it fails");
        assert_eq!(error.code(), "resume_failed");
        assert!(error.to_string().contains("no memory left"), "{error}");
        assert!(error.to_string().contains("create a new one"), "{error}");
        let paused = row(&it, &made.id).await;
        assert_eq!((paused.phase, paused.rest.waking), (Phase::Paused, false));
        assert!(it.actions(&made.id).await.contains(&"sandbox.resume_failed".to_owned()));
        it.backend.fake.fail(Call::Create, None);
        it.control.resume_sandbox(&it.caller, &made.id, None).await.expect("resumed");
    })
    .await;
}

/// What has changed under a snapshot is said before anything is started.
#[tokio::test]
async fn an_incompatible_snapshot_is_refused_with_what_changed() {
    let it = Installation::new().await;
    let made = create(&it, request()).await;
    it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
    it.backend.fake.change_machine(Some("it was made with QEMU 7.2, here is 9.0"));
    let error = it.control.resume_sandbox(&it.caller, &made.id, None).await.expect_err("refused");
    assert_eq!(error.code(), "snapshot_incompatible");
    assert!(error.to_string().contains("QEMU 7.2"), "{error}");
    it.backend.fake.change_machine(None);
    let snapshot = it.store.pause_of(&made.id).await.expect("read").expect("a snapshot");
    it.backend.fake.lose(&snapshot.id);
    let error = it.control.resume_sandbox(&it.caller, &made.id, None).await.expect_err("refused");
    assert_eq!(error.code(), "snapshot_missing");
    it.control.terminate_sandbox(&it.caller, &made.id).await.expect("ended");
    nothing_left(&it).await;
}

/// Of simultaneous wishes for one thing one is done and the others join it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_wishes_are_one() {
    on_both(async |it| {
        let made = create(&it, request()).await;
        for phase in [Phase::Paused, Phase::Running, Phase::Paused, Phase::Running] {
            let mut wishes = JoinSet::new();
            for _ in 0..8 {
                let (control, caller, id) =
                    (it.control.clone(), it.caller.clone(), made.id.clone());
                wishes.spawn(async move {
                    match phase {
                        Phase::Paused => control.pause_sandbox(&caller, &id).await,
                        _ => control.resume_sandbox(&caller, &id, None).await,
                    }
                });
            }
            for outcome in wishes.join_all().await {
                assert_eq!(outcome.expect("it is done").phase, phase);
            }
        }
        let actions = it.actions(&made.id).await;
        let done = actions.iter().filter(|action| *action == "sandbox.resumed").count();
        assert_eq!(done, 2);
    })
    .await;
}

/// A pause, a resume and an end at the same time: whatever order they take, the
/// sandbox ends and nothing of it is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_races_with_an_end_nothing_is_left() {
    on_both(async |it| {
        for round in 0..12 {
            let made = create(&it, request()).await;
            if round % 2 == 1 {
                it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
            }
            let mut wishes = JoinSet::new();
            for wish in 0..6 {
                let (control, caller, id) =
                    (it.control.clone(), it.caller.clone(), made.id.clone());
                wishes.spawn(async move {
                    match wish % 3 {
                        0 => control.pause_sandbox(&caller, &id).await.map(drop),
                        1 => control.resume_sandbox(&caller, &id, None).await.map(drop),
                        _ => control.terminate_sandbox(&caller, &id).await,
                    }
                });
            }
            for error in wishes.join_all().await.into_iter().filter_map(Result::err) {
                let known = ["sandbox_not_running", "sandbox_paused", "sandbox_busy"];
                assert!(known.contains(&error.code()), "{error:?}");
            }
            assert_eq!(row(&it, &made.id).await.phase, Phase::Terminated);
        }
        it.control.tend().await.expect("a round");
        nothing_left(&it).await;
    })
    .await;
}

/// S30, S49: ending a paused sandbox removes its snapshot and the key.
#[tokio::test]
async fn ending_a_paused_sandbox_leaves_nothing() {
    on_both(async |it| {
        let made = create(&it, request()).await;
        it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
        it.control.terminate_sandbox(&it.caller, &made.id).await.expect("ended");
        assert_eq!(row(&it, &made.id).await.phase, Phase::Terminated);
        nothing_left(&it).await;
    })
    .await;
}

/// Paused sandboxes count apart; a resume needs a place among those that run.
#[tokio::test]
async fn a_resume_needs_a_place() {
    let tier = TierLimits { max_concurrent: 1, ..TierLimits::default() };
    let it = Installation::with(tier, "sqlite::memory:").await;
    let first = create(&it, request()).await;
    it.control.pause_sandbox(&it.caller, &first.id).await.expect("paused");
    let second = create(&it, request()).await;
    let error = it.control.resume_sandbox(&it.caller, &first.id, None).await.expect_err("full");
    assert_eq!(error.code(), "quota_exceeded");
    assert_eq!(row(&it, &first.id).await.phase, Phase::Paused);
    it.control.terminate_sandbox(&it.caller, &second.id).await.expect("ended");
    it.control.resume_sandbox(&it.caller, &first.id, None).await.expect("resumed");
}

/// S70: a sandbox of another organisation is unknown, and a scope is needed.
#[tokio::test]
async fn a_stranger_finds_nothing_to_pause() {
    let it = Installation::new().await;
    let made = create(&it, request()).await;
    let stranger = it.stranger().await;
    let error = it.control.pause_sandbox(&stranger, &made.id).await.expect_err("refused");
    assert_eq!(error.code(), "not_found");
    let error = it.control.resume_sandbox(&stranger, &made.id, None).await.expect_err("refused");
    assert_eq!(error.code(), "not_found");
    let reader = scoped(&it.caller, "sandboxes:read");
    let error = it.control.pause_sandbox(&reader, &made.id).await.expect_err("refused");
    assert_eq!(error.code(), "missing_scope");
    assert_eq!(row(&it, &made.id).await.phase, Phase::Running);
}

/// The next use of a paused sandbox resumes it where its owner wants that, also
/// when many come at the same time and while it is still being paused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_use_resumes_it() {
    on_both(async |it| {
        let made = create(&it, NewSandbox { auto_resume: true, ..request() }).await;
        it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
        let mut uses = JoinSet::new();
        for _ in 0..6 {
            let (control, caller, id) = (it.control.clone(), it.caller.clone(), made.id.clone());
            uses.spawn(async move {
                control.open_guest(&caller, &id, &GuestCall::Health).await.map(drop)
            });
        }
        for used in uses.join_all().await {
            used.expect("it was resumed");
        }
        let pausing = tokio::spawn({
            let (control, caller, id) = (it.control.clone(), it.caller.clone(), made.id.clone());
            async move { control.pause_sandbox(&caller, &id).await }
        });
        tokio::task::yield_now().await;
        health(&it, &made.id).await.expect("it answers");
        drop(pausing.await);
        health(&it, &made.id).await.expect("it answers");
    })
    .await;
}

/// At its time limit a sandbox is paused where that was asked for, with all of
/// its time again.
#[tokio::test]
async fn the_time_limit_pauses_it() {
    let it = Installation::new().await;
    let made = create(&it, NewSandbox { on_timeout: OnTimeout::Pause, ..request() }).await;
    it.control.tend().await.expect("a round");
    assert_eq!(row(&it, &made.id).await.phase, Phase::Running);
    // As if its time had passed.
    let now = (testkit::fixtures::sources().clock)();
    let line = it.lines(&it.caller).await.pop().expect("a line");
    let line = store::audit::AuditLine {
        id: domain::id::AuditId::from_random(testkit::fixtures::distinct_bytes()),
        ..line
    };
    let moved = it.store.set_sandbox_expiry(&made.id, now, &line).await.expect("set");
    assert_eq!(moved, store::sandboxes::Moved::Yes);
    it.control.tend().await.expect("a round");
    let paused = settled(&it, &made.id, Phase::Paused).await;
    assert_eq!(paused.rest.remaining, Some(paused.timeout));
}

/// A sandbox that nobody uses is paused; one in use is not.
#[tokio::test]
async fn an_idle_sandbox_is_paused() {
    let it = Installation::new().await;
    let idle = Some(IdleTimeout::seconds(5).expect("a time"));
    let made = create(&it, NewSandbox { idle, ..request() }).await;
    let used = create(&it, NewSandbox { idle, ..request() }).await;
    let stream = it.control.open_guest(&it.caller, &used.id, &GuestCall::Watch).await;
    let stream = stream.expect("a stream");
    tokio::time::sleep(Duration::from_millis(5200)).await;
    it.control.tend().await.expect("a round");
    settled(&it, &made.id, Phase::Paused).await;
    assert_eq!(row(&it, &used.id).await.phase, Phase::Running);
    drop(stream);
}

/// S35, K12: what was paused for too long is gone, on record, and says so.
#[tokio::test]
async fn what_was_kept_for_long_enough_is_gone() {
    on_both(async |it| {
        let it = it.keeping(Duration::ZERO).await;
        let made = create(&it, request()).await;
        it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
        it.control.tend().await.expect("a round");
        let ended = row(&it, &made.id).await;
        assert_eq!(ended.phase, Phase::Terminated);
        assert_eq!(ended.ending.map(|ending| ending.cause), Some(Cause::Expired));
        let error = it.control.resume_sandbox(&it.caller, &made.id, None).await;
        assert_eq!(error.expect_err("gone").code(), "snapshot_expired");
        let error = health(&it, &made.id).await.expect_err("gone");
        assert_eq!(error.code(), "snapshot_expired");
        assert!(it.actions(&made.id).await.contains(&"sandbox.ended".to_owned()));
        nothing_left(&it).await;
    })
    .await;
}

/// A pause by itself that fails leaves it running and is not tried at once again.
#[tokio::test]
async fn a_pause_by_itself_that_fails_is_put_off() {
    let it = Installation::new().await;
    let idle = Some(IdleTimeout::seconds(5).expect("a time"));
    let made = create(&it, NewSandbox { idle, ..request() }).await;
    tokio::time::sleep(Duration::from_millis(5200)).await;
    it.backend.fake.fail(Call::Capture, Some("no space"));
    it.control.tend().await.expect("a round");
    tokio::time::sleep(Duration::from_millis(300)).await;
    it.control.tend().await.expect("a round");
    let tried = it.actions(&made.id).await;
    assert_eq!(tried.iter().filter(|action| *action == "sandbox.pause").count(), 1);
    assert_eq!(row(&it, &made.id).await.phase, Phase::Running);
}

/// A client that hangs up in the middle leaves a pause that goes on.
#[tokio::test]
async fn a_pause_nobody_waits_for_goes_on() {
    let it = Installation::new().await;
    let made = create(&it, request()).await;
    let mut stalled = it.backend.fake.stall(Call::Destroy, When::Before);
    let pausing = tokio::spawn({
        let (control, caller, id) = (it.control.clone(), it.caller.clone(), made.id.clone());
        async move { control.pause_sandbox(&caller, &id).await }
    });
    stalled.wait_for(|stalled| *stalled).await.expect("it got there");
    pausing.abort();
    settled(&it, &made.id, Phase::Paused).await;
}

async fn settled(it: &Installation, id: &SandboxId, phase: Phase) -> Sandbox {
    for _ in 0..400 {
        let found = row(it, id).await;
        if found.phase == phase {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is {:?}", row(it, id).await.phase);
}
