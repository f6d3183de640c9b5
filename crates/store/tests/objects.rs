//! Checkpoints in S3, through two servers that know nothing of each other, and
//! through a proxy that does to them what networks and stores do.
//!
//! One server runs in this process and checks every signature. The other is
//! started where it is installed (`moto_server`, or what `COLDFRAME_TEST_MOTO`
//! names); where it is missing, its half says `not run:`.
//!
//! The sentence that all of it is about: a checkpoint that restores restores
//! exactly what was saved.

#![allow(clippy::print_stdout, reason = "a test says why it did not run")]

#[path = "objects/proxy.rs"]
mod proxy;
#[path = "objects/servers.rs"]
mod servers;

use std::{fs::File, os::unix::fs::FileExt as _, time::Duration};

use bytes::Bytes;
use domain::{
    id::{CheckpointId, VolumeId},
    image::digest::Digest,
    region::Region,
};
use store::{
    chunks::{self, CHUNK, ChunkError, Place},
    objects::{ObjectError, Objects},
};
use tokio::time::Instant;

use proxy::{Fault, Proxy};
use servers::{Server, all};

const MIB: u64 = 1024 * 1024;
const SIZE: u64 = 8 * MIB;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn place(volume: u8, checkpoint: u8) -> Place {
    Place {
        volume: VolumeId::from_random([volume; 16]),
        checkpoint: CheckpointId::from_random([checkpoint; 16]),
        region: Region::local(),
        bytes: SIZE,
    }
}

/// A volume of which some chunks are the same and some are empty.
fn volume(seed: u64) -> File {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(SIZE).expect("its size");
    for number in [0, 1, 2, 3, 5, 7] {
        let byte = u8::try_from((seed * 7 + number / 2) % 250 + 1).expect("it fits");
        file.write_all_at(&vec![byte; CHUNK], number * MIB).expect("written");
    }
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(SIZE).expect("it fits")];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

async fn save(objects: &Objects, place: &Place, file: &File) -> Result<(Digest, u64), ChunkError> {
    let copy = file.try_clone().expect("a descriptor");
    let saved = chunks::save(objects, place, copy, soon()).await?;
    Ok((saved.manifest, saved.stored_bytes))
}

async fn restore(objects: &Objects, place: &Place, digest: &Digest) -> Result<Vec<u8>, ChunkError> {
    let target = tempfile::tempfile().expect("a file");
    target.set_len(SIZE).expect("its size");
    let copy = target.try_clone().expect("a descriptor");
    chunks::restore(objects, place, digest, copy, soon()).await?;
    Ok(content(&target))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_keeps_objects() {
    for server in all().await {
        let objects = server.objects();
        objects.put("a/x", Bytes::from_static(b"one"), soon()).await.expect("put");
        objects.put_new("a/y", Bytes::from_static(b"two"), soon()).await.expect("put");
        objects.put_new("a/y", Bytes::from_static(b"two"), soon()).await.expect("the same again");
        let other = objects.put_new("a/y", Bytes::from_static(b"2"), soon()).await;
        assert!(matches!(other, Err(ObjectError::Exists)), "{}: {other:?}", server.name);
        assert_eq!(objects.get("a/x", 3, soon()).await.expect("got").as_ref(), b"one");
        let large = objects.get("a/x", 2, soon()).await;
        assert!(matches!(large, Err(ObjectError::TooLarge)), "{}: {large:?}", server.name);
        let none = objects.get("a/none", 2, soon()).await;
        assert!(matches!(none, Err(ObjectError::NotFound)), "{}: {none:?}", server.name);
        let mut listed = objects.list("a", soon()).await.expect("listed");
        listed.sort();
        assert_eq!(listed, [("a/x".to_owned(), 3), ("a/y".to_owned(), 3)], "{}", server.name);
        objects.delete("a/none", soon()).await.expect("absent");
        objects.delete_all("a", soon()).await.expect("deleted");
        assert_eq!(objects.list("a", soon()).await.expect("listed"), [], "{}", server.name);
    }
}

/// S39, S40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_keeps_checkpoints() {
    for server in all().await {
        let objects = server.objects();
        let file = volume(1);
        let (first, stored) = save(&objects, &place(1, 1), &file).await.expect("saved");
        assert_eq!(stored, 4 * MIB, "{}", server.name);
        let before = content(&file);
        file.write_all_at(b"changed", 5 * MIB).expect("written");
        let (second, stored) = save(&objects, &place(1, 2), &file).await.expect("saved");
        assert_eq!(stored, MIB, "{}", server.name);
        assert!(restore(&objects, &place(1, 1), &first).await.expect("restored") == before);
        assert!(
            restore(&objects, &place(1, 2), &second).await.expect("restored") == content(&file)
        );
        chunks::forget_volume(&objects, &place(1, 0).volume, soon()).await.expect("forgotten");
        assert_eq!(objects.list("volumes", soon()).await.expect("listed"), [], "{}", server.name);
    }
}

