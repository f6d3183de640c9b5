//! A link under the bytes a hostile or unlucky peer would send.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

fn ack() -> HelloAck {
    HelloAck { version: VERSION, guest: "test".into() }
}

fn hello(epoch: u32) -> Hello {
    Hello { version: VERSION, epoch }
}

async fn pair(epoch: u32) -> (Transport<DuplexStream>, Transport<DuplexStream>) {
    let (near, far) = duplex(1 << 16);
    let (mut host, mut guest) = (Transport::new(near), Transport::new(far));
    let (answer, heard) = tokio::join!(greet(&mut host, epoch), accept(&mut guest));
    assert_eq!(answer.unwrap(), ack());
    assert_eq!(heard.unwrap(), hello(epoch));
    (host, guest)
}

async fn greet(host: &mut Transport<DuplexStream>, epoch: u32) -> io::Result<HelloAck> {
    host.greet(&hello(epoch), Pipe::Used).await
}

async fn accept(guest: &mut Transport<DuplexStream>) -> io::Result<Hello> {
    guest.accept(&ack()).await
}

#[tokio::test]
async fn a_session_carries_bytes_both_ways() {
    let (mut host, mut guest) = pair(7).await;
    host.write_all(b"to the guest").await.unwrap();
    host.flush().await.unwrap();
    guest.write_all(b"to the host!").await.unwrap();
    guest.flush().await.unwrap();
    let mut seen = [0; 12];
    guest.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"to the guest");
    host.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"to the host!");
}

#[tokio::test]
async fn a_second_hello_ends_the_first_session() {
    let (mut host, mut guest) = pair(1).await;
    // Bytes of the first session that the guest never read.
    host.write_all(b"old").await.unwrap();
    host.flush().await.unwrap();
    guest.write_all(b"old too").await.unwrap();
    guest.flush().await.unwrap();
    let mut reading = [0; 64];
    let (answer, ()) = tokio::join!(greet(&mut host, 2), async {
        assert_eq!(guest.read(&mut reading).await.unwrap(), 3);
        let error = guest.read(&mut reading).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(accept(&mut guest).await.unwrap(), hello(2));
    });
    answer.unwrap();
    guest.write_all(b"new").await.unwrap();
    guest.flush().await.unwrap();
    let n = host.read(&mut reading).await.unwrap();
    assert_eq!(&reading[..n], b"new", "bytes of the old session were delivered");
}

/// A guest of another version is refused with a sentence, not a hang.
#[tokio::test]
async fn another_version_is_refused() {
    let (near, far) = duplex(1 << 16);
    let (mut host, mut guest) = (Transport::new(near), Transport::new(far));
    let old = HelloAck { version: VERSION + 1, guest: String::new() };
    let (answer, _) = tokio::join!(greet(&mut host, 1), guest.accept(&old));
    assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn a_host_ends_the_session_at_the_first_byte_that_is_no_frame() {
    let (near, mut far) = duplex(1 << 16);
    let mut host = Transport::new(near);
    let answering = async {
        let mut seen = vec![0; MAX_PAYLOAD];
        far.read_exact(&mut seen).await.unwrap();
        let mut rest = [0; 64];
        let n = far.read(&mut rest).await.unwrap();
        let body = postcard::to_allocvec(&ack()).unwrap();
        assert!(n > HEADER);
        let header = Header { kind: Kind::HelloAck, epoch: 9, length: body.len() };
        far.write_all(&header.encode()).await.unwrap();
        far.write_all(&body).await.unwrap();
        far.write_all(&[0xff; 64]).await.unwrap();
    };
    let (answer, ()) = tokio::join!(greet(&mut host, 9), answering);
    answer.unwrap();
    let error = host.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever an earlier host left behind, the next hello is heard.
    #[test]
    fn a_hello_is_heard_behind_any_leftover(
        leftover in prop::collection::vec(any::<u8>(), 0..200),
        cut in 0..HEADER + 40,
    ) {
        runtime().block_on(async {
            let (mut near, far) = duplex(1 << 20);
            let mut guest = Transport::new(far);
            near.write_all(&leftover).await.unwrap();
            // A frame of an earlier session that broke off.
            let mut frame = Header { kind: Kind::Data, epoch: 3, length: MAX_PAYLOAD }.encode().to_vec();
            frame.extend_from_slice(&[0x55; 40]);
            near.write_all(&frame[..cut.min(frame.len())]).await.unwrap();
            let mut host = Transport::new(near);
            let (answer, heard) = tokio::join!(greet(&mut host, 4), accept(&mut guest));
            answer.unwrap();
            prop_assert_eq!(heard.unwrap(), hello(4));
            Ok(())
        })?;
    }

    /// G-01: no bytes of a guest make a host panic, wait for ever or grow.
    #[test]
    fn no_bytes_of_a_guest_harm_the_host(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        runtime().block_on(async {
            let (near, mut far) = duplex(1 << 20);
            let mut host = Transport::new(near);
            far.write_all(&bytes).await.unwrap();
            drop(far);
            prop_assert!(greet(&mut host, 1).await.is_err());
            prop_assert!(host.input.capacity() <= 1 << 16);
            Ok(())
        })?;
    }

    /// What one side writes is what the other reads, however it is cut.
    #[test]
    fn bytes_arrive_unchanged(bytes in prop::collection::vec(any::<u8>(), 0..100_000)) {
        runtime().block_on(async {
            let (mut host, mut guest) = pair(5).await;
            let mut seen = vec![0; bytes.len()];
            let (written, read) = tokio::join!(
                async { host.write_all(&bytes).await?; host.flush().await },
                guest.read_exact(&mut seen),
            );
            written.unwrap();
            read.unwrap();
            prop_assert_eq!(seen, bytes);
            Ok(())
        })?;
    }
}
