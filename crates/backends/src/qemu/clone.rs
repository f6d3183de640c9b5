//! Makes a sandbox's machine: a clone of its template, or a copy of a snapshot.
//!
//! Intent is written down first, then each thing before the next is made. QEMU
//! is told everything at once, while it still starts and its memory may still be
//! filled; it runs the machine by itself as soon as the device state is loaded. The link is connected before
//! that, so that the guest finds its port as open as it was in the template.

use std::{
    fs::File,
    os::fd::AsFd as _,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox::{backend::BackendError, spec::SandboxSpec, volumes::Disk};
use serde_json::json;
use tokio::{net::UnixStream, sync::OwnedMutexGuard, time::timeout};

use super::{
    Site,
    command::{Machine as Line, number},
    console,
    filling::Filling,
    host::{Start, Started},
    jail::order::Lifetime,
    launch::LaunchError,
    machine::{Found, Machine},
    memfd, micros,
    original::Original,
    qmp::Qmp,
    record::Record,
    template::boot::{capabilities, migrated},
    volumes,
};

/// How long QEMU may take to start and load the state. A busy host is slow.
const LOADING: Duration = Duration::from_secs(60);

/// What to clone.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) original: Original,
    pub(super) spec: SandboxSpec,
    pub(super) lifetime: Lifetime,
}

/// How long each step took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// Until QEMU was executed, confined.
    pub(super) spawn_us: u64,
    /// Until QEMU answered.
    pub(super) qmp_us: u64,
    /// Until its memory was filled.
    pub(super) fill_us: u64,
    /// Until the machine ran.
    pub(super) load_us: u64,
}

/// Makes the machine. On error, what exists is to be removed by the caller.
pub(super) async fn start(
    site: Site,
    order: Order,
    gate: Arc<OwnedMutexGuard<()>>,
) -> Result<(Machine, Steps), BackendError> {
    let starting = Instant::now();
    let disks = order.spec.disks.clone();
    let basis = order.original.snapshot().map(|(_, memory)| memory);
    let filled = order.original.filled().clone();
    let work = {
        let site = site.clone();
        tokio::task::spawn_blocking(move || {
            // Held by the work, not by who waits for it: nothing else may touch
            // the sandbox before this is done.
            let _gate = gate;
            spawn(&site, &order)
        })
    };
    let failed = |source| BackendError::failed("starting the virtual machine", source);
    let started = work.await.map_err(|error| failed(error.into()))?;
    let started = started.map_err(|error| failed(error.into()))?;
    let spawn_us = micros(starting);

    let loaded = timeout(LOADING, load(&site, &filled, &disks)).await;
    let loaded = loaded.unwrap_or_else(|_| {
        Err(format!("QEMU was not ready after {} seconds", LOADING.as_secs()).into())
    });
    let (qmp, link, mut steps) = loaded.map_err(|cause| failed(explain(&site, cause)))?;
    steps.spawn_us = spawn_us;
    let complete = Record { process: Some(started.process), complete: true, ..site.folder.read() };
    site.folder.write(&complete).map_err(|error| failed(error.into()))?;
    let machine = Machine::watch(Found {
        folder: site.folder,
        group: site.group,
        process: started.handle,
        fresh: Some((qmp, link)),
        basis,
    });
    let machine = machine.map_err(|error| failed(error.into()))?;
    Ok((machine, steps))
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

fn spawn(site: &Site, order: &Order) -> Result<Started, LaunchError> {
    site.folder.create()?;
    let claim = site.host.uids.claim()?;
    let mut record = Record {
        uid: Some(claim.uid),
        bound: Some(order.original.bound(&order.spec, &site.host)),
        snapshot: order.original.snapshot().map(|(id, _)| id),
        ..Record::default()
    };
    site.folder.write(&record)?;
    let original = &order.original;
    let rootfs = File::open(&order.spec.image.rootfs)?;
    let state = memfd::reopen(original.state())?;
    let started = site.host.start(Start {
        folder: &site.folder,
        group: &site.group,
        machine: Line {
            accelerator: site.host.accelerator,
            resources: order.spec.resources,
            purpose: original.purpose(),
        },
        claim,
        lifetime: order.lifetime,
        max_file_bytes: volumes::file_limit(),
        descriptors: vec![
            (rootfs.as_fd(), number::ROOTFS),
            (original.kernel(), number::KERNEL),
            (original.memory(), number::MEMORY),
            (state.as_fd(), number::STATE),
        ],
    })?;
    record.process = Some(started.process.clone());
    site.folder.write(&record)?;
    Ok(started)
}

async fn load(
    site: &Site,
    filled: &Filling,
    disks: &[Disk],
) -> Result<(Qmp, UnixStream, Steps), Cause> {
    let begun = Instant::now();
    let mut qmp = Qmp::connect(&site.folder.qmp()).await?;
    let link = UnixStream::connect(site.folder.link()).await?;
    qmp.answer("qmp_capabilities", LOADING).await?;
    let qmp_us = micros(begun);
    let begun = Instant::now();
    for disk in disks {
        volumes::insert(&mut qmp, &site.group, disk).await?;
    }
    qmp.send("migrate-set-capabilities", capabilities()).await?;
    // The device state is what makes it run.
    filled.done().await?;
    let fill_us = micros(begun);
    let begun = Instant::now();
    let uri = format!("fd:{}", number::STATE);
    qmp.send("migrate-incoming", json!({ "uri": uri })).await?;
    qmp.answer("migrate-incoming", LOADING).await?;
    migrated(&mut qmp).await?;
    for disk in disks {
        volumes::announce(&mut qmp, disk).await?;
    }
    Ok((qmp, link, Steps { spawn_us: 0, qmp_us, fill_us, load_us: micros(begun) }))
}

/// Adds QEMU's own last words, which name the cause.
fn explain(site: &Site, cause: Cause) -> Cause {
    let complaint = std::fs::read(site.folder.complaints()).unwrap_or_default();
    match console::last_line(&complaint) {
        Some(line) => format!("{cause}; QEMU said: {line}").into(),
        None => cause,
    }
}
