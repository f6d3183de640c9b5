//! A server as a client sees it: its address, the token for it, and the guests
//! behind it.
//!
//! A token comes from `--token-file`, else from `COLDFRAME_TOKEN`, else from the
//! file that a server on this machine keeps for the account it runs as. That
//! last one is sent to this machine only: an address that somebody put into the
//! environment must not collect the tokens of the local server.

use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use api::{client::Client, exec::OnDisconnect, guest::ON_DISCONNECT};
use async_trait::async_trait;
use clap::Args;
use domain::{id::SandboxId, secret::Secret, token::Token};
use guest_protocol::client::{Body, BoxError, Transport};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt as _;

use crate::{
    commands::Configured,
    error::{Failure, Outcome},
};

/// The file in the state folder that holds a token for sandboxes.
pub(crate) const TOKEN_FILE: &str = "token";
/// The file in the state folder that holds the administrator's token.
pub(crate) const ADMIN_TOKEN_FILE: &str = "admin-token";
/// More than any token file is long.
const MAX_FILE: u64 = 4096;

/// Which server, and with which token.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Address of the server [default: the setting `url`]
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Read the token from this file instead of COLDFRAME_TOKEN
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Which of the local server's tokens a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// The one for sandboxes.
    Sandboxes,
    /// The administrator's.
    Administrator,
}

impl ServerArgs {
    /// A client of that server.
    pub(crate) fn client(&self, configured: &Configured<'_>, needs: Authority) -> Outcome<Client> {
        let config = configured.load(&[("url", self.url.clone())])?;
        if !is_address(&config.url) {
            return Err(Failure::usage(format!("{:?} is not a URL", config.url))
                .hint("--url and COLDFRAME_URL are written like http://127.0.0.1:7070"));
        }
        let variable = std::env::var("COLDFRAME_TOKEN").ok().filter(|text| !text.is_empty());
        let token = match (&self.token_file, variable) {
            (Some(path), _) => read(path)?,
            (None, Some(text)) => parse(&text, "COLDFRAME_TOKEN")?,
            (None, None) => {
                let path = config.state_dir.join(match needs {
                    Authority::Sandboxes => TOKEN_FILE,
                    Authority::Administrator => ADMIN_TOKEN_FILE,
                });
                if !is_here(&config.url) || !path.exists() {
                    return Err(no_token(&path));
                }
                read(&path)?
            }
        };
        Client::new(&config.url, &Secret::new(token.expose().to_owned()))
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

fn no_token(path: &Path) -> Failure {
    Failure::usage("there is no token for this server").hint(format!(
        "set COLDFRAME_TOKEN or --token-file; on the server's machine, its account finds one in {}",
        path.display()
    ))
}

/// Reads a token from a file that nobody else can read.
fn read(path: &Path) -> Outcome<Token> {
    let shown = path.display();
    let unreadable = |error| Failure::usage(format!("{shown} cannot be read: {error}"));
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        return Err(Failure::usage(format!("{shown} can be read by others than its owner")).hint(
            format!("run: chmod 600 {shown}; if others may have seen it, make a new token"),
        ));
    }
    let mut text = String::new();
    file.by_ref().take(MAX_FILE).read_to_string(&mut text).map_err(unreadable)?;
    parse(text.trim(), &shown.to_string())
}

fn parse(text: &str, place: &str) -> Outcome<Token> {
    text.parse().map_err(|error| Failure::usage(format!("{place}: {error}")))
}

/// Whether it can be the address of a server; the client looks closer.
fn is_address(url: &str) -> bool {
    url.parse::<http::Uri>()
        .is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
}

/// Whether a server address is this machine.
fn is_here(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let authority = rest.unwrap_or_default().split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The guest API of a sandbox behind a server.
#[derive(Clone, Debug)]
pub(crate) struct RemoteGuest {
    pub(crate) client: Client,
    pub(crate) id: SandboxId,
    /// What becomes of processes started here when we go away.
    pub(crate) on_disconnect: OnDisconnect,
}

#[async_trait]
impl Transport for RemoteGuest {
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let word = HeaderValue::from_static(self.on_disconnect.as_str());
        request.headers_mut().insert(ON_DISCONNECT, word);
        let response = self.client.guest(&self.id, request).await?;
        Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_token_stays_on_this_machine() {
        for url in ["http://127.0.0.1:7070", "https://localhost/x", "http://[::1]:1"] {
            assert!(is_here(url), "{url}");
        }
        for url in [
            "http://localhost.example:7070",
            "http://127.0.0.1@example.org",
            "http://example.org/127.0.0.1",
            "http://127.1.example",
            "ftp://localhost",
            "localhost",
            "",
        ] {
            assert!(!is_here(url), "{url}");
        }
    }
}
