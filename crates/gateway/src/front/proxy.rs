//! The forward proxy on port 8789: `CONNECT` and absolute-form, HTTP/1.1 and 2.

use std::io;

use crate::{
    client::Client,
    http::connection::{Scope, Speaks, serve as http},
    stream::Stream,
};

pub(crate) async fn serve(client: Client, stream: Stream) -> io::Result<()> {
    http(client, stream, Vec::new(), Scope::Proxy, Speaks::Either, None).await
}
