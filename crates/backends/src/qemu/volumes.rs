//! Volumes in the slots of a machine.
//!
//! Every machine has [`SLOTS`] disks that nothing is behind. To put a volume in,
//! the file is opened and locked here and handed over as a descriptor; QEMU
//! exchanges what is behind the disk, and tells the guest its new size. Taking
//! it out goes the other way, without a word to the guest, which has let go of
//! it before; then QEMU closes the file, and with it goes the lock.
//!
//! ```text
//!  disk0 ── slot0 (raw) ── empty0 (null)         nothing in it
//!                 └─────── d0<volume> (file)     a volume in it
//! ```
//!
//! A machine that was captured with a volume is given it before it goes on: its
//! guest writes to it at once.
//!
//! What must hold: no machine is told a path; no machine gets a file that
//! another one has; what QEMU says about its disks decides, so that a server
//! which was killed in the middle can do the same again.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::fd::OwnedFd,
};

use domain::volume::VolumeSize;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sandbox::{
    backend::BackendError,
    volumes::{Disk, SLOTS},
};
use serde_json::{Value, json};

use super::{
    cgroup::Group,
    command::Line,
    machine::Machine,
    qmp::{Qmp, QmpError},
};

/// The number of the set of descriptors for the first slot.
const FIRST_SET: u32 = 20;
/// The longest QEMU may take with one command. It waits for the host's disk.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(30);

/// Adds the disks that volumes go into.
pub(super) fn add_slots(line: &mut Line) {
    for slot in 0..SLOTS {
        line.option(
            "-blockdev",
            format!("driver=null-co,node-name=empty{slot},size=0,read-zeroes=on"),
        );
        line.option(
            "-blockdev",
            format!("driver=raw,node-name=slot{slot},file=empty{slot},discard=unmap"),
        );
        // A disk of the host that is full is an error of the guest's write, and
        // no reason to stop the whole machine.
        line.option(
            "-device",
            format!("virtio-blk-device,id=disk{slot},drive=slot{slot},num-queues=1,werror=report,rerror=report"),
        );
    }
}

/// Whoever takes commands for QEMU.
pub(super) trait Tell {
    /// Tells QEMU something and waits for its answer.
    async fn tell(
        &mut self,
        name: &'static str,
        arguments: Value,
        descriptor: Option<OwnedFd>,
    ) -> Result<Value, QmpError>;
}

impl Tell for &Machine {
    async fn tell(
        &mut self,
        name: &'static str,
        arguments: Value,
        descriptor: Option<OwnedFd>,
    ) -> Result<Value, QmpError> {
        self.command(name, arguments, descriptor).await
    }
}

impl Tell for Qmp {
    async fn tell(
        &mut self,
        name: &'static str,
        arguments: Value,
        descriptor: Option<OwnedFd>,
    ) -> Result<Value, QmpError> {
        use std::os::fd::AsFd as _;
        match &descriptor {
            Some(descriptor) => self.send_with(name, arguments, descriptor.as_fd()).await?,
            None => self.send(name, arguments).await?,
        }
        self.answer(name, ANSWER).await
    }
}

