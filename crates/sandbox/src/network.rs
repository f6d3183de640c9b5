//! The network that programs inside see.
//!
//! It is a convenience for them and no wall: whatever the guest makes of it, what
//! leaves is decided by the gateway. So it may be told late, or not at all.

use std::time::Duration;

use domain::{id::SandboxId, mode::EgressMode};
use guest_protocol::{
    control::{Mode, Network, Request},
    preface::Preface,
};

use crate::{
    host::{Host, HostError},
    link::{Control, ControlError},
};

/// How long the guest may take to set its network up.
const SETTING: Duration = Duration::from_secs(20);
/// Where the relay's forward proxy listens inside.
const PROXY: &str = "http://127.0.0.1:8789";
/// What is never asked of the proxy: the sandbox itself.
const SELF: &str = "localhost,127.0.0.1,::1";

/// What the guest is told about a mode.
pub fn network(mode: EgressMode) -> Network {
    let inside = match mode {
        EgressMode::Off => Mode::Off,
        EgressMode::Brokered => Mode::Brokered,
        EgressMode::Restricted => Mode::Restricted,
        EgressMode::Mediated => Mode::Mediated,
        EgressMode::Open => Mode::Open,
    };
    let environment = match mode {
        // Programs that ignore these are captured and held to the same rules;
        // those that do not get a refusal that says why.
        EgressMode::Restricted | EgressMode::Mediated => {
            let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
            let proxies = proxies.map(|name| (name.to_owned(), PROXY.to_owned()));
            let exempt = ["NO_PROXY", "no_proxy"].map(|name| (name.to_owned(), SELF.to_owned()));
            proxies.into_iter().chain(exempt).collect()
        }
        EgressMode::Off | EgressMode::Brokered | EgressMode::Open => Vec::new(),
    };
    Network { mode: inside, environment }
}

impl Host {
    /// Tells the guest what its network looks like from now on. Telling it again
    /// changes nothing.
    pub async fn set_network(&self, id: &SandboxId, mode: EgressMode) -> Result<(), HostError> {
        let mut control = Control::over(self.stream(id, Preface::Control).await?);
        let request = Request::Network(Box::new(network(mode)));
        match control.call(&request, SETTING).await {
            Ok(_) => Ok(()),
            Err(ControlError::Failed(why)) => {
                Err(HostError::Unreachable(std::io::Error::other(why)))
            }
            Err(ControlError::Lost(error)) => Err(HostError::Unreachable(error)),
        }
    }
}
