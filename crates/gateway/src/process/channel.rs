//! The gateway's end of the control channel: where its rules come from and where
//! its records go.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use async_trait::async_trait;
use domain::id::SandboxId;
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot, watch},
};

use crate::{
    journal::{Journal, Record},
    pace::Pace,
    rules::{Policy, Rules},
    tls::authority::Authorities,
    wire::{self, ToGateway, ToServer},
};

/// Messages that wait to be sent. A record that does not fit is counted.
const QUEUE: usize = 4096;
/// Records of one sandbox: at once, and each second.
const BURST: u32 = 400;
const PER_SECOND: u32 = 100;
/// Streams that wait for the rules of one sandbox.
const WAITING: usize = 512;

/// The channel, for the engine.
pub(super) struct Channel {
    outgoing: mpsc::Sender<ToServer>,
    known: Mutex<HashMap<SandboxId, Known>>,
}

/// What is known of one sandbox.
#[derive(Default)]
struct Known {
    rules: Option<watch::Sender<Arc<Rules>>>,
    waiting: Vec<(u64, oneshot::Sender<Answer>)>,
    pace: Option<Pace>,
    dropped: u64,
}

type Answer = Option<watch::Receiver<Arc<Rules>>>;

impl Channel {
    /// A channel, and what it has to say.
    pub(super) fn new() -> (Self, mpsc::Receiver<ToServer>) {
        let (outgoing, queue) = mpsc::channel(QUEUE);
        (Self { outgoing, known: Mutex::default() }, queue)
    }

    /// Speaks with the server until it is gone.
    pub(super) async fn drive(
        &self,
        stream: UnixStream,
        mut queue: mpsc::Receiver<ToServer>,
        authorities: &Authorities,
    ) -> io::Result<()> {
        let (mut reader, mut writer) = stream.into_split();
        let writing = async {
            wire::write(&mut writer, &ToServer::Ready).await?;
            while let Some(message) = queue.recv().await {
                wire::write(&mut writer, &message).await?;
            }
            Ok(())
        };
        let reading = async {
            loop {
                match wire::read::<ToGateway>(&mut reader).await {
                    Ok(message) => self.obey(message, authorities).await,
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        };
        tokio::select! {
            ended = writing => ended,
            ended = reading => ended,
        }
    }

    async fn obey(&self, message: ToGateway, authorities: &Authorities) {
        let answer = match message {
            ToGateway::Rules(rules) => return self.replace(*rules),
            ToGateway::Forget(sandbox) => {
                authorities.forget(&sandbox);
                let known = self.known().remove(&sandbox);
                for (_, waiting) in known.into_iter().flat_map(|known| known.waiting) {
                    // Whoever waited may have gone.
                    drop(waiting.send(None));
                }
                return;
            }
            ToGateway::AskTrust(sandbox) => match authorities.certificate(&sandbox) {
                Ok(pem) => ToServer::Trust(sandbox, pem),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, "a sandbox has no authority");
                    return;
                }
            },
            ToGateway::Ping(nonce) => ToServer::Pong(nonce),
        };
        // The queue ends with the channel.
        drop(self.outgoing.send(answer).await);
    }

    /// Takes newer rules; whoever waits for them goes on.
    fn replace(&self, rules: Rules) {
        let mut all = self.known();
        let known = all.entry(rules.sandbox.clone()).or_default();
        let generation = rules.generation;
        match &known.rules {
            Some(had) if had.borrow().generation > generation => return,
            Some(had) => drop(had.send_replace(Arc::new(rules))),
            None => known.rules = Some(watch::Sender::new(Arc::new(rules))),
        }
        let Some(rules) = &known.rules else { return };
        for (wanted, waiting) in std::mem::take(&mut known.waiting) {
            if wanted <= generation {
                drop(waiting.send(Some(rules.subscribe())));
            } else {
                known.waiting.push((wanted, waiting));
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SandboxId, Known>> {
        // Nothing panics while it is held.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Policy for Channel {
    async fn rules(&self, sandbox: &SandboxId, generation: u64) -> Answer {
        let answer = {
            let mut all = self.known();
            let known = all.entry(sandbox.clone()).or_default();
            if let Some(rules) = &known.rules
                && rules.borrow().generation >= generation
            {
                return Some(rules.subscribe());
            }
            known.waiting.retain(|(_, waiting)| !waiting.is_closed());
            if known.waiting.len() >= WAITING {
                return None;
            }
            let (sender, answer) = oneshot::channel();
            known.waiting.push((generation, sender));
            answer
        };
        let asking = ToServer::AskRules(sandbox.clone(), generation);
        self.outgoing.send(asking).await.ok()?;
        answer.await.ok()?
    }
}

impl Journal for Channel {
    fn record(&self, mut record: Record) {
        let now = Instant::now();
        let mut all = self.known();
        let known = all.entry(record.sandbox.clone()).or_default();
        let pace = known.pace.get_or_insert_with(|| Pace::new(BURST, PER_SECOND, now));
        if !pace.take(now) {
            known.dropped += 1;
            return;
        }
        record.dropped = std::mem::take(&mut known.dropped);
        let dropped = record.dropped;
        if self.outgoing.try_send(ToServer::Record(Box::new(record))).is_err() {
            known.dropped = dropped + 1;
        }
    }
}

#[cfg(test)]
mod tests;