/// Why a volume was not put in or taken out.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeFault {
    #[error("another machine has the volume")]
    Locked,
    #[error("there is no slot {0}")]
    NoSlot(u8),
    #[error("the slot holds another volume")]
    Occupied,
    #[error("the volume has another size than it should")]
    Size,
    #[error(transparent)]
    Qmp(#[from] QmpError),
    #[error("the file of the volume cannot be used")]
    File(#[from] io::Error),
}

impl From<VolumeFault> for BackendError {
    fn from(fault: VolumeFault) -> Self {
        Self::failed("changing what is in a slot of the machine", fault)
    }
}

/// Puts a volume into its slot and tells the guest.
pub(super) async fn attach(
    qemu: &mut impl Tell,
    group: &Group,
    disk: &Disk,
) -> Result<(), VolumeFault> {
    match occupant(qemu, disk.slot).await? {
        Some(node) if node == node_of(disk) => {}
        Some(_) => return Err(VolumeFault::Occupied),
        None => {
            if let Err(fault) = insert(qemu, group, disk).await {
                // It may be half in. What is the cause is what is told.
                empty(qemu, disk.slot).await.ok();
                return Err(fault);
            }
        }
    }
    announce(qemu, disk).await
}

/// Puts a volume into the slot of a machine that does not run yet.
pub(super) async fn insert(
    qemu: &mut impl Tell,
    group: &Group,
    disk: &Disk,
) -> Result<(), VolumeFault> {
    if disk.slot >= SLOTS {
        return Err(VolumeFault::NoSlot(disk.slot));
    }
    let file = locked(disk)?;
    allow(group, disk.bytes)?;
    let (set, node) = (set_of(disk.slot), node_of(disk));
    let number = json!({ "fdset-id": set });
    // Of a server that was killed in the middle.
    qemu.tell("remove-fd", number.clone(), None).await.ok();
    qemu.tell("add-fd", number, Some(file.into())).await?;
    let file = json!({
        "driver": "file", "node-name": node, "filename": format!("/dev/fdset/{set}"),
        "locking": "off", "discard": "unmap",
    });
    qemu.tell("blockdev-add", file, None).await?;
    reopen(qemu, disk.slot, &node).await
}

/// Tells the guest how large the volume in a slot is.
pub(super) async fn announce(qemu: &mut impl Tell, disk: &Disk) -> Result<(), VolumeFault> {
    let size = json!({ "node-name": format!("slot{}", disk.slot), "size": disk.bytes });
    qemu.tell("block_resize", size, None).await?;
    Ok(())
}

/// Takes out what is in a slot.
pub(super) async fn empty(qemu: &mut impl Tell, slot: u8) -> Result<(), VolumeFault> {
    if slot >= SLOTS {
        return Err(VolumeFault::NoSlot(slot));
    }
    if let Some(node) = occupant(qemu, slot).await? {
        reopen(qemu, slot, &format!("empty{slot}")).await?;
        qemu.tell("blockdev-del", json!({ "node-name": node }), None).await?;
    }
    // Absent where it was removed before.
    qemu.tell("remove-fd", json!({ "fdset-id": set_of(slot) }), None).await.ok();
    Ok(())
}

/// The node of the volume in a slot.
async fn occupant(qemu: &mut impl Tell, slot: u8) -> Result<Option<String>, VolumeFault> {
    let nodes = qemu.tell("query-named-block-nodes", json!({ "flat": true }), None).await?;
    let names = nodes.as_array().into_iter().flatten();
    let mut names = names.filter_map(|node| node.get("node-name").and_then(Value::as_str));
    Ok(names.find(|name| name.starts_with(&format!("d{slot}"))).map(str::to_owned))
}

/// Exchanges what is behind the disk of a slot.
async fn reopen(qemu: &mut impl Tell, slot: u8, behind: &str) -> Result<(), VolumeFault> {
    let options = json!({ "options": [{
        "driver": "raw", "node-name": format!("slot{slot}"), "file": behind, "discard": "unmap",
    }] });
    qemu.tell("blockdev-reopen", options, None).await?;
    Ok(())
}

/// A name has at most 31 characters: the slot, and the volume's without its
/// prefix.
fn node_of(disk: &Disk) -> String {
    let volume = disk.volume.as_str();
    format!("d{}{}", disk.slot, volume.rsplit('_').next().unwrap_or(volume))
}

fn set_of(slot: u8) -> u32 {
    FIRST_SET + u32::from(slot)
}

/// Opens the file for whoever gets the descriptor: the lock belongs to the open
/// file, and lasts until the last copy of the descriptor is closed.
fn locked(disk: &Disk) -> Result<File, VolumeFault> {
    let file = OpenOptions::new().read(true).write(true).open(&disk.file)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(VolumeFault::Locked),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    // A larger one would end in the middle of a write.
    if file.metadata()?.len() != disk.bytes {
        return Err(VolumeFault::Size);
    }
    Ok(file)
}

/// The largest file that a machine without a volume may write.
///
/// Where we may not raise that limit later, as in some containers, every machine
/// begins with that of the largest volume.
pub(super) fn file_limit() -> u64 {
    if may_raise() { 0 } else { u64::from(VolumeSize::MAX) * 1024 * 1024 }
}

/// Whether this process may change the limits of a machine that runs.
fn may_raise() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    rights & (1 << CAP_SYS_RESOURCE) != 0
}

