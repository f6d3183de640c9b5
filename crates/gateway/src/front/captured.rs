//! A connection that a program made without asking anybody.
//!
//! The relay hears a verdict before a byte moves, so the program's `connect` is
//! refused at once where it is refused at all.

use std::io;

use guest_protocol::egress::{self, Verdict};

use crate::{
    client::{Client, Entry, read},
    code::Refusal,
    decide::Kind,
    http::tunnel,
    stream::Stream,
    upstream,
};

pub(crate) async fn serve(
    client: Client,
    mut stream: Stream,
    host: &str,
    port: u16,
) -> io::Result<()> {
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let (destination, asked) = read(&format!("{host}:{port}"), None);
    let (entry, identified) = client.entry(destination);
    let connecting = async {
        identified?;
        let (host, port) = asked?;
        let pinned = client.pin(Kind::Tunnel, host, port, &entry).await?;
        let outer = upstream::dial(&pinned, client.engine.limits.dial).await?;
        Ok((pinned, outer))
    };
    match connecting.await {
        Ok((pinned, outer)) => {
            egress::write(&mut stream, &Verdict::Open).await?;
            tunnel::run(client, stream, outer, pinned, entry).await;
            Ok(())
        }
        Err(refusal) => refuse(&mut stream, &entry, &refusal).await,
    }
}

/// Says no and ends.
pub(super) async fn refuse(
    stream: &mut Stream,
    entry: &Entry,
    refusal: &Refusal,
) -> io::Result<()> {
    entry.refused(refusal);
    egress::write(stream, &Verdict::Refused { code: refusal.code.as_str().to_owned() }).await
}
