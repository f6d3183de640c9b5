//! What all sandboxes of one spec start from: a booted machine, stopped.
//!
//! A template is made once for each [`key`] by a cold boot ([`boot`]), kept on
//! disk ([`disk`]), and held in memory while this process lives. Clones map its
//! memory privately. They cannot write to it (`memfd`), and no program of a user
//! ever ran in it.
//!
//! A page that a clone touches first, and that the template did not use, also
//! takes a page in the shared file, which stays there. A template that grew by
//! much is replaced by a fresh copy once no clone uses it.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use domain::image::digest::Digest;
use rustix::fs::FlockOperation;
use sandbox::{backend::BackendError, spec::SandboxSpec};
use serde::{Deserialize, Serialize};

use super::{
    command::{self, Accelerator, Machine, Purpose},
    filling::Filling,
    memfd,
};

pub(super) mod boot;
pub(super) mod disk;

/// Changes whenever an older template must not be used by this version.
const FORMAT: u32 = 2;
/// How many templates stay on disk.
const KEPT: usize = 16;

/// A template in memory.
#[derive(Debug)]
pub(super) struct Template {
    /// The memory, sealed once it is filled.
    pub(super) memory: Arc<OwnedFd>,
    pub(super) filled: Filling,
    /// The state of the devices, sealed.
    pub(super) state: OwnedFd,
    /// What clones have for a kernel.
    pub(super) kernel: OwnedFd,
    /// What the memory took when it was loaded, and its full size.
    used_bytes: u64,
    total_bytes: u64,
}

/// The templates of this process.
#[derive(Debug)]
pub(super) struct Templates {
    folder: PathBuf,
    loaded: Mutex<HashMap<Digest, Place>>,
}

/// A template, or room for it. Held while it is made.
type Place = Arc<tokio::sync::Mutex<Option<Arc<Template>>>>;

/// Everything that decides what is in a template.
#[derive(Serialize)]
struct Key<'a> {
    format: u32,
    image: Digest,
    kernel: Digest,
    modules: Digest,
    guest: Digest,
    qemu: Digest,
    /// Accelerator, processor model, resources, devices and kernel parameters.
    machine: Vec<String>,
    warming: &'a [&'a [&'a str]],
}

/// What decides whether anyone can still use a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MadeFor {
    image_name: String,
    image: Digest,
    guest: Digest,
    qemu: Digest,
}

impl MadeFor {
    /// Whether it can be, by whoever makes `now`: not once the guest, QEMU or
    /// the image of that name is another one.
    fn is_usable_with(&self, now: &Self) -> bool {
        self.guest == now.guest
            && self.qemu == now.qemu
            && (self.image == now.image || self.image_name != now.image_name)
    }
}

/// What is run before the capture, so that no clone has to read it from disk.
const WARMING: &[&[&str]] = &[
    &["/bin/sh", "-c", "true"],
    &["/bin/bash", "-c", "true"],
    &["/usr/bin/python3", "-c", "pass"],
    &["/bin/ls", "/"],
    &["/bin/cat", "/etc/hostname"],
    &["/usr/bin/env"],
    // Only read: what most programs and people start first.
    &[
        "/bin/sh",
        "-c",
        "cd /usr/bin && cat echo true false cp mv rm mkdir rmdir chmod ln head tail sort wc tr cut \
         date sleep id whoami uname find xargs grep sed mawk tar gzip ps tee touch which git \
         >/dev/null 2>&1",
    ],
];

/// The key of the template for `spec`.
pub(super) fn key(
    spec: &SandboxSpec,
    accelerator: Accelerator,
    qemu: Digest,
    guest: Digest,
) -> Digest {
    // The frequency is not part of it: it differs a little with each start of
    // the host. The template says which one it was booted with.
    let purpose = Purpose::Template { tsc_khz: 0 };
    let machine = Machine { accelerator, resources: spec.resources, purpose };
    let files = &spec.image.manifest.files;
    let key = Key {
        format: FORMAT,
        image: spec.image.digest,
        kernel: files.vmlinuz.sha256,
        modules: files.modules.sha256,
        guest,
        qemu,
        machine: command::arguments(&machine),
        warming: WARMING,
    };
    // Texts and numbers cannot fail to serialise; nothing else is in a key.
    Digest::of(&serde_json::to_vec(&key).unwrap_or_default())
}

