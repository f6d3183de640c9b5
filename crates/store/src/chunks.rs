//! A volume's data as chunks that are named by what is in them.
//!
//! ```text
//!  volumes/<volume>/chunks/<sha256>             1 MiB each, none for zeros
//!  volumes/<volume>/checkpoints/<checkpoint>    which chunk is where
//! ```
//!
//! A checkpoint uploads the chunks that no earlier one of its volume did, and
//! its manifest last: what has no manifest is not a checkpoint. A restore
//! believes nothing: the manifest has to have the digest that is on record, each
//! chunk the digest that the manifest says, and what was written is read back.
//!
//! What must hold: at most [`AT_ONCE`] chunks are in memory, however large a
//! volume is. Chunks are shared within a volume only, so that whoever deletes it
//! deletes them all, and nobody learns from a name what another one keeps.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use bytes::Bytes;
use domain::{
    id::{CheckpointId, VolumeId},
    image::digest::Digest,
    region::Region,
};
use serde::{Deserialize, Serialize};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    checkpoints::Finished,
    disks::used_ranges,
    objects::{ObjectError, Objects},
};

/// The size of a chunk. Volumes are whole multiples of it.
pub const CHUNK: usize = 1024 * 1024;
/// Chunks under way, and so in memory.
const AT_ONCE: usize = 4;
/// The largest manifest that is believed: half a million chunks.
const MAX_MANIFEST: usize = 64 * 1024 * 1024;
/// A chunk that comes back wrong is asked for so often.
const READS: usize = 3;
/// The form of a manifest.
const FORMAT: u32 = 1;

/// Where a checkpoint's objects are, and what it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose data.
    pub volume: VolumeId,
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// Where it stays.
    pub region: Region,
    /// How large the volume is.
    pub bytes: u64,
}

/// Why a checkpoint was not saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// The object store failed.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// What the object store gave back is not what was stored.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(&'static str),
    /// The volume's own file failed.
    #[error("the disk of this host failed")]
    Disk(#[from] io::Error),
}

/// Which chunk is where. Chunks of zeros are left out.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    volume: VolumeId,
    checkpoint: CheckpointId,
    region: Region,
    bytes: u64,
    chunk_bytes: u64,
    /// By number, ascending.
    chunks: Vec<(u32, Digest)>,
}

impl Place {
    fn chunks(&self) -> String {
        format!("{}/chunks", everything(&self.volume))
    }

    fn chunk(&self, digest: &Digest) -> String {
        format!("{}/{}", self.chunks(), digest.hex())
    }

    fn manifest(&self) -> String {
        format!("{}/{}", manifests(&self.volume), self.checkpoint)
    }
}

/// The prefix of all that is kept of a volume.
fn everything(volume: &VolumeId) -> String {
    format!("volumes/{volume}")
}

fn manifests(volume: &VolumeId) -> String {
    format!("{}/checkpoints", everything(volume))
}

/// Saves a file, which nobody changes meanwhile, as a checkpoint.
pub async fn save(
    objects: &Objects,
    place: &Place,
    file: File,
    deadline: Instant,
) -> Result<Finished, ChunkError> {
    let mut known = known(objects, place, deadline).await?;
    let file = Arc::new(file);
    let ranges = {
        let file = Arc::clone(&file);
        blocking(move || used_ranges(&file, CHUNK as u64)).await?
    };
    let (mut chunks, mut stored_bytes) = (Vec::new(), 0);
    let mut uploads = JoinSet::new();
    for number in numbers(&ranges, place.bytes)? {
        let Some((digest, chunk)) = read_chunk(Arc::clone(&file), number).await? else { continue };
        chunks.push((number, digest));
        // From here on this one too is known: a chunk is uploaded once.
        if !known.insert(digest.hex()) {
            continue;
        }
        stored_bytes += CHUNK as u64;
        if uploads.len() == AT_ONCE {
            finished(uploads.join_next().await)?;
        }
        let (objects, name) = (objects.clone(), place.chunk(&digest));
        uploads.spawn(async move { objects.put(&name, chunk, deadline).await });
    }
    while let Some(upload) = uploads.join_next().await {
        finished(Some(upload))?;
    }
    let data_bytes = chunks.len() as u64 * CHUNK as u64;
    let manifest = Manifest {
        format: FORMAT,
        volume: place.volume.clone(),
        checkpoint: place.checkpoint.clone(),
        region: place.region.clone(),
        bytes: place.bytes,
        chunk_bytes: CHUNK as u64,
        chunks,
    };
    let manifest = Bytes::from(serde_json::to_vec(&manifest).map_err(io::Error::from)?);
    let digest = Digest::of(&manifest);
    objects.put_new(&place.manifest(), manifest, deadline).await?;
    Ok(Finished { data_bytes, stored_bytes, manifest: digest })
}

