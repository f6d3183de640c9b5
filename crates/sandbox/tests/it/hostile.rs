//! A guest that has read the protocol and means harm.
//!
//! It speaks raw bytes. Whatever it does, the host neither panics nor waits
//! beyond its bounds nor grows with what it is sent (G-01, TM8).

use std::{io, time::Duration};

use guest_protocol::{
    frame::{HEADER, Header, Kind, MAX_PAYLOAD},
    hello::{HelloAck, VERSION},
    preface::Preface,
};
use sandbox::link::{self, Link};
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, WriteHalf, duplex},
    time::timeout,
};

const EPOCH: u32 = 0x5eed;
/// More than any bound of the link, so that a hang is a failure and not a wait.
const HANG: Duration = Duration::from_secs(60);

/// Answers the hello as a guest does.
async fn answer(peer: &mut DuplexStream) {
    let mut hello = vec![0; MAX_PAYLOAD + HEADER];
    peer.read_exact(&mut hello).await.unwrap();
    let mut body =
        vec![0; Header::decode(hello[MAX_PAYLOAD..].first_chunk().unwrap()).unwrap().length];
    peer.read_exact(&mut body).await.unwrap();
    let ack = postcard::to_allocvec(&HelloAck { version: VERSION, guest: "evil".into() }).unwrap();
    send(peer, Kind::HelloAck, EPOCH, &ack).await.unwrap();
}

async fn send(
    peer: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    epoch: u32,
    body: &[u8],
) -> io::Result<()> {
    peer.write_all(&Header { kind, epoch, length: body.len() }.encode()).await?;
    peer.write_all(body).await
}

/// A yamux frame header: version 0, type, flags, stream, length.
fn yamux(kind: u8, flags: u16, stream: u32, length: u32) -> Vec<u8> {
    let mut frame = vec![0, kind];
    frame.extend_from_slice(&flags.to_be_bytes());
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(&length.to_be_bytes());
    frame
}

