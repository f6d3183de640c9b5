//! A client in the sandbox of the lab, at the point where the relay is.

use std::{io, sync::Arc, time::Duration};

use gateway::wire::{Hand, write_hand};
use guest_protocol::egress::{self, Front, Opening};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use super::Lab;

/// How long an answer may take.
const BOUND: Duration = Duration::from_secs(20);

/// One stream to the gateway.
#[derive(Debug)]
pub struct Client {
    /// The stream behind the opening.
    pub stream: UnixStream,
}

impl Lab {
    /// Opens a stream as an account of the sandbox.
    pub async fn open(&self, front: Front, uid: Option<u32>) -> Client {
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
        far.set_nonblocking(true).expect("it can be");
        near.set_nonblocking(true).expect("it can be");
        let engine = Arc::clone(&self.engine);
        self.internet.namespaces.beside(async move {
            let far = UnixStream::from_std(far).expect("a stream");
            engine.serve(Box::new(far)).await;
        });
        let mut stream = UnixStream::from_std(near).expect("a stream");
        let hand = Hand { sandbox: self.sandbox.clone(), generation: 0 };
        write_hand(&mut stream, &hand).await.expect("the gateway listens");
        egress::write(&mut stream, &Opening { uid, front }).await.expect("the gateway listens");
        Client { stream }
    }

    /// Sends bytes as the ordinary account and reads until the gateway ends the
    /// connection, or says nothing for a while.
    pub async fn exchange(&self, front: Front, bytes: &[u8]) -> String {
        let mut client = self.open(front, Some(1000)).await;
        // A refusal may come before everything was sent.
        drop(client.stream.write_all(bytes).await);
        client.rest().await
    }
}

impl Client {
    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads until what was read ends with `end`.
    pub async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(end) {
            let mut byte = [0];
            match timeout(BOUND, self.stream.read(&mut byte)).await {
                Ok(Ok(1)) => bytes.push(byte[0]),
                _ => break,
            }
        }
        bytes
    }

    /// Reads what comes until the end, or until nothing comes for a moment.
    pub async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        let mut wait = BOUND;
        let mut space = [0; 4096];
        while let Ok(Ok(read)) = timeout(wait, self.stream.read(&mut space)).await {
            if read == 0 {
                break;
            }
            bytes.extend_from_slice(&space[..read]);
            wait = Duration::from_millis(300);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
