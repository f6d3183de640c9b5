//! Saving and restoring over a folder, and what a store can do wrong.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1024 * 1024;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

fn place(checkpoint: u8, bytes: u64) -> Place {
    Place {
        volume: VolumeId::from_random([1; 16]),
        checkpoint: CheckpointId::from_random([checkpoint; 16]),
        region: Region::local(),
        bytes,
    }
}

/// A file with a block of one byte at each place.
fn file(bytes: u64, blocks: &[(u64, u8)]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    for (at, byte) in blocks {
        file.write_all_at(&[*byte; 4096], *at).unwrap();
    }
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

struct Case {
    _folder: tempfile::TempDir,
    objects: Objects,
    path: std::path::PathBuf,
}

fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects");
    Case { objects: Objects::folder(&path).unwrap(), _folder: folder, path }
}

impl Case {
    async fn save(&self, place: &Place, file: &File) -> Finished {
        save(&self.objects, place, file.try_clone().unwrap(), deadline()).await.unwrap()
    }

    async fn restore(&self, place: &Place, digest: &Digest) -> Result<File, ChunkError> {
        let target = tempfile::tempfile().unwrap();
        target.set_len(place.bytes).unwrap();
        let copy = target.try_clone().unwrap();
        restore(&self.objects, place, digest, copy, deadline()).await.map(|()| target)
    }

    fn chunks(&self) -> Vec<std::path::PathBuf> {
        let folder = self.path.join(place(0, 0).chunks());
        let Ok(found) = std::fs::read_dir(folder) else { return Vec::new() };
        found.map(|entry| entry.unwrap().path()).collect()
    }
}

/// S39: the second checkpoint uploads what changed, and both restore.
#[tokio::test]
async fn a_checkpoint_uploads_what_is_new() {
    let case = case();
    let one = file(8 * MIB, &[(0, 1), (3 * MIB + 5, 2), (7 * MIB, 3)]);
    let first = case.save(&place(1, 8 * MIB), &one).await;
    assert_eq!((first.data_bytes, first.stored_bytes), (3 * MIB, 3 * MIB));
    let before = content(&one);
    one.write_all_at(b"changed", 7 * MIB).unwrap();
    let second = case.save(&place(2, 8 * MIB), &one).await;
    assert_eq!((second.data_bytes, second.stored_bytes), (3 * MIB, MIB));
    let back = case.restore(&place(1, 8 * MIB), &first.manifest).await.unwrap();
    assert!(content(&back) == before);
    let back = case.restore(&place(2, 8 * MIB), &second.manifest).await.unwrap();
    assert!(content(&back) == content(&one));
}

/// S40: a checkpoint takes with it what no other needs; a volume takes all.
#[tokio::test]
async fn what_nobody_needs_goes() {
    let case = case();
    let one = file(4 * MIB, &[(0, 1), (MIB, 2)]);
    let first = case.save(&place(1, 4 * MIB), &one).await;
    one.write_all_at(&[9; 4096], MIB).unwrap();
    let second = case.save(&place(2, 4 * MIB), &one).await;
    assert_eq!(case.chunks().len(), 3);
    let others = [(place(2, 4 * MIB), second.manifest)];
    forget(&case.objects, &place(1, 4 * MIB), &others, deadline()).await.unwrap();
    assert_eq!(case.chunks().len(), 2);
    assert!(case.restore(&place(1, 4 * MIB), &first.manifest).await.is_err());
    assert!(case.restore(&place(2, 4 * MIB), &second.manifest).await.is_ok());
    forget_volume(&case.objects, &place(0, 0).volume, deadline()).await.unwrap();
    assert!(case.chunks().is_empty());
    assert!(case.restore(&place(2, 4 * MIB), &second.manifest).await.is_err());
}