/// Runs a session against `evil` until it ends, or until `evil` does and the
/// pipe closes. Returns what the host made of it. What the host says is read
/// and thrown away: a guest that reads nothing is what the heartbeat is for.
async fn face<F>(evil: impl FnOnce(WriteHalf<DuplexStream>) -> F) -> io::Result<()>
where
    F: Future<Output = ()>,
{
    let (near, mut far) = duplex(256 * 1024);
    let (established, ()) =
        tokio::join!(link::establish(Box::new(near), link::Pipe::Used, EPOCH), answer(&mut far));
    let (_link, living) = established.unwrap();
    let (mut read, write) = tokio::io::split(far);
    let (silence, mut spoken) = tokio::sync::oneshot::channel::<()>();
    let listening = async move {
        let mut heard = vec![0; 64 * 1024];
        loop {
            tokio::select! {
                read = read.read(&mut heard) => if read.is_ok_and(|n| n > 0) { continue },
                _ = &mut spoken => {}
            }
            // Both halves must go for the pipe to close.
            return;
        }
    };
    let speaking = async move {
        evil(write).await;
        drop(silence);
    };
    let (ended, (), ()) = tokio::join!(timeout(HANG, living), speaking, listening);
    ended.expect("the session outlived its bound")
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_never_answers_is_given_up() {
    let (near, _far) = duplex(256 * 1024);
    let error = timeout(HANG, link::establish(Box::new(near), link::Pipe::Used, EPOCH))
        .await
        .unwrap()
        .err()
        .unwrap();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_guest_that_floods_instead_of_answering_is_given_up() {
    let before = resident_kib();
    let (near, far) = duplex(256 * 1024);
    let (mut read, mut write) = tokio::io::split(far);
    let flooding = tokio::spawn(async move {
        let noise = vec![b'C'; 64 * 1024];
        while write.write_all(&noise).await.is_ok() {}
    });
    let draining =
        tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
    let greeted =
        timeout(HANG, link::establish(Box::new(near), link::Pipe::Used, EPOCH)).await.unwrap();
    assert!(greeted.is_err());
    flooding.abort();
    draining.abort();
    assert!(resident_kib() < before + 32 * 1024, "memory grew with the flood");
}

#[tokio::test]
async fn noise_after_the_hello_ends_the_session() {
    let ended = face(|mut peer| async move {
        drop(peer.write_all(&[0xff; 4096]).await);
        // Keeps the pipe open: the host must not need the end of it.
        while peer.write_all(&[0xff]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(ended.await.unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn frames_of_another_session_are_dropped_without_being_kept() {
    let before = resident_kib();
    let ended = face(|mut peer| async move {
        for _ in 0..4096 {
            send(&mut peer, Kind::Data, EPOCH + 1, &[7; MAX_PAYLOAD]).await.unwrap();
        }
    });
    drop(ended.await);
    assert!(resident_kib() < before + 32 * 1024, "64 MiB of old frames were kept");
}

#[tokio::test]
async fn opening_streams_without_end_is_bounded() {
    let before = resident_kib();
    let ended = face(|mut peer| async move {
        // Window updates with the SYN flag open streams; guests use even numbers.
        for stream in (2..400_000).step_by(2) {
            if send(&mut peer, Kind::Data, EPOCH, &yamux(1, 1, stream, 0)).await.is_err() {
                return;
            }
        }
    });
    drop(ended.await);
    assert!(resident_kib() < before + 64 * 1024, "every stream was kept");
}

#[tokio::test]
async fn data_beyond_the_window_is_not_kept() {
    let before = resident_kib();
    let ended = face(|mut peer| async move {
        let mut body = yamux(0, 1, 2, 16 * 1024 - 12);
        body.resize(MAX_PAYLOAD, 0);
        // 256 MiB into a stream that the host refused; it may end the session
        // or read and drop, but not keep.
        for _ in 0..16 * 1024 {
            if send(&mut peer, Kind::Data, EPOCH, &body).await.is_err() {
                return;
            }
            // The same stream, no longer new.
            body[2..4].copy_from_slice(&[0, 0]);
        }
    });
    drop(ended.await);
    assert!(resident_kib() < before + 64 * 1024, "data nobody asked for was kept");
}

#[tokio::test]
async fn a_mux_header_that_announces_4_gib_allocates_nothing() {
    let before = resident_kib();
    let ended = face(|mut peer| async move {
        drop(send(&mut peer, Kind::Data, EPOCH, &yamux(0, 1, 2, u32::MAX)).await);
        // Some of what was announced.
        for _ in 0..64 {
            drop(send(&mut peer, Kind::Data, EPOCH, &[0; MAX_PAYLOAD]).await);
        }
    });
    drop(ended.await);
    assert!(resident_kib() < before + 32 * 1024);
}

/// One byte a second keeps a session, and costs nothing else.
#[tokio::test(start_paused = true)]
async fn a_slow_guest_blocks_nobody_else() {
    let (near, mut far) = duplex(256 * 1024);
    let (established, ()) =
        tokio::join!(link::establish(Box::new(near), link::Pipe::Used, EPOCH), answer(&mut far));
    let (link, living) = established.unwrap();
    let dripping = async {
        let frame = Header { kind: Kind::Data, epoch: EPOCH, length: 12 }.encode();
        for byte in frame {
            far.write_all(&[byte]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let asking = async {
        // The guest never answers: the caller's own bound is what ends this.
        let mut control = Link::control(&link).await.unwrap();
        let bound = Duration::from_secs(3);
        assert!(control.ping(1, bound).await.is_err());
        link.open(Preface::GuestApi).await.unwrap();
    };
    tokio::select! {
        ended = living => panic!("the session ended: {ended:?}"),
        ((), ()) = async { tokio::join!(dripping, asking) } => {}
    }
}
