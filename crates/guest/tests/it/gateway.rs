//! A gateway as small as a test needs it: it writes down what it is asked.

use std::sync::{Arc, Mutex};

use guest_protocol::{
    egress::{self, Destination, Front, Opening, Verdict},
    mux::Stream,
    preface::{self, Preface},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};

/// What it was asked so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gateway(Arc<Mutex<Vec<Opening>>>);

impl Gateway {
    /// Serves the streams that a guest opens.
    pub(crate) fn start(mut incoming: mpsc::Receiver<Stream>) -> Self {
        let gateway = Self::default();
        let serving = gateway.clone();
        tokio::spawn(async move {
            while let Some(stream) = incoming.recv().await {
                let gateway = serving.clone();
                tokio::spawn(async move {
                    // What breaks off is the other side's to notice.
                    gateway.serve(stream).await.ok();
                });
            }
        });
        gateway
    }

    /// What it was asked since the last call.
    pub(crate) fn asked(&self) -> Vec<Opening> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }

    async fn serve(&self, mut stream: Stream) -> std::io::Result<()> {
        assert_eq!(preface::read(&mut stream).await?, Preface::Egress);
        let opening: Opening = egress::read(&mut stream).await?;
        self.0.lock().expect("no panic").push(opening.clone());
        match opening.front {
            Front::Named | Front::Proxy => {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                let line =
                    String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
                let uid = opening.uid.map_or("nobody".to_owned(), |uid| uid.to_string());
                stream.write_all(format!("{line} by {uid}").as_bytes()).await?;
                stream.shutdown().await
            }
            Front::Captured(destination) => capture(stream, destination).await,
            Front::Dns => loop {
                let length = stream.read_u16().await?;
                let mut message = vec![0; usize::from(length)];
                stream.read_exact(&mut message).await?;
                // An answer without a record; for "no.…" and for TXT no such name.
                let text = message[message.len() - 3] == 16;
                message[2] |= 0x80;
                message[3] = if text || message[13..].starts_with(b"no") { 3 } else { 0 };
                stream.write_u16(length).await?;
                stream.write_all(&message).await?;
                stream.flush().await?;
            },
            Front::Udp(_) => {
                egress::write(&mut stream, &Verdict::Open).await?;
                loop {
                    let length = stream.read_u16().await?;
                    let mut datagram = vec![0; usize::from(length)];
                    stream.read_exact(&mut datagram).await?;
                    stream.write_u16(length).await?;
                    stream.write_all(&datagram).await?;
                    stream.flush().await?;
                }
            }
        }
    }
}

/// Repeats what it gets when all of it is there, with where it was going.
async fn capture(mut stream: Stream, destination: Destination) -> std::io::Result<()> {
    let (text, port) = match destination {
        Destination::Name { name, port } => (name, port),
        Destination::Address(address) => (address.ip().to_string(), address.port()),
    };
    if text.starts_with("10.") {
        let refused = Verdict::Refused { code: "destination_blocked".into() };
        egress::write(&mut stream, &refused).await?;
        return stream.shutdown().await;
    }
    egress::write(&mut stream, &Verdict::Open).await?;
    if port == 9 {
        // Half an answer, and then it breaks off.
        stream.write_all(b"half").await?;
        return stream.flush().await;
    }
    if port == 7 {
        // Nothing is read while the other side is there.
        std::future::pending::<()>().await;
    }
    if port == 19 {
        // Nothing is said; the end is noticed.
        stream.read_to_end(&mut Vec::new()).await?;
        return Ok(());
    }
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await?;
    let heard = String::from_utf8_lossy(&heard);
    stream.write_all(format!("{heard} to {text} {port}").as_bytes()).await?;
    stream.shutdown().await
}
