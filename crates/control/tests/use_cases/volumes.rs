//! Volumes: who gets one, what becomes of it, and what a killed server left.

use control::{
    Control,
    error::Error,
    sandboxes::{NewSandbox, Sandbox},
    volumes::{NewMount, NewVolume, VolumeLimits, VolumeView, Volumes},
};
use domain::{
    ending::Cause,
    phase::Phase,
    volume::{AttachmentState, KeptState, MountPath, VolumeRef, VolumeSize},
};
use store::{disks::Disks, objects::Objects};
use tempfile::TempDir;

use crate::fixture::{Installation, request};

/// An installation with a place for volumes.
struct Case {
    it: Installation,
    folder: TempDir,
}

fn place(folder: &TempDir) -> Volumes {
    let disks = Disks::open(folder.path().join("volumes")).expect("a folder");
    let objects = Objects::folder(&folder.path().join("objects")).expect("a folder");
    let limits =
        VolumeLimits { most_mib: 64, most_total_mib: 128, reserve: 0, ..VolumeLimits::default() };
    Volumes::new(disks, objects, limits)
}

impl Case {
    async fn new() -> Self {
        let mut it = Installation::new().await;
        let folder = tempfile::tempdir().expect("a folder");
        it.control = it.control.clone().with_volumes(place(&folder));
        Self { it, folder }
    }

    /// The same after its process was replaced.
    async fn restarted(self) -> Self {
        let mut it = self.it.restarted().await;
        it.control = it.control.clone().with_volumes(place(&self.folder));
        it.control.recover().await.expect("it recovers");
        Self { it, folder: self.folder }
    }

    fn control(&self) -> &Control {
        &self.it.control
    }

    async fn create(&self, name: &str) -> Result<VolumeView, Error> {
        let new = NewVolume {
            name: name.parse().expect("a name"),
            size: Some(VolumeSize::mib(16).expect("a size")),
            region: None,
            checkpoint: None,
        };
        self.control().create_volume(&self.it.caller, new).await
    }

    async fn sandbox(&self) -> Sandbox {
        self.control().create_sandbox(&self.it.caller, request()).await.expect("it starts")
    }

    async fn attach(&self, sandbox: &Sandbox, name: &str) -> Result<(), Error> {
        let attached = self.control().attach_volume(&self.it.caller, &sandbox.id, mount(name));
        attached.await.map(drop)
    }

    async fn detach(&self, sandbox: &Sandbox, name: &str) -> Result<(), Error> {
        self.control().detach_volume(&self.it.caller, &sandbox.id, &which(name)).await
    }

    async fn get(&self, name: &str) -> Result<VolumeView, Error> {
        self.control().get_volume(&self.it.caller, &which(name)).await
    }

    fn files(&self, of: &str) -> usize {
        let mut count = 0;
        let mut folders = vec![self.folder.path().join(of)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type().expect("a type").is_dir() {
                    true => folders.push(entry.path()),
                    false => count += 1,
                }
            }
        }
        count
    }
}

fn which(name: &str) -> VolumeRef {
    name.parse().expect("a name")
}

fn mount(name: &str) -> NewMount {
    NewMount { volume: which(name), path: MountPath::default() }
}

#[track_caller]
fn code<T: std::fmt::Debug>(outcome: Result<T, Error>) -> &'static str {
    outcome.expect_err("it is refused").code()
}

/// S32, U37: a volume has one sandbox at a time and outlives it.
#[tokio::test]
async fn a_volume_goes_from_one_sandbox_to_the_next() {
    let case = Case::new().await;
    let made = case.create("data").await.expect("made");
    assert_eq!((made.volume.state, made.attachment), (KeptState::Ready, None));
    assert!(made.used_bytes > 0);
    let (first, second) = (case.sandbox().await, case.sandbox().await);
    case.attach(&first, "data").await.expect("attached");
    case.attach(&first, "data").await.expect("attached before");
    assert_eq!(case.it.backend.fake.disks(&first.id).len(), 1);
    let guest = case.it.backend.fake.guest(&first.id).expect("a guest");
    assert_eq!(guest.volumes().into_values().collect::<Vec<_>>(), ["/persist"]);
    assert_eq!(code(case.attach(&second, "data").await), "volume_attached");
    assert_eq!(code(case.control().delete_volume(&case.it.caller, &which("data")).await), "volume_attached");

    guest.use_volumes(true);
    assert_eq!(code(case.detach(&first, "data").await), "volume_busy");
    let lease = case.get("data").await.expect("known").attachment.expect("attached");
    assert_eq!(lease.state, AttachmentState::Attached);
    guest.use_volumes(false);
    case.detach(&first, "data").await.expect("detached");
    case.detach(&first, "data").await.expect("detached before");
    assert!(case.it.backend.fake.disks(&first.id).is_empty());

    case.attach(&second, "data").await.expect("attached");
    let guest = case.it.backend.fake.guest(&second.id).expect("a guest");
    case.control().terminate_sandbox(&case.it.caller, &second.id).await.expect("ended");
    assert_eq!(guest.synced(), 1);
    case.attach(&first, "data").await.expect("attached again");
    assert_eq!(case.files("volumes"), 1);
}