/// Lets the machine write files as large as its volume, and no larger: QEMU would
/// be ended by a signal otherwise.
fn allow(group: &Group, bytes: u64) -> io::Result<()> {
    if !may_raise() {
        return Ok(());
    }
    for pid in group.members().into_iter().filter_map(Pid::from_raw) {
        let limit = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
        let before = prlimit(Some(pid), Resource::Fsize, limit(bytes))?;
        // That of the larger of two volumes.
        if let Some(more) = before.maximum.filter(|maximum| *maximum > bytes) {
            prlimit(Some(pid), Resource::Fsize, limit(more))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use domain::id::VolumeId;

    use super::*;

    fn disk(file: &std::path::Path) -> Disk {
        let bytes = std::fs::metadata(file).unwrap().len();
        Disk { volume: VolumeId::from_random([7; 16]), slot: 1, file: file.to_owned(), bytes }
    }

    /// Plays QEMU: what it was told, and what it answers.
    #[derive(Default)]
    struct Script {
        told: Vec<(&'static str, Value)>,
        refuse: Option<&'static str>,
        nodes: VecDeque<Vec<String>>,
    }

    impl Tell for Script {
        async fn tell(
            &mut self,
            name: &'static str,
            arguments: Value,
            _: Option<OwnedFd>,
        ) -> Result<Value, QmpError> {
            self.told.push((name, arguments));
            if self.refuse == Some(name) {
                return Err(QmpError::Refused { command: name, text: "no".into() });
            }
            let nodes = || self.nodes.front().cloned().unwrap_or_default();
            Ok(match name {
                "query-named-block-nodes" => {
                    let answer = nodes().iter().map(|node| json!({ "node-name": node })).collect();
                    if self.nodes.len() > 1 {
                        self.nodes.pop_front();
                    }
                    Value::Array(answer)
                }
                _ => json!({}),
            })
        }
    }

    impl Script {
        fn names(&self) -> Vec<&'static str> {
            self.told.iter().map(|(name, _)| *name).collect()
        }
    }

    #[test]
    fn a_name_is_one_that_qemu_takes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = node_of(&disk(file.path()));
        assert!(name.len() <= 31 && name.starts_with("d1"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()));
    }

    /// U37: a file has one machine, whatever the rows say.
    #[test]
    fn a_file_that_somebody_has_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = locked(&disk(file.path())).unwrap();
        assert!(matches!(locked(&disk(file.path())), Err(VolumeFault::Locked)));
        drop(held);
        assert!(locked(&disk(file.path())).is_ok());
        let larger = Disk { bytes: 4096, ..disk(file.path()) };
        assert!(matches!(locked(&larger), Err(VolumeFault::Size)));
    }

    #[tokio::test]
    async fn a_slot_is_filled_once_and_emptied_twice() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = disk(file.path());
        let mut qemu = Script { nodes: [vec![node_of(&disk)]].into(), ..Script::default() };
        empty(&mut qemu, 1).await.unwrap();
        let order = ["query-named-block-nodes", "blockdev-reopen", "blockdev-del", "remove-fd"];
        assert_eq!(qemu.names(), order);
        assert_eq!(qemu.told[1].1["options"][0]["file"], "empty1");
        let mut qemu = Script { nodes: [vec!["slot1".into()]].into(), ..Script::default() };
        empty(&mut qemu, 1).await.unwrap();
        assert_eq!(qemu.names(), ["query-named-block-nodes", "remove-fd"]);
        assert!(matches!(empty(&mut qemu, SLOTS).await, Err(VolumeFault::NoSlot(_))));
    }
}