/// Writes a checkpoint into an empty file, and reads it back.
///
/// The file holds what was saved when this returns, and is of no use otherwise.
pub async fn restore(
    objects: &Objects,
    place: &Place,
    digest: &Digest,
    file: File,
    deadline: Instant,
) -> Result<(), ChunkError> {
    let manifest = manifest(objects, place, Some(digest), deadline).await?;
    let file = Arc::new(file);
    if file.metadata()?.len() != place.bytes {
        return Err(io::Error::other("the file has another size").into());
    }
    let mut downloads: JoinSet<Result<(), ChunkError>> = JoinSet::new();
    for (number, digest) in &manifest.chunks {
        if downloads.len() == AT_ONCE {
            finished(downloads.join_next().await)?;
        }
        let (objects, name) = (objects.clone(), place.chunk(digest));
        let (file, number, digest) = (Arc::clone(&file), *number, *digest);
        downloads.spawn(async move {
            let chunk = fetch(&objects, &name, &digest, deadline).await?;
            blocking(move || file.write_all_at(&chunk, offset(number))).await?;
            Ok(())
        });
    }
    while let Some(download) = downloads.join_next().await {
        finished(Some(download))?;
    }
    {
        let file = Arc::clone(&file);
        blocking(move || file.sync_all()).await?;
    }
    let mut expected: HashMap<u32, Digest> = manifest.chunks.into_iter().collect();
    let ranges = {
        let file = Arc::clone(&file);
        blocking(move || used_ranges(&file, CHUNK as u64)).await?
    };
    for number in numbers(&ranges, place.bytes)? {
        let found = read_chunk(Arc::clone(&file), number).await?.map(|(digest, _)| digest);
        if found != expected.remove(&number) {
            return Err(ChunkError::Damaged("what was written does not read back"));
        }
    }
    if expected.is_empty() {
        Ok(())
    } else {
        Err(ChunkError::Damaged("what was written does not read back"))
    }
}

/// Removes a checkpoint, and the chunks that none of the others needs.
///
/// The manifest goes first: from then on it is no checkpoint. `others` are those
/// of the volume that stay; if one of them cannot be read, no chunk is removed.
pub async fn forget(
    objects: &Objects,
    place: &Place,
    others: &[(Place, Digest)],
    deadline: Instant,
) -> Result<(), ChunkError> {
    objects.delete(&place.manifest(), deadline).await?;
    let mut needed = HashSet::new();
    for (other, digest) in others {
        let manifest = manifest(objects, other, Some(digest), deadline).await?;
        needed.extend(manifest.chunks.into_iter().map(|(_, digest)| digest.hex()));
    }
    for (name, _) in objects.list(&place.chunks(), deadline).await? {
        let needed = name.rsplit('/').next().is_some_and(|hex| needed.contains(hex));
        if !needed {
            objects.delete(&name, deadline).await?;
        }
    }
    Ok(())
}

/// Removes everything that is kept of a volume.
pub async fn forget_volume(
    objects: &Objects,
    volume: &VolumeId,
    deadline: Instant,
) -> Result<(), ObjectError> {
    // Manifests first, so that no checkpoint is left that lacks chunks.
    objects.delete_all(&manifests(volume), deadline).await?;
    objects.delete_all(&everything(volume), deadline).await
}

