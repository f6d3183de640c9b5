//! Sessions between two honest ends, and against one that is not.

use std::time::Duration;

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    time::timeout,
};

use super::*;

const SOON: Duration = Duration::from_secs(20);

fn start(pipe: usize) -> (Session, Session) {
    let (near, far) = duplex(pipe);
    let (host, driving) = session(near, Role::Host, Limits::default());
    tokio::spawn(driving);
    let (guest, driving) = session(far, Role::Guest, Limits::default());
    tokio::spawn(driving);
    (host, guest)
}

#[tokio::test]
async fn streams_carry_bytes_both_ways_at_once() {
    let (host, mut guest) = start(4096);
    tokio::spawn(async move {
        while let Some(mut stream) = guest.incoming.recv().await {
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(&mut stream);
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
            });
        }
    });
    let mut clients = Vec::new();
    for n in 0..16u8 {
        let opener = host.opener.clone();
        clients.push(tokio::spawn(async move {
            let stream = opener.open().await.unwrap();
            let (mut read, mut write) = tokio::io::split(stream);
            let sent = vec![n; 300_000];
            let mut seen = Vec::new();
            let (_, _) = tokio::join!(
                async {
                    write.write_all(&sent).await.unwrap();
                    write.shutdown().await.unwrap();
                },
                async { read.read_to_end(&mut seen).await.unwrap() },
            );
            assert_eq!(seen, sent);
        }));
    }
    for client in clients {
        timeout(SOON, client).await.unwrap().unwrap();
    }
}

/// Back-pressure: a reader that stops stops its writer, and nobody else.
#[tokio::test]
async fn a_reader_that_stops_stops_only_its_own_writer() {
    let (host, mut guest) = start(65536);
    let mut stuck = host.opener.open().await.unwrap();
    let writer = tokio::spawn(async move {
        let chunk = vec![1; 65536];
        // Far more than any window.
        for _ in 0..1024 {
            stuck.write_all(&chunk).await.unwrap();
        }
    });
    let unread = guest.incoming.recv().await.unwrap();
    let mut other = timeout(SOON, host.opener.open()).await.unwrap().unwrap();
    other.write_all(b"still here").await.unwrap();
    other.flush().await.unwrap();
    let mut arrived = timeout(SOON, guest.incoming.recv()).await.unwrap().unwrap();
    let mut seen = [0; 10];
    timeout(SOON, arrived.read_exact(&mut seen)).await.unwrap().unwrap();
    assert_eq!(&seen, b"still here");
    assert!(!writer.is_finished(), "64 MiB went into a stream that nobody reads");
    drop(unread);
    writer.abort();
}

#[tokio::test]
async fn a_lost_pipe_ends_every_stream() {
    let (near, far) = duplex(4096);
    let (host, driving) = session(near, Role::Host, Limits::default());
    let host_driver = tokio::spawn(driving);
    let (mut guest, driving) = session(far, Role::Guest, Limits::default());
    let guest_driver = tokio::spawn(driving);
    let mut stream = host.opener.open().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    stream.flush().await.unwrap();
    let _arrived = timeout(SOON, guest.incoming.recv()).await.unwrap().unwrap();
    guest_driver.abort();
    let mut rest = Vec::new();
    let lost = timeout(SOON, stream.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(lost.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    drop(timeout(SOON, host_driver).await.unwrap());
    assert!(host.opener.open().await.is_err());
}

/// What was cut off does not look complete.
#[tokio::test]
async fn a_reset_is_not_an_end() {
    let (host, mut guest) = start(4096);
    for reset in [true, false] {
        let mut stream = host.opener.open().await.unwrap();
        stream.write_all(b"x").await.unwrap();
        let mut arrived = timeout(SOON, guest.incoming.recv()).await.unwrap().unwrap();
        arrived.write_all(b"half").await.unwrap();
        if !reset {
            arrived.shutdown().await.unwrap();
        }
        drop(arrived);
        let mut seen = Vec::new();
        let outcome = timeout(SOON, stream.read_to_end(&mut seen)).await.unwrap();
        assert_eq!(outcome.is_err(), reset);
        assert_eq!(seen, b"half");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// G-01: no bytes of a peer make a host panic or wait for ever.
    #[test]
    fn no_bytes_of_a_peer_harm_a_session(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = duplex(1 << 16);
            let (_session, driving) = session(near, Role::Host, Limits::default());
            let talking = async {
                // The session may end first, which closes the pipe.
                drop(far.write_all(&bytes).await);
                drop(far);
            };
            let (ended, ()) = tokio::join!(timeout(SOON, driving), talking);
            prop_assert!(ended.is_ok(), "the session outlived its pipe");
            Ok(())
        })?;
    }
}
