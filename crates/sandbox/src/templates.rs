//! What a machine is given before it is captured as a template.

use std::time::Duration;

use domain::{environment::Environment, id::SandboxId};
use guest_protocol::{
    control::{self, Newcomer, Request, Response},
    preface::Preface,
};
use tokio::time::timeout;

use crate::host::{Host, HostError};

/// How long the guest may take.
const ANSWER: Duration = Duration::from_secs(20);

impl Host {
    /// Gives the processes that start from now on more variables.
    ///
    /// They stay in the machine's memory and nowhere else, so a copy of it has
    /// them too. The machine gets other names by this, as each copy will.
    pub async fn furnish(
        &self,
        id: &SandboxId,
        environment: &Environment,
    ) -> Result<(), HostError> {
        let mut stream = self.stream(id, Preface::Control).await?;
        let sources = self.sources();
        let (mut machine_id, mut entropy) = ([0; 16], [0; 32]);
        (sources.random)(&mut machine_id);
        (sources.random)(&mut entropy);
        let now = u64::try_from((sources.clock)().0).unwrap_or(0);
        let given = environment.expose();
        let request = Request::Become(Box::new(Newcomer {
            sandbox: id.to_string(),
            hostname: "template".to_owned(),
            machine_id,
            unix_nanos: now.saturating_mul(1_000_000),
            entropy,
            environment: given.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }));
        let exchange = async {
            control::write(&mut stream, &request).await?;
            control::read::<Response>(&mut stream).await
        };
        match timeout(ANSWER, exchange).await {
            Ok(Ok(Response::Done)) => Ok(()),
            Ok(Ok(other)) => {
                Err(HostError::Unreachable(std::io::Error::other(format!("it said {other:?}"))))
            }
            Ok(Err(error)) => Err(HostError::Unreachable(error)),
            Err(_) => Err(HostError::Unreachable(std::io::ErrorKind::TimedOut.into())),
        }
    }
}