/// A server that checks signatures accepts no other secret, and its refusal is
/// told at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_secret_opens_nothing() {
    let server = Server::in_process().await;
    let objects = server.with_secret("another");
    let refused = save(&objects, &place(1, 1), &volume(1)).await;
    assert!(matches!(refused, Err(ChunkError::Objects(ObjectError::Denied(_)))), "{refused:?}");
}

/// What a network and a store do to requests, some of them, without pattern.
fn weather(seed: u64) -> impl FnMut(&str) -> Fault + Send {
    let mut state = seed * 2 + 1;
    move |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (state >> 33) % 12 {
            0 => Fault::Stall,
            1 => Fault::Status(500, "InternalError"),
            2 => Fault::Status(503, "SlowDown"),
            3 => Fault::CutAnswer(700),
            4 => Fault::CutRequest,
            5 => Fault::LoseAnswer,
            _ => Fault::None,
        }
    }
}

/// S39: in bad weather a checkpoint is made or is not; what was made restores
/// exactly, or says that it cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_restores_wrong_in_bad_weather() {
    for server in all().await {
        let (mut saved, mut restored) = (0, 0);
        for seed in 1..=6 {
            let proxy = Proxy::before(server.address).await;
            let objects = server.through(proxy.address);
            let file = volume(seed);
            let place = place(u8::try_from(seed).expect("small"), 1);
            proxy.does(weather(seed));
            let Ok((digest, _)) = save(&objects, &place, &file).await else { continue };
            saved += 1;
            match restore(&objects, &place, &digest).await {
                Ok(found) => {
                    restored += 1;
                    assert!(found == content(&file), "{}: seed {seed}", server.name);
                }
                Err(ChunkError::Disk(error)) => panic!("not the weather: {error}"),
                Err(_) => {}
            }
            // When it clears up, what was saved is there.
            let clear = restore(&server.objects(), &place, &digest).await.expect("it is whole");
            assert!(clear == content(&file), "{}: seed {seed}", server.name);
        }
        println!(
            "{}: of 6 checkpoints {saved} were made and {restored} restored at once",
            server.name
        );
        assert!(saved > 0 && restored > 0, "nothing was tried: {}", server.name);
    }
}

/// Credentials that expire in the middle end a checkpoint with a clear error;
/// the next one, with new ones, uploads what is missing and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_expire_cost_one_checkpoint() {
    for server in all().await {
        let proxy = Proxy::before(server.address).await;
        let objects = server.through(proxy.address);
        // All parts arrive; the manifest, which comes last, does not.
        proxy.does(|line| match line.contains("/checkpoints/") {
            true => Fault::Status(403, "ExpiredToken"),
            false => Fault::None,
        });
        let file = volume(1);
        let refused = save(&objects, &place(1, 1), &file).await;
        let Err(ChunkError::Objects(error @ ObjectError::Denied(_))) = refused else {
            panic!("{}: {refused:?}", server.name)
        };
        assert!(error.to_string().contains("expired"), "{error}");
        proxy.does(|_| Fault::None);
        let (digest, stored) = save(&objects, &place(1, 2), &file).await.expect("saved");
        assert_eq!(stored, 0, "{}", server.name);
        assert!(
            restore(&objects, &place(1, 2), &digest).await.expect("restored") == content(&file)
        );
    }
}

/// A store that answers nothing is not waited for beyond the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_store_ends_with_the_deadline() {
    let server = Server::in_process().await;
    let proxy = Proxy::before(server.address).await;
    let objects = server.through(proxy.address);
    proxy.does(|_| Fault::Stall);
    let deadline = Instant::now() + Duration::from_secs(3);
    let copy = volume(1);
    let saved = chunks::save(&objects, &place(1, 1), copy, deadline).await;
    assert!(matches!(saved, Err(ChunkError::Objects(ObjectError::Unavailable(_)))), "{saved:?}");
}

/// An object store that gives back something else restores nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lies_restores_nothing() {
    for server in all().await {
        let objects = server.objects();
        let file = volume(3);
        let (digest, _) = save(&objects, &place(1, 1), &file).await.expect("saved");
        let chunk = objects.list("volumes", soon()).await.expect("listed");
        let chunk = chunk.into_iter().find(|(name, _)| name.contains("/chunks/"));
        let (name, _) = chunk.expect("a chunk");
        objects.put(&name, vec![9; CHUNK].into(), soon()).await.expect("put");
        let lied = restore(&objects, &place(1, 1), &digest).await;
        assert!(matches!(lied, Err(ChunkError::Damaged(_))), "{}", server.name);
        objects.delete(&name, soon()).await.expect("deleted");
        assert!(restore(&objects, &place(1, 1), &digest).await.is_err(), "{}", server.name);
    }
}
