//! Connecting to what was pinned, and to nothing else. No other file dials.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use crate::{
    code::{Code, Refusal},
    decide::Pinned,
};

/// Connects to the first address that answers, within `bound` for all of them.
pub(crate) async fn dial(pinned: &Pinned, bound: Duration) -> Result<TcpStream, Refusal> {
    let addresses = pinned.addresses();
    let each = bound / u32::try_from(addresses.len().clamp(1, 4)).unwrap_or(1);
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    let trying = async {
        for address in addresses {
            match timeout(each, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Small messages wait for nothing; a refusal costs speed only.
                    drop(stream.set_nodelay(true));
                    return Some(stream);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        None
    };
    match timeout(bound, trying).await {
        Ok(Some(stream)) => Ok(stream),
        Ok(None) | Err(_) => Err(unreachable(pinned, &last.kind().to_string())),
    }
}

/// A socket that sends to one pinned address and hears from it alone.
pub(crate) async fn datagrams(pinned: &Pinned) -> Result<UdpSocket, Refusal> {
    let address = pinned.addresses()[0];
    let any: SocketAddr = if address.is_ipv4() {
        (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let connecting = async {
        let socket = UdpSocket::bind(any).await?;
        socket.connect(address).await?;
        Ok(socket)
    };
    connecting.await.map_err(|error: io::Error| unreachable(pinned, &error.kind().to_string()))
}

/// What somebody hears whose destination does not answer.
pub(crate) fn unreachable(pinned: &Pinned, why: &str) -> Refusal {
    let request = pinned.request();
    let detail = format!("{}:{} does not answer: {why}", request.host, request.port);
    Refusal::new(Code::Unreachable, pinned.permit().rule(), detail)
}
