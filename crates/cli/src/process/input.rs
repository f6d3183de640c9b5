//! Our standard input, on its way into a process.

use std::io::{self, Read as _};

use guest_protocol::{
    bytes_json::Base64,
    client::{GuestClient, Transport},
    process::{Input as Bytes, Selector},
};
use tokio::sync::mpsc;

use super::{Launch, Terminal};

/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;
/// Pieces that wait for the process.
const QUEUE: usize = 2;
/// What a terminal's keyboard sends for end of file.
const END_OF_FILE: u8 = 4;

/// Carries standard input into the process until it ends or nobody reads it.
pub(super) async fn feed<T: Transport>(
    guest: &GuestClient<T>,
    process: &Selector,
    launch: &Launch,
) {
    if launch.input == super::Input::Empty {
        return;
    }
    let mut pieces = read();
    match launch.terminal {
        Terminal::No => {
            let (pipe, sending) = guest.input(process.clone());
            let reading = async {
                while let Some(piece) = pieces.recv().await {
                    if pipe.write(piece).await.is_err() {
                        break;
                    }
                }
                drop(pipe);
            };
            let ((), sent) = futures::join!(reading, sending);
            if let Err(error) = sent {
                // A process that ended without reading is no fault.
                tracing::debug!(%error, "standard input was not taken");
            }
        }
        Terminal::Yes => {
            while let Some(piece) = pieces.recv().await {
                if !type_in(guest, process, piece).await {
                    return;
                }
            }
            type_in(guest, process, vec![END_OF_FILE]).await;
        }
    }
}

async fn type_in<T: Transport>(guest: &GuestClient<T>, process: &Selector, piece: Vec<u8>) -> bool {
    guest.send_input(process.clone(), Bytes::Pty(Base64(piece))).await.is_ok()
}

/// Reads standard input on a thread of its own: a read that waits cannot be
/// called off, so the thread is left behind when the program ends.
fn read() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; PIECE];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(n_read) => {
                    if sender.blocking_send(buffer[..n_read].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // As end of file: a terminal that is gone, a closed descriptor.
                Err(_) => return,
            }
        }
    });
    receiver
}
