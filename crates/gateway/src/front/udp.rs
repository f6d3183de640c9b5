//! Datagrams to one address, in mode `open` only.

use std::{io, net::SocketAddr, sync::atomic::Ordering, time::Duration};

use domain::host::Host;
use guest_protocol::egress::{self, Verdict};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::captured::refuse;
use crate::{client::Client, decide::Kind, journal::Text, stream::Stream, upstream};

/// Without a datagram for this long, the flow is over.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) async fn serve(
    client: Client,
    mut stream: Stream,
    address: SocketAddr,
) -> io::Result<()> {
    let (host, port) = (Host::from(address.ip()), address.port());
    let (entry, identified) = client.entry(Text::destination(&host, port));
    let connecting = async {
        identified?;
        let pinned = client.pin(Kind::Datagrams, host, port, &entry).await?;
        let socket = upstream::datagrams(&pinned).await?;
        Ok((pinned, socket))
    };
    let (pinned, socket) = match connecting.await {
        Ok(connected) => connected,
        Err(refusal) => return refuse(&mut stream, &entry, &refusal).await,
    };
    egress::write(&mut stream, &Verdict::Open).await?;
    let moved = entry.moved();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let up = async {
        let mut datagram = Vec::new();
        loop {
            let length = timeout(IDLE, reader.read_u16()).await??;
            datagram.resize(usize::from(length), 0);
            timeout(IDLE, reader.read_exact(&mut datagram)).await??;
            // A datagram may be lost; that one could not be sent says no more.
            drop(socket.send(&datagram).await);
            moved.up.fetch_add(length.into(), Ordering::Relaxed);
        }
    };
    let down = async {
        let mut datagram = vec![0; 65_536];
        loop {
            let Ok(received) = timeout(IDLE, socket.recv(&mut datagram)).await? else {
                // What came back is that nobody listens there.
                continue;
            };
            let length = u16::try_from(received).map_err(io::Error::other)?;
            writer.write_all(&length.to_be_bytes()).await?;
            writer.write_all(&datagram[..received]).await?;
            writer.flush().await?;
            moved.down.fetch_add(length.into(), Ordering::Relaxed);
        }
    };
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
        refusal = client.revoked_from(&pinned) => {
            entry.refused(&refusal);
            Ok(())
        }
    }
}
