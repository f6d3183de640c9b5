//! A server that is killed in the middle, at every step.
//!
//! Each case runs its server on a runtime of its own and drops that where the
//! backend stands still; the machines live on another. What the next server
//! finds must be the running sandbox or a whole snapshot, and nothing else.

use control::{
    bootstrap::{FirstTokens, bootstrap},
    guest::GuestCall,
    recovery::Recovered,
    sandboxes::{Sandbox, fork::NewFork, request::Copies},
    settings::TierLimits,
    snapshots::NewSnapshot,
};
use domain::{id::SandboxId, phase::Phase, region::Region};
use store::{Store, sealing::Sealing};
use testkit::{
    fake_backend::{Call, FakeBackend, When},
    fixtures::sources,
    postgres::Postgres,
};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{GatedBackend, Installation, request, sqlite_url};

/// What was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Pause,
    Resume,
    Fork,
    Snapshot,
}

/// Where it stood still, and what the sandbox is then.
type Point = (Work, Call, When, Phase);

const POINTS: [Point; 17] = [
    (Work::Pause, Call::Capture, When::Before, Phase::Running),
    (Work::Pause, Call::Capture, When::After, Phase::Running),
    (Work::Pause, Call::Destroy, When::Before, Phase::Paused),
    (Work::Pause, Call::Destroy, When::After, Phase::Paused),
    (Work::Resume, Call::Destroy, When::Before, Phase::Paused),
    (Work::Resume, Call::Create, When::Before, Phase::Paused),
    (Work::Resume, Call::Create, When::After, Phase::Paused),
    (Work::Resume, Call::Forget, When::Before, Phase::Running),
    (Work::Resume, Call::Forget, When::After, Phase::Running),
    (Work::Fork, Call::Capture, When::Before, Phase::Running),
    (Work::Fork, Call::Capture, When::After, Phase::Running),
    (Work::Fork, Call::Create, When::Before, Phase::Running),
    (Work::Fork, Call::Create, When::After, Phase::Running),
    (Work::Fork, Call::Forget, When::Before, Phase::Running),
    (Work::Fork, Call::Forget, When::After, Phase::Running),
    (Work::Snapshot, Call::Capture, When::Before, Phase::Running),
    (Work::Snapshot, Call::Capture, When::After, Phase::Running),
];

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn server(
    url: &str,
    backend: &FakeBackend,
    tokens: &mut Option<FirstTokens>,
) -> Installation {
    let store = Store::open(url).await.expect("it opens");
    let store = store.with_sealing(Sealing::from_random([9; 32]));
    let keep = |first: &FirstTokens| {
        *tokens = Some(first.clone());
        Ok(())
    };
    bootstrap(&store, &Region::local(), &sources(), keep).await.expect("a start");
    let tokens = tokens.clone().expect("they were kept");
    let backend = GatedBackend::over(backend.clone());
    Installation::over(TierLimits::default(), store, tokens, backend).await
}

async fn work(it: &Installation, work: Work, id: &SandboxId) {
    let (control, caller) = (&it.control, &it.caller);
    match work {
        Work::Pause => drop(control.pause_sandbox(caller, id).await),
        Work::Resume => drop(control.resume_sandbox(caller, id, None).await),
        Work::Fork => {
            let fork = NewFork { count: Copies::new(3).expect("a count"), ..NewFork::default() };
            drop(control.fork_sandbox(caller, id, fork).await);
        }
        Work::Snapshot => {
            let new = NewSnapshot { name: "kept".parse().expect("a name"), keep: None };
            drop(control.create_snapshot(caller, id, new).await);
        }
    }
}

/// Kills a server there and says what the next one found.
fn killed(url: &str, (doing, call, when, expected): Point) {
    let machines = runtime();
    let backend = FakeBackend::outliving(machines.handle().clone());
    let mut tokens = None;
    let first = runtime();
    let id = first.block_on(async {
        let it = server(url, &backend, &mut tokens).await;
        let made = it.control.create_sandbox(&it.caller, request()).await.expect("it starts");
        if doing == Work::Resume {
            it.control.pause_sandbox(&it.caller, &made.id).await.expect("paused");
        }
        let mut stalled = backend.stall(call, when);
        let id = made.id.clone();
        tokio::spawn(async move { work(&it, doing, &id).await });
        stalled.wait_for(|stalled| *stalled).await.expect("it got there");
        made.id
    });
    first.shutdown_background();

    let second = runtime();
    second.block_on(async {
        let it = server(url, &backend, &mut tokens).await;
        let recovered = it.control.recover().await.expect("it recovers");
        let place = format!("{doing:?} {call:?} {when:?} {recovered:?}");
        assert_eq!((recovered.missing, recovered.leftover), (0, false), "{place}");
        let row = it.store.sandbox(&id).await.expect("read").expect("on record");
        assert_eq!((row.phase, row.rest.waking), (expected, false), "{place}");
        let copies: Vec<Sandbox> = it.store.live_sandboxes().await.expect("read");
        let running = copies.iter().filter(|row| row.phase == Phase::Running).count();
        assert_eq!(it.machines().await.len(), running, "{place}");
        // It is what it is said to be, and every way is open from there.
        if expected == Phase::Running {
            let call = GuestCall::Health;
            it.control.open_guest(&it.caller, &id, &call).await.expect("it answers");
            assert!(!backend.stands_still(&id), "{place}");
            it.control.pause_sandbox(&it.caller, &id).await.expect("paused");
        }
        it.control.resume_sandbox(&it.caller, &id, None).await.expect("resumed");
        assert_eq!(backend.guest(&id).expect("a guest").identified(), 1, "{place}");
        for copy in copies {
            it.control.terminate_sandbox(&it.caller, &copy.id).await.expect("ended");
        }
        it.control.tend().await.expect("a round");
        assert_eq!(it.machines().await, [], "{place}");
        assert_eq!(it.host.snapshots().await.expect("a list"), [], "{place}");
        assert_eq!(it.store.all_snapshots().await.expect("read"), [], "{place}");
        assert_eq!(it.control.recover().await.expect("again"), Recovered::default(), "{place}");
        it.store.close().await;
    });
}

/// S33, K17: killed at each step of a pause, a resume, a copy and a snapshot, a
/// server loses nothing and leaves nothing.
#[test]
fn a_kill_at_any_step_loses_nothing() {
    for point in POINTS {
        let folder = tempfile::tempdir().expect("a folder");
        killed(&sqlite_url(folder.path()), point);
    }
    let Some(postgres) = Postgres::start() else { return };
    for point in POINTS {
        killed(&postgres.database(), point);
    }
}
