//! Talking with one gateway process, until either side ends it.

use std::{io, time::Duration};

use gateway::{
    journal::Journal as _,
    wire::{self, ToGateway, ToServer},
};
use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};

use super::Facts;

/// Between two questions whether it is well, and for the answer to one.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A process that does not read is ended.
const WRITE: Duration = Duration::from_secs(20);

pub(super) async fn drive(
    stream: UnixStream,
    orders: &mut mpsc::Receiver<ToGateway>,
    facts: &Facts,
    ready: &watch::Sender<bool>,
) -> io::Result<()> {
    // What was meant for an earlier process; this one asks for what it needs.
    while orders.try_recv().is_ok() {}
    let (mut reader, mut writer) = stream.into_split();
    let (answers, mut answered) = mpsc::channel::<ToGateway>(64);
    let (alive, mut heard) = watch::channel(Instant::now());
    let reading = async {
        loop {
            let message = match wire::read(&mut reader).await {
                Ok(message) => message,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            };
            alive.send_replace(Instant::now());
            let answer = match message {
                ToServer::Ready => {
                    ready.send_replace(true);
                    continue;
                }
                ToServer::AskRules(sandbox, _) => match facts.rules(&sandbox).await {
                    Some(rules) => ToGateway::Rules(Box::new(rules)),
                    None => ToGateway::Forget(sandbox),
                },
                ToServer::Record(record) => {
                    facts.journal.record(*record);
                    continue;
                }
                ToServer::Trust(..) | ToServer::Pong(_) => continue,
            };
            // The writer ends with this.
            drop(answers.send(answer).await);
        }
    };
    let writing = async {
        let mut asked = Instant::now();
        for nonce in 0.. {
            let message = tokio::select! {
                Some(order) = orders.recv() => order,
                Some(answer) = answered.recv() => answer,
                () = sleep_until(asked + HEARTBEAT) => {
                    if heard.borrow_and_update().elapsed() > 3 * HEARTBEAT {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
                    }
                    asked = Instant::now();
                    ToGateway::Ping(nonce)
                }
            };
            timeout(WRITE, wire::write(&mut writer, &message))
                .await
                .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it does not listen"))??;
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
