//! The authenticated edge of the API inside a sandbox.
//!
//! Outside this module nothing reaches a guest, and what reaches it is what
//! [`table`] names, by exact method and path. A [`Door`] belongs to one caller
//! and one sandbox; each call through it is one stream of the link:
//!
//! ```text
//!  request ─► table ─► inspect ─► control.open_guest ─► exchange ─► answer
//!             404      what is     authority, audit      HTTP/1.1    filtered,
//!                      asked                             bounded     streaming
//! ```
//!
//! Invariants:
//!
//! - The bytes that were inspected are the bytes that are forwarded.
//! - Nothing of a guest's answer is believed: header count and size are bounded,
//!   headers come from an allow-list, and a body that breaks off breaks off for
//!   the client too, so that half an answer never looks whole.
//! - Dropping an answer closes the guest's stream; there is no task that could
//!   outlive it, but the end of a process whose client asked for that ([`Leash`]).

pub(crate) mod body;
mod exchange;
mod inspect;
mod leash;
pub(crate) mod table;

pub(crate) use self::{
    inspect::{is_account, with_path},
    leash::Leash,
};

use async_trait::async_trait;
use domain::{caller::Caller, id::SandboxId};
use guest_protocol::client::{Body, BoxError, Transport};
use http::{Request, Response};
use http_body_util::BodyExt as _;

use self::body::{Answer, Meter};
use crate::{app::App, error::ApiError, pace::Streamed};

/// A caller's way into one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    app: App,
    caller: Caller,
    id: SandboxId,
}

impl Door {
    /// Authority is checked at each call, not here.
    pub(crate) fn new(app: App, caller: Caller, id: SandboxId) -> Self {
        Self { app, caller, id }
    }

    /// Sends `request`, whose URI is a path of the guest API, and counts the
    /// bytes of its body in `meter`.
    pub(crate) async fn call(
        &self,
        request: Request<Body>,
        meter: Meter,
    ) -> Result<Response<Answer>, ApiError> {
        let route = table::find(request.method(), request.uri().path())
            .ok_or_else(|| ApiError::not_found("path of the guest API"))?;
        let stop = self.app.stop.clone();
        let work = async {
            let mut share = self.app.memory.share();
            let inspected = inspect::inspect(route, request, &mut share).await?;
            let inspect::Inspected { call, request, leash } = inspected;
            let stream = self.app.control.open_guest(&self.caller, &self.id, &call).await?;
            let leash = leash.map(|tag| Leash::new(self.clone(), tag));
            let mut answer =
                exchange::exchange(stream, request, route, meter, &self.app.stop).await?;
            answer.extensions_mut().insert(Streamed);
            answer.body_mut().hold(leash);
            Ok(answer)
        };
        tokio::select! {
            answer = work => answer,
            () = stop.cancelled() => Err(ApiError::stopping()),
        }
    }
}

#[async_trait]
impl Transport for Door {
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let answer = self.call(request, Meter::default()).await.map_err(BoxError::from)?;
        Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()))
    }
}
