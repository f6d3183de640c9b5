//! The machine that a template is built in, and what is done there.
//!
//! It is a sandbox of the organisation like any other: on record, counted, with
//! a time limit. Everything goes through the guest API. What programs print goes
//! to whoever follows the build, as fast as they take it.

use std::{io, sync::Mutex, time::Duration};

use domain::template::description::Command;
use guest_protocol::{
    client::{ClientError, GuestClient},
    connect::Code,
    process::{Event as ProcessEvent, Output, ProcessConfig, Selector, StartRequest},
};
use sandbox::guest::HostedGuest;
use store::{archive::context::Context, sandboxes::Sandbox};
use tokio::{sync::mpsc, time::Instant};

use super::{
    copy::Load,
    events::{Channel, Event, Feed},
    plan::State,
};
use crate::Control;

/// The most output of one build that is passed on.
const MAX_OUTPUT: usize = 16 << 20;
/// The most output of a program that is kept for us.
const MAX_KEPT: usize = 1 << 20;
/// The largest account file that is read.
const MAX_ACCOUNTS: usize = 1 << 20;
/// Bytes of a tar file that travel at once.
const PIECE: usize = 32 * 1024;
/// What unpacks files inside, at `$1` where a folder is wanted.
const UNPACK: &str = "if [ -n \"$1\" ]; then mkdir -p -- \"$1\" || exit; fi; exec tar -x -f - -C /";
/// Makes the folder `$1` of account `$2`, unless it is there.
const FOLDER: &str = "[ -d \"$1\" ] || { mkdir -p -- \"$1\" && chown -- \"$2\" \"$1\"; }";
/// What an error says when the machine itself is gone.
const LOST: &str = "the machine does not answer";

/// A machine and who follows what is done in it.
pub(super) struct Workshop<'a> {
    pub(super) control: &'a Control,
    pub(super) row: Sandbox,
    pub(super) feed: &'a Feed,
    /// When everything must be done.
    pub(super) latest: Instant,
    pub(super) passed_on: Mutex<usize>,
}

/// What becomes of a program's output.
pub(super) enum Said<'a> {
    /// It is passed on.
    Passed,
    /// Standard output is kept, up to a bound.
    Kept(&'a mut Vec<u8>),
}

