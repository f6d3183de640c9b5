//! Named paths on port 8788: never a proxy (L46).

use std::io;

use crate::{
    client::Client,
    http::connection::{Scope, Speaks, serve as http},
    stream::Stream,
};

pub(crate) async fn serve(client: Client, stream: Stream) -> io::Result<()> {
    http(client, stream, Vec::new(), Scope::Named, Speaks::Http1, None).await
}
