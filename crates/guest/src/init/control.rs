//! The host's requests to init, one after another on a stream.

use std::{io, rc::Rc, time::Duration};

use guest_protocol::{
    connect::Code,
    control::{self, Request, Response},
    mux::Stream,
};

use super::{Init, USER, identity, network, start, volumes};
use crate::messages::{Command, Start, Wiring};

/// How long one command may take.
const WARM: Duration = Duration::from_secs(60);

/// Answers requests until the host closes the stream.
pub(super) async fn serve(init: Rc<Init>, mut stream: Stream) -> io::Result<()> {
    loop {
        let response = match control::read(&mut stream).await? {
            Request::Ping { nonce } => Response::Pong { nonce },
            Request::Warm { commands } => answer(warm(&init, commands).await),
            Request::Identify(identity) => answer(identity::assume(&init, *identity).await),
            Request::Wake { unix_nanos, entropy } => {
                answer(identity::wake(&init, unix_nanos, &entropy))
            }
            Request::Become(newcomer) => answer(identity::become_other(&init, *newcomer).await),
            Request::Volume(request) => volumes::serve(&init, request).await,
            Request::Network(network) => answer(network::change(&init, *network).await),
        };
        control::write(&mut stream, &response).await?;
    }
}

pub(super) fn answer(outcome: io::Result<()>) -> Response {
    match outcome {
        Ok(()) => Response::Done,
        Err(error) => Response::Failed { message: error.to_string() },
    }
}

/// Runs each command to its end. How it ends does not matter, only what it read.
async fn warm(init: &Rc<Init>, commands: Vec<Vec<String>>) -> io::Result<()> {
    for words in commands {
        let mut words = words.into_iter();
        let Some(cmd) = words.next() else { continue };
        let command = Command { cmd, args: words.collect(), ..Default::default() };
        let start = Start {
            uid: USER,
            command,
            tag: None,
            wiring: Wiring::NoStdin,
            deadline_ms: u64::try_from(WARM.as_millis()).ok(),
        };
        let name = start.command.cmd.clone();
        match start::run_silently(init, start).await {
            Ok(()) => {}
            // An image need not have every program that most have.
            Err(error) if error.code == Code::NotFound => {}
            Err(error) => {
                return Err(io::Error::other(format!("cannot warm up {name}: {error}")));
            }
        }
    }
    Ok(())
}