/// What a template is called on disk. Short, because the path of a socket below
/// it may have about a hundred characters.
fn name(key: Digest) -> String {
    key.hex()[..32].to_owned()
}

impl Template {
    /// Whether clones have filled much of what it left empty.
    fn has_grown(&self) -> bool {
        let used = memfd::used_bytes(self.memory.as_fd()).unwrap_or(0);
        used.saturating_sub(self.used_bytes) > self.total_bytes / 2
    }
}

impl Templates {
    /// Keeps templates in `folder`.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, loaded: Mutex::default() })
    }

    /// The template for `spec`: from memory, else from disk, else by `boot`. Its
    /// memory may still be filled when this returns.
    pub(super) async fn get(
        &self,
        key: Digest,
        spec: &SandboxSpec,
        boot: &boot::Boot<'_>,
    ) -> Result<Arc<Template>, BackendError> {
        let place = {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(loaded.entry(key).or_default())
        };
        // One at a time: the second to ask for a template waits for the first.
        let mut place = place.lock().await;
        if let Some(template) = &*place {
            let unused = Arc::strong_count(template) == 1;
            if !(template.filled.has_failed() || unused && template.has_grown()) {
                return Ok(Arc::clone(template));
            }
        }
        *place = None;
        let template = Arc::new(self.load_or_boot(key, spec, boot).await?);
        *place = Some(Arc::clone(&template));
        Ok(template)
    }

    /// Whether a template that fits is on disk.
    pub(super) async fn has(&self, key: Digest, tsc_khz: u64) -> bool {
        let folder = self.folder.clone();
        blocking(move || disk::has(&folder, key, tsc_khz)).await.unwrap_or(false)
    }

    async fn load_or_boot(
        &self,
        key: Digest,
        spec: &SandboxSpec,
        boot: &boot::Boot<'_>,
    ) -> Result<Template, BackendError> {
        let loading = |source| BackendError::failed("loading the template", source);
        if let Some(template) = self.load(key, spec, boot.tsc_khz).await.map_err(loading)? {
            return Ok(template);
        }
        // Another process may be making it at this moment.
        let lock = self.folder.join(format!("{}.lock", name(key)));
        let _lock = blocking(move || exclusive(&lock)).await.map_err(loading)?;
        if let Some(template) = self.load(key, spec, boot.tsc_khz).await.map_err(loading)? {
            return Ok(template);
        }
        let scratch = self.folder.join(format!("{}.boot", name(key)));
        let captured = boot.run(key, spec, &scratch).await?;
        let folder = self.folder.clone();
        let made_for = MadeFor {
            image_name: spec.image.name.to_string(),
            image: spec.image.digest,
            guest: boot.host.guest_digest,
            qemu: boot.host.launcher.build().digest,
        };
        let storing = blocking(move || {
            disk::store(&folder, key, &captured, &made_for)?;
            disk::forget_excess(&folder, KEPT, &made_for)
        });
        storing.await.map_err(|source| BackendError::failed("storing the template", source))?;
        let template = self.load(key, spec, boot.tsc_khz).await.map_err(loading)?;
        template.ok_or_else(|| loading(io::Error::other("it was removed at once")))
    }

    async fn load(
        &self,
        key: Digest,
        spec: &SandboxSpec,
        tsc_khz: u64,
    ) -> io::Result<Option<Template>> {
        let (folder, kernel) = (self.folder.clone(), spec.image.kernel.clone());
        let found = blocking(move || disk::open(&folder, key, tsc_khz, &kernel)).await?;
        Ok(found.map(|found| {
            let disk::Found { memory, state, kernel, used_bytes, total_bytes, fill } = found;
            let filled = Filling::begin(move || fill.run());
            Template { memory, filled, state, kernel, used_bytes, total_bytes }
        }))
    }
}

/// Runs what blocks where blocking is allowed.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn exclusive(path: &std::path::Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

#[cfg(test)]
mod tests;
