//! A peer that speaks raw yamux, and what of it reaches the crate.

use proptest::prelude::*;
use tokio::io::AsyncReadExt as _;

use super::{
    super::ledger::{ENOUGH, MAX_SMALL},
    *,
};

fn frame(kind: u8, flags: u16, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    Header { kind, flags, stream, length: payload.len() as u32 }.write(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes.to_vec()
}

/// The payloads of each data frame in `bytes`.
fn frames(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER>() {
        let header = Header::read(header).unwrap();
        bytes = &bytes[HEADER..];
        if header.kind == DATA {
            let (payload, rest) = bytes.split_at(header.length as usize);
            found.push((header.stream, payload.to_vec()));
            bytes = rest;
        }
    }
    found
}

async fn passed(bytes: &[u8], ledger: &Ledger) -> io::Result<Vec<u8>> {
    let mut seen = Vec::new();
    Guard::new(bytes, ledger.clone()).read_to_end(&mut seen).await.map(|_| seen)
}

/// G-01: a window of single bytes that nobody reads costs yamux few frames.
#[tokio::test(start_paused = true)]
async fn single_bytes_that_nobody_reads_are_joined() {
    let ledger = Ledger::new(4);
    let mut bytes = frame(WINDOW, SYN, 2, &[]);
    for n in 0..MAX_DATA {
        bytes.extend(frame(DATA, 0, 2, &[n as u8]));
    }
    let seen = frames(&passed(&bytes, &ledger).await.unwrap());
    assert!(seen.len() <= MAX_SMALL + MAX_DATA / ENOUGH, "{} frames", seen.len());
    let payload = seen.into_iter().flat_map(|(_, payload)| payload);
    let mut rest = BytesMut::new();
    rest.extend(ledger.take(2).into_iter().flatten());
    assert!(rest.len() < ENOUGH);
    assert!(payload.chain(rest).eq((0..MAX_DATA).map(|n| n as u8)), "bytes were lost or moved");
}

/// A reader that has caught up gets what was joined, and at once.
#[tokio::test(start_paused = true)]
async fn a_reader_that_has_caught_up_gets_the_rest() {
    let ledger = Ledger::new(4);
    ledger.opened(1);
    let (mut far, near) = tokio::io::duplex(1 << 20);
    let mut guard = Guard::new(near, ledger.clone());
    // One read for each, so that nothing is joined before it must be.
    let mut seen = [0; HEADER + 1];
    for _ in 0..MAX_SMALL {
        tokio::io::AsyncWriteExt::write_all(&mut far, &frame(DATA, 0, 1, b"x")).await.unwrap();
        guard.read_exact(&mut seen).await.unwrap();
    }
    tokio::io::AsyncWriteExt::write_all(&mut far, &frame(DATA, 0, 1, b"y")).await.unwrap();
    let reading = tokio::spawn(async move { guard.read_exact(&mut seen).await.map(|_| seen) });
    tokio::task::yield_now().await;
    assert!(!reading.is_finished(), "a frame too many for nobody");
    ledger.drained(1);
    assert_eq!(reading.await.unwrap().unwrap()[HEADER], b'y');
}

#[tokio::test(start_paused = true)]
async fn what_was_joined_comes_before_the_end_of_its_stream() {
    let ledger = Ledger::new(4);
    let mut bytes = frame(WINDOW, SYN, 2, &[]);
    for _ in 0..3 * MAX_SMALL {
        bytes.extend(frame(DATA, 0, 2, b"ab"));
    }
    bytes.extend(frame(WINDOW, FIN, 2, &[]));
    let seen = passed(&bytes, &ledger).await.unwrap();
    let payload: Vec<u8> = frames(&seen).into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(payload.len(), 6 * MAX_SMALL);
    let last = seen.last_chunk::<HEADER>().unwrap();
    assert!(Header::read(last).unwrap().has(FIN));
}

/// G-01: what no honest peer sends ends the session.
#[tokio::test]
async fn a_frame_that_is_not_one_ends_the_session() {
    let mut cases = vec![
        frame(4, 0, 1, &[]),
        frame(DATA, 16, 1, &[]),
        frame(DATA, 0, 0, b"x"),
        frame(PING, FIN, 0, &[]),
        frame(GO_AWAY, 0, 7, &[]),
        frame(WINDOW, SYN, 2, &[]).repeat(2),
        (0..9).flat_map(|n| frame(WINDOW, SYN, 2 * n + 2, &[])).collect(),
    ];
    let mut version = frame(DATA, 0, 1, &[]);
    version[0] = 1;
    let mut length = frame(DATA, 0, 1, &[]);
    length[8..].copy_from_slice(&(MAX_DATA as u32 + 1).to_be_bytes());
    cases.extend([version, length]);
    for bytes in cases {
        let outcome = passed(&bytes, &Ledger::new(4)).await;
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
    }
}

/// Small frames take their time, and nothing else does.
#[tokio::test(start_paused = true)]
async fn small_frames_come_at_a_bounded_rate() {
    let start = Instant::now();
    let ping = frame(PING, ACK, 0, &[]).repeat(20 * PER_TICK as usize);
    passed(&ping, &Ledger::new(4)).await.unwrap();
    // The first may come at once, and a read holds less than a tick's worth.
    assert!(start.elapsed() >= 18 * TICK, "{:?}", start.elapsed());
    let start = Instant::now();
    let large = frame(DATA, 0, 1, &[0; SMALL]).repeat(20 * PER_TICK as usize);
    passed(&large, &Ledger::new(4)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the peer cuts and mixes them, each stream keeps its bytes in order.
    #[test]
    fn every_stream_keeps_its_bytes_in_order(
        pieces in prop::collection::vec((0_u32..3, 0_usize..600, any::<bool>()), 0..200),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        let mut sent = [const { Vec::new() }; 3];
        let mut bytes = Vec::new();
        let ledger = Ledger::new(4);
        for (stream, length, ack) in pieces {
            let payload: Vec<u8> = (0..length).map(|n| (n ^ sent[stream as usize].len()) as u8).collect();
            sent[stream as usize].extend_from_slice(&payload);
            bytes.extend(frame(DATA, if ack { ACK } else { 0 }, 2 * stream + 1, &payload));
        }
        for stream in 0..3 {
            ledger.opened(2 * stream + 1);
            bytes.extend(frame(DATA, FIN, 2 * stream + 1, &[]));
        }
        let seen = frames(&runtime.block_on(passed(&bytes, &ledger)).unwrap());
        for stream in 0..3_u32 {
            let of = seen.iter().filter(|(id, _)| *id == 2 * stream + 1);
            let got: Vec<u8> = of.flat_map(|(_, payload)| payload.clone()).collect();
            prop_assert_eq!(&got, &sent[stream as usize]);
        }
    }
}