/// U37: a sandbox that is asked for with volumes has them, or is not there.
#[tokio::test]
async fn a_sandbox_begins_with_its_volumes_or_not_at_all() {
    let case = Case::new().await;
    case.create("data").await.expect("made");
    let with = |name: &str| NewSandbox { volumes: vec![mount(name)], ..request() };
    let made = case.control().create_sandbox(&case.it.caller, with("data")).await.expect("made");
    assert_eq!(case.it.backend.fake.disks(&made.id).len(), 1);
    let refused = case.control().create_sandbox(&case.it.caller, with("data")).await;
    assert_eq!(code(refused), "volume_attached");
    let unknown = case.control().create_sandbox(&case.it.caller, with("none")).await;
    assert_eq!(code(unknown), "not_found");
    case.create("other").await.expect("made");
    case.it.backend.fake.fail_attach(Some("no"));
    let failed = case.control().create_sandbox(&case.it.caller, with("other")).await;
    let Err(Error::StartFailed { id, ending }) = failed else { panic!("it has no volume") };
    assert!(ending.detail.contains("other"), "{ending}");
    let row = case.control().get_sandbox(&case.it.caller, &id).await.expect("on record");
    assert_eq!((row.phase, row.ending.map(|it| it.cause)), (Phase::Failed, Some(Cause::StartFailed)));
    assert_eq!(case.it.machines().await, [made.id]);
    assert_eq!(case.get("other").await.expect("known").attachment, None);
}

/// S70: what belongs to another organisation is not there.
#[tokio::test]
async fn a_stranger_sees_no_volume() {
    let case = Case::new().await;
    let made = case.create("data").await.expect("made");
    let checkpoint = case.control().create_checkpoint(&case.it.caller, &which("data")).await;
    let checkpoint = checkpoint.expect("made").id;
    let stranger = case.it.stranger().await;
    let id = VolumeRef::Id(made.volume.id);
    let control = case.control();
    for which in [&id, &which("data")] {
        assert_eq!(code(control.get_volume(&stranger, which).await), "not_found");
        assert_eq!(code(control.delete_volume(&stranger, which).await), "not_found");
        assert_eq!(code(control.create_checkpoint(&stranger, which).await), "not_found");
        assert_eq!(code(control.list_checkpoints(&stranger, which).await), "not_found");
    }
    assert_eq!(code(control.delete_checkpoint(&stranger, &checkpoint).await), "not_found");
    let new = NewVolume {
        name: "mine".parse().expect("a name"),
        size: None,
        region: None,
        checkpoint: Some(checkpoint),
    };
    assert_eq!(code(control.create_volume(&stranger, new).await), "not_found");
    assert_eq!(control.list_volumes(&stranger).await.expect("a list"), []);
}

/// S61, S62, U20: limits, regions and names.
#[tokio::test]
async fn a_volume_that_cannot_be_is_refused() {
    let case = Case::new().await;
    case.create("data").await.expect("made");
    assert_eq!(code(case.create("data").await), "name_taken");
    let new = |name: &str, mib: Option<u32>, region: Option<&str>| NewVolume {
        name: name.parse().expect("a name"),
        size: mib.map(|mib| VolumeSize::mib(mib).expect("a size")),
        region: region.map(|region| region.parse().expect("a region")),
        checkpoint: None,
    };
    for (new, expected) in [
        (new("large", Some(65), None), "invalid_request"),
        (new("none", None, None), "invalid_request"),
        (new("far", Some(16), Some("eu")), "invalid_request"),
    ] {
        assert_eq!(code(case.control().create_volume(&case.it.caller, new).await), expected);
    }
    case.control().create_volume(&case.it.caller, new("b", Some(64), None)).await.expect("made");
    let full = case.control().create_volume(&case.it.caller, new("c", Some(64), None)).await;
    assert_eq!(code(full), "quota_exceeded");
    assert_eq!(case.files("volumes"), 2);
}