/// A store that lost, changed, cut or exchanged something restores nothing.
#[tokio::test]
async fn damage_is_found() {
    let case = case();
    let one = file(4 * MIB, &[(0, 1), (MIB, 2)]);
    let at = place(1, 4 * MIB);
    let saved = case.save(&at, &one).await;
    let [first, second] = <[_; 2]>::try_from(case.chunks()).unwrap();
    let good = std::fs::read(&first).unwrap();
    let mut flipped = good.clone();
    flipped[CHUNK / 2] ^= 1;
    let other = std::fs::read(&second).unwrap();
    for damage in [flipped, good[..CHUNK - 1].to_vec(), other, [&good[..], b"x"].concat()] {
        std::fs::write(&first, damage).unwrap();
        let damaged = case.restore(&at, &saved.manifest).await;
        assert!(matches!(damaged, Err(ChunkError::Damaged(_))), "{damaged:?}");
    }
    std::fs::remove_file(&first).unwrap();
    assert!(case.restore(&at, &saved.manifest).await.is_err());
    std::fs::write(&first, &good).unwrap();
    assert!(case.restore(&at, &saved.manifest).await.is_ok());

    let manifest = case.path.join(at.manifest());
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("[0,", "[2,")).unwrap();
    let damaged = case.restore(&at, &saved.manifest).await;
    assert!(matches!(damaged, Err(ChunkError::Damaged(_))), "{damaged:?}");
}

/// A chunk that was cut while it was uploaded is not taken for one that is there.
#[tokio::test]
async fn a_cut_chunk_is_uploaded_again() {
    let case = case();
    let one = file(2 * MIB, &[(0, 1)]);
    case.save(&place(1, 2 * MIB), &one).await;
    let [chunk] = <[_; 1]>::try_from(case.chunks()).unwrap();
    std::fs::write(&chunk, b"cut").unwrap();
    let again = case.save(&place(2, 2 * MIB), &one).await;
    assert_eq!(again.stored_bytes, MIB);
    assert!(case.restore(&place(2, 2 * MIB), &again.manifest).await.is_ok());
}

/// U20: the data of one region is not taken into another, nor one volume's for
/// another's.
#[test]
fn a_manifest_is_of_one_volume_and_region() {
    let at = place(1, 2 * MIB);
    let text = |change: fn(&mut Manifest)| {
        let mut manifest = Manifest {
            format: FORMAT,
            volume: at.volume.clone(),
            checkpoint: at.checkpoint.clone(),
            region: at.region.clone(),
            bytes: at.bytes,
            chunk_bytes: CHUNK as u64,
            chunks: vec![(0, Digest::of(b"a")), (1, Digest::of(b"b"))],
        };
        change(&mut manifest);
        serde_json::to_vec(&manifest).unwrap()
    };
    assert!(checked(&text(|_| {}), &at).is_ok());
    let changes: [fn(&mut Manifest); 7] = [
        |manifest| manifest.region = "eu".parse().unwrap(),
        |manifest| manifest.volume = VolumeId::from_random([9; 16]),
        |manifest| manifest.bytes *= 2,
        |manifest| manifest.format = 2,
        |manifest| manifest.chunk_bytes = 4096,
        |manifest| manifest.chunks.reverse(),
        |manifest| manifest.chunks[1].0 = 2,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert!(checked(&text(change), &at).is_err(), "{index}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// S39: whatever was written where, what comes back is that, byte for byte.
    #[test]
    fn what_was_saved_comes_back(
        blocks in prop::collection::vec((0..16 * MIB - 4096, any::<u8>()), 0..12),
        later in prop::collection::vec((0..16 * MIB - 4096, any::<u8>()), 0..4),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let case = case();
            let one = file(16 * MIB, &blocks);
            let first = case.save(&place(1, 16 * MIB), &one).await;
            let before = content(&one);
            for (at, byte) in later {
                one.write_all_at(&[byte; 4096], at).unwrap();
            }
            let second = case.save(&place(2, 16 * MIB), &one).await;
            prop_assert!(second.stored_bytes <= second.data_bytes);
            let back = case.restore(&place(1, 16 * MIB), &first.manifest).await.unwrap();
            prop_assert!(content(&back) == before);
            let back = case.restore(&place(2, 16 * MIB), &second.manifest).await.unwrap();
            prop_assert!(content(&back) == content(&one));
            Ok(())
        })?;
    }

    /// Bytes of a store never panic the reader.
    #[test]
    fn no_text_panics_the_reader(text in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(checked(&text, &place(1, 2 * MIB)).is_err());
    }
}
