//! The resolver: messages behind a big-endian `u16` length, in turn.

use std::io;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    client::Client,
    code::{Code, Refusal},
    dns::{self, Ruling},
    engine::Sandbox,
    stream::Stream,
};

/// The largest question: one name and what EDNS adds.
const MAX_QUESTION: u16 = 1232;

pub(crate) async fn serve(client: Client, mut stream: Stream, sandbox: &Sandbox) -> io::Result<()> {
    let limits = client.engine.limits;
    loop {
        let Ok(length) = timeout(limits.idle, stream.read_u16()).await else { return Ok(()) };
        let length = match length {
            Ok(length) if length <= MAX_QUESTION => length,
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(_) => return Ok(()),
        };
        let mut question = vec![0; usize::from(length)];
        timeout(limits.opening, stream.read_exact(&mut question))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let Some(answer) = answer(&client, &question, sandbox).await else { return Ok(()) };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(&answer);
        stream.write_all(&bytes).await?;
        stream.flush().await?;
    }
}

async fn answer(client: &Client, question: &[u8], sandbox: &Sandbox) -> Option<Vec<u8>> {
    let resolver = &client.engine.resolver;
    let rules = client.rules();
    let own = resolver.own().ok()?;
    let answer = dns::answer(&rules, question, resolver.lookup(), &own, &sandbox.meter).await?;
    let (entry, identified) = client.entry(answer.asked);
    identified.ok()?;
    entry.rule(answer.rule.as_str());
    if let Ruling::Refused(code) = answer.ruling {
        entry.refused(&Refusal::new(code, answer.rule.as_str(), Code::as_str(code)));
    }
    Some(answer.message)
}