/// The chunks that are there and have the right size.
async fn known(
    objects: &Objects,
    place: &Place,
    deadline: Instant,
) -> Result<HashSet<String>, ObjectError> {
    let listed = objects.list(&place.chunks(), deadline).await?;
    let whole = listed.into_iter().filter(|(_, size)| *size == CHUNK as u64);
    Ok(whole.filter_map(|(name, _)| Some(name.rsplit('/').next()?.to_owned())).collect())
}

/// Reads a manifest and checks all that can be checked without the data.
async fn manifest(
    objects: &Objects,
    place: &Place,
    digest: Option<&Digest>,
    deadline: Instant,
) -> Result<Manifest, ChunkError> {
    let mut text = objects.get(&place.manifest(), MAX_MANIFEST, deadline).await?;
    for _ in 1..READS {
        if digest.is_none_or(|digest| Digest::of(&text) == *digest) {
            break;
        }
        text = objects.get(&place.manifest(), MAX_MANIFEST, deadline).await?;
    }
    if digest.is_some_and(|digest| Digest::of(&text) != *digest) {
        return Err(ChunkError::Damaged("its manifest is not the one that was written"));
    }
    checked(&text, place)
}

fn checked(text: &[u8], place: &Place) -> Result<Manifest, ChunkError> {
    let unreadable = |_| ChunkError::Damaged("its manifest cannot be read");
    let manifest: Manifest = serde_json::from_slice(text).map_err(unreadable)?;
    let whole = manifest.format == FORMAT
        && manifest.volume == place.volume
        && manifest.checkpoint == place.checkpoint
        && manifest.bytes == place.bytes
        && manifest.chunk_bytes == CHUNK as u64;
    if !whole {
        return Err(ChunkError::Damaged("its manifest is of something else"));
    }
    if manifest.region != place.region {
        return Err(ChunkError::Damaged("it belongs to another region"));
    }
    let ascending = manifest.chunks.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let inside = manifest.chunks.last().is_none_or(|last| offset(last.0) < place.bytes);
    if ascending && inside {
        Ok(manifest)
    } else {
        Err(ChunkError::Damaged("its manifest is out of order"))
    }
}

/// Reads a chunk until it has its digest.
async fn fetch(
    objects: &Objects,
    name: &str,
    digest: &Digest,
    deadline: Instant,
) -> Result<Bytes, ChunkError> {
    for _ in 0..READS {
        match objects.get(name, CHUNK, deadline).await {
            Ok(chunk) if chunk.len() == CHUNK && Digest::of(&chunk) == *digest => return Ok(chunk),
            Ok(_) | Err(ObjectError::TooLarge) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ChunkError::Damaged("a part of it is not what was stored"))
}

/// The chunks that ranges lie in.
fn numbers(ranges: &[(u64, u64)], bytes: u64) -> io::Result<impl Iterator<Item = u32>> {
    if !bytes.is_multiple_of(CHUNK as u64) || u32::try_from(bytes / CHUNK as u64).is_err() {
        return Err(io::Error::other("a volume is a whole number of chunks"));
    }
    let number = |offset: u64| u32::try_from(offset / CHUNK as u64).unwrap_or(u32::MAX);
    let numbers =
        ranges.iter().map(|(begin, end)| number(*begin)..number(*end)).collect::<Vec<_>>();
    Ok(numbers.into_iter().flatten())
}

fn offset(number: u32) -> u64 {
    u64::from(number) * CHUNK as u64
}

/// Reads and names a chunk, unless it is all zeros.
async fn read_chunk(file: Arc<File>, number: u32) -> io::Result<Option<(Digest, Bytes)>> {
    blocking(move || {
        let mut chunk = vec![0; CHUNK];
        file.read_exact_at(&mut chunk, offset(number))?;
        let empty = chunk.iter().all(|byte| *byte == 0);
        Ok((!empty).then(|| (Digest::of(&chunk), Bytes::from(chunk))))
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// What a task came to. Those that are still under way end with their set.
fn finished<E: Into<ChunkError>>(
    joined: Option<Result<Result<(), E>, tokio::task::JoinError>>,
) -> Result<(), ChunkError> {
    match joined {
        None => Ok(()),
        Some(Ok(outcome)) => outcome.map_err(Into::into),
        Some(Err(error)) => Err(io::Error::other(error).into()),
    }
}

#[cfg(test)]
mod tests;