impl Workshop<'_> {
    fn guest(&self) -> GuestClient<HostedGuest> {
        GuestClient::new(HostedGuest { host: self.control.host().clone(), id: self.row.id.clone() })
    }

    /// Whether an error means that no later attempt can succeed.
    pub(super) fn is_lost(&self, error: &str) -> bool {
        error.starts_with(LOST)
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// A sentence, when it does not succeed.
    pub(super) async fn program(
        &self,
        command: &Command,
        state: &State,
        account: &str,
        mut said: Said<'_>,
    ) -> Result<(), String> {
        let request = self.request(command, state);
        let left = self.latest.saturating_duration_since(Instant::now());
        let guest = self.guest();
        let started = guest.start(&request, account, Some(left)).await;
        let mut stream = started.map_err(told)?;
        loop {
            match stream.next().await.map_err(told)? {
                ProcessEvent::Data(output) => self.take(output, &mut said).await,
                ProcessEvent::End(end) if end.exited && end.exit_code == 0 => return Ok(()),
                ProcessEvent::End(end) => {
                    return Err(format!("it ended with {}", clean(&end.status)));
                }
                ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
            }
        }
    }

    /// Starts a program that stays. It is followed until `until` is done.
    ///
    /// # Errors
    /// When it does not start, or fails while it is followed.
    pub(super) async fn service(
        &self,
        command: &Command,
        state: &State,
        until: impl Future<Output = Result<(), String>>,
    ) -> Result<(), String> {
        let guest = self.guest();
        let request = self.request(command, state);
        let mut stream = guest.start(&request, &state.account, None).await.map_err(told)?;
        let mut ended = false;
        let mut until = std::pin::pin!(until);
        loop {
            tokio::select! {
                ready = &mut until => return ready,
                event = stream.next(), if !ended => match event.map_err(told)? {
                    ProcessEvent::Data(output) => self.take(output, &mut Said::Passed).await,
                    // One that put itself into the background is not followed.
                    ProcessEvent::End(end) if end.exited && end.exit_code == 0 => ended = true,
                    ProcessEvent::End(end) => {
                        return Err(format!("it ended with {}", clean(&end.status)));
                    }
                    ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
                },
            }
        }
    }

    fn request(&self, command: &Command, state: &State) -> StartRequest {
        let (cmd, args) = match command {
            Command::Shell(line) => ("/bin/sh".to_owned(), vec!["-c".to_owned(), line.clone()]),
            Command::Exec(words) => {
                (words.first().cloned().unwrap_or_default(), words[1..].to_vec())
            }
        };
        let process = ProcessConfig {
            cmd,
            args,
            envs: state.environment.clone(),
            cwd: Some(state.workdir.clone()),
        };
        StartRequest { process, stdin: Some(false), ..StartRequest::default() }
    }

    /// Runs one of our own lines with its parameters, as root.
    async fn shell(&self, line: &str, parameters: &[&str]) -> Result<(), String> {
        let mut words =
            vec!["/bin/sh".to_owned(), "-c".to_owned(), line.to_owned(), "sh".to_owned()];
        words.extend(parameters.iter().map(|word| (*word).to_owned()));
        let state = State { workdir: "/".to_owned(), ..State::default() };
        self.program(&Command::Exec(words), &state, "root", Said::Passed).await
    }

    /// Makes a folder.
    pub(super) async fn folder(&self, path: &str, account: &str) -> Result<(), String> {
        self.shell(FOLDER, &[path, account]).await
    }

    /// Brings files, each of `owner`.
    pub(super) async fn copy(
        &self,
        load: &Load,
        context: &Context,
        owner: Option<&(String, Option<String>)>,
    ) -> Result<(), String> {
        let owner = match owner {
            None => (0, 0),
            Some((account, group)) => self.owner(account, group.as_deref()).await?,
        };
        let folder = load.folder.clone().unwrap_or_default();
        let words = ["/bin/sh", "-c", UNPACK, "sh", &folder].map(str::to_owned).to_vec();
        let state = State { workdir: "/".to_owned(), ..State::default() };
        let request =
            StartRequest { stdin: Some(true), ..self.request(&Command::Exec(words), &state) };
        let guest = self.guest();
        let left = self.latest.saturating_duration_since(Instant::now());
        let mut stream = guest.start(&request, "root", Some(left)).await.map_err(told)?;
        let (input, sending) = guest.input(Selector::Pid(stream.pid()));
        let (pieces, mut queue) = mpsc::channel::<Vec<u8>>(2);
        let (load, context) = (load.clone(), context.clone());
        let writing = tokio::task::spawn_blocking(move || {
            load.write(&context, owner, io::BufWriter::with_capacity(PIECE, Pieces(pieces)))
        });
        let feeding = async {
            // A process that reads no more says why by how it ends.
            while let Some(piece) = queue.recv().await {
                if input.write(piece).await.is_err() {
                    break;
                }
            }
            drop(queue);
            drop(input);
        };
        let following = async {
            loop {
                match stream.next().await.map_err(told)? {
                    ProcessEvent::Data(output) => self.take(output, &mut Said::Passed).await,
                    ProcessEvent::End(end) if end.exited && end.exit_code == 0 => return Ok(()),
                    ProcessEvent::End(end) => {
                        return Err(format!(
                            "tar in the sandbox ended with {}; COPY needs a shell and tar there",
                            clean(&end.status)
                        ));
                    }
                    ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
                }
            }
        };
        let ((), sent, followed) = futures::join!(feeding, sending, following);
        let written = writing.await.map_err(|error| error.to_string())?;
        followed?;
        sent.map_err(told)?;
        written.map_err(|error| error.to_string())
    }

    /// The numbers of an account and a group, by the sandbox's own files.
    async fn owner(&self, account: &str, group: Option<&str>) -> Result<(u32, u32), String> {
        let uid = match account.parse() {
            Ok(uid) => (uid, uid),
            Err(_) => {
                let passwd = self.file("/etc/passwd").await?;
                let fields = found(&passwd, account);
                fields.ok_or_else(|| format!("there is no account {account:?} in the sandbox"))?
            }
        };
        let gid = match group.map(|group| (group, group.parse())) {
            None => uid.1,
            Some((_, Ok(gid))) => gid,
            Some((group, Err(_))) => {
                let groups = self.file("/etc/group").await?;
                let fields = found(&groups, group);
                fields.ok_or_else(|| format!("there is no group {group:?} in the sandbox"))?.0
            }
        };
        Ok((uid.0, gid))
    }

    async fn file(&self, path: &str) -> Result<String, String> {
        use http_body_util::BodyExt as _;
        let guest = self.guest();
        let (_, mut body) = guest.read_file(path, "root").await.map_err(told)?;
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            if let Some(data) = frame.data_ref() {
                text.extend_from_slice(data);
            }
            if text.len() > MAX_ACCOUNTS {
                return Err(format!("{path} in the sandbox is too long"));
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The variables that programs of the machine begin with.
    pub(super) async fn environment(&self) -> Result<Vec<(String, String)>, String> {
        let command = Command::Shell("tr '\\000' '\\n' < /proc/self/environ".to_owned());
        let state = State { workdir: "/".to_owned(), ..State::default() };
        let mut text = Vec::new();
        self.program(&command, &state, "root", Said::Kept(&mut text)).await?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    async fn take(&self, output: Output, said: &mut Said<'_>) {
        let (channel, bytes) = match output {
            Output::Stdout(bytes) | Output::Pty(bytes) => (Channel::Output, bytes.0),
            Output::Stderr(bytes) => (Channel::Error, bytes.0),
        };
        match said {
            Said::Kept(kept) if channel == Channel::Output => {
                let room = MAX_KEPT.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Said::Kept(_) => {}
            Said::Passed => {
                let before = {
                    // Nothing panics while it is held.
                    let mut total =
                        self.passed_on.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let before = *total;
                    *total += bytes.len();
                    before
                };
                if before < MAX_OUTPUT {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    self.feed.tell(Event::Output { channel, text }).await;
                    if before + bytes.len() >= MAX_OUTPUT {
                        let text = "there is more output than is passed on".to_owned();
                        self.feed.tell(Event::Note { text }).await;
                    }
                }
            }
        }
    }
}

/// Second and third number of the line of `name`.
fn found(text: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields = text.lines().map(|line| line.split(':'));
    fields.find_map(|mut fields| {
        if fields.next() != Some(name) {
            return None;
        }
        let first = fields.nth(1)?.parse().ok()?;
        // A group has members in this place.
        Some((first, fields.next().and_then(|field| field.parse().ok()).unwrap_or(first)))
    })
}

/// What a client's error means to whoever follows the build.
fn told(error: ClientError) -> String {
    match error {
        ClientError::Refused(error) if error.code == Code::DeadlineExceeded => {
            "it took longer than a build may".to_owned()
        }
        ClientError::Refused(error) => clean(&error.to_string()),
        ClientError::Unreachable(_) => format!("{LOST}; it may have run out of memory"),
        ClientError::Unreadable(_) => LOST.to_owned(),
    }
}

/// Text of a guest: bounded, and without anything that a terminal obeys.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(400).collect()
}

/// Pieces of a tar file on the way to the sandbox.
struct Pieces(mpsc::Sender<Vec<u8>>);

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        let sent = self.0.blocking_send(piece.to_vec());
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How long a build may take.
pub(super) const LIMIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:44::/:/bin/false\n";
        assert_eq!(found(passwd, "web"), Some((33, 44)));
        assert_eq!(found("staff:x:50:web,root\n", "staff"), Some((50, 50)));
        assert_eq!(found(passwd, "we"), None);
    }

    /// S29: what a guest says cannot drive the terminal of whoever reads it.
    #[test]
    fn the_words_of_a_guest_are_bounded_and_plain() {
        assert_eq!(clean("\u{1b}[2Jno\n"), "[2Jno");
        assert_eq!(clean(&"x".repeat(1000)).len(), 400);
    }
}