/// S39, S40: a checkpoint restores to a new volume; deleting a volume leaves
/// nothing of it anywhere.
#[tokio::test]
async fn a_checkpoint_becomes_a_volume() {
    let case = Case::new().await;
    let made = case.create("data").await.expect("made");
    let sandbox = case.sandbox().await;
    case.attach(&sandbox, "data").await.expect("attached");
    let caller = &case.it.caller;
    let first = case.control().create_checkpoint(caller, &which("data")).await.expect("made");
    assert_eq!(first.state, KeptState::Ready);
    assert!(first.data_bytes > 0 && first.stored_bytes == first.data_bytes);
    let second = case.control().create_checkpoint(caller, &which("data")).await.expect("made");
    assert_eq!((second.data_bytes, second.stored_bytes), (first.data_bytes, 0));
    let new = NewVolume {
        name: "copy".parse().expect("a name"),
        size: None,
        region: None,
        checkpoint: Some(first.id.clone()),
    };
    let copy = case.control().create_volume(caller, new).await.expect("made");
    assert_eq!((copy.volume.state, copy.volume.source), (KeptState::Ready, Some(first.id.clone())));
    let content = |id: &str| std::fs::read(case.folder.path().join("volumes").join(id));
    let (old, new) = (made.volume.id.as_str(), copy.volume.id.as_str());
    assert!(content(old).expect("a file") == content(new).expect("a file"));

    case.control().delete_checkpoint(caller, &first.id).await.expect("deleted");
    let left = case.control().list_checkpoints(caller, &which("data")).await.expect("a list");
    assert_eq!(left.iter().map(|it| &it.id).collect::<Vec<_>>(), [&second.id]);
    case.detach(&sandbox, "data").await.expect("detached");
    case.control().delete_volume(caller, &which("data")).await.expect("deleted");
    assert_eq!((case.files("volumes"), case.files("objects")), (1, 0));
    assert_eq!(code(case.get("data").await), "not_found");
}

/// A damaged checkpoint becomes no volume, and says why.
#[tokio::test]
async fn a_damaged_checkpoint_becomes_no_volume() {
    let case = Case::new().await;
    let made = case.create("data").await.expect("made");
    let caller = &case.it.caller;
    let checkpoint = case.control().create_checkpoint(caller, &which("data")).await.expect("made");
    let chunks = case.folder.path().join("objects/volumes");
    let chunks = chunks.join(made.volume.id.as_str()).join("chunks");
    for entry in std::fs::read_dir(chunks).expect("chunks").flatten() {
        std::fs::write(entry.path(), b"damage").expect("written");
    }
    let new = NewVolume {
        name: "copy".parse().expect("a name"),
        size: None,
        region: None,
        checkpoint: Some(checkpoint.id),
    };
    let copy = case.control().create_volume(caller, new).await.expect("a row");
    assert_eq!(copy.volume.state, KeptState::Failed);
    assert!(copy.volume.detail.expect("why").contains("damaged"));
    let sandbox = case.sandbox().await;
    assert_eq!(code(case.attach(&sandbox, "copy").await), "volume_not_ready");
    assert_eq!(case.files("volumes"), 1);
    case.control().delete_volume(caller, &which("copy")).await.expect("deleted");
}

/// K17: a server that comes back finishes or undoes what was under way.
#[tokio::test]
async fn a_server_that_comes_back_puts_volumes_in_order() {
    let case = Case::new().await;
    let made = case.create("data").await.expect("made").volume;
    let sandbox = case.sandbox().await;
    case.attach(&sandbox, "data").await.expect("attached");
    let store = case.it.store.clone();
    // As if it had been killed between the row and the machine.
    let state = AttachmentState::Attaching;
    let moved = store.move_attachment(&made.id, &sandbox.id, state, None).await;
    assert!(moved.is_ok());
    std::fs::write(case.folder.path().join("volumes/vol_aaaaaaaaaaaaaaaaaaaaaaaaaa.new"), b"x")
        .expect("written");
    let case = case.restarted().await;
    let settled = async {
        loop {
            let lease = case.get("data").await.expect("known").attachment.expect("a lease");
            if lease.state == AttachmentState::Attached {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), settled).await.expect("settled");
    assert_eq!(case.files("volumes"), 1);
    case.detach(&sandbox, "data").await.expect("detached");
}
