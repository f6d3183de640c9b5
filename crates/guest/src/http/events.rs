//! The body of a server stream: messages as they come, keepalives in between,
//! and an end at the caller's deadline.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use guest_protocol::connect::{self, Code, Error};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::{HeaderMap, Response, StatusCode};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep, sleep},
};

use super::body::{self, Body};

/// Messages that wait for a slow reader, before the process behind them waits.
pub(crate) const QUEUE: usize = 4;
/// Unless the caller asks for another interval.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// How a stream is kept open and ended.
#[derive(Debug)]
pub(crate) struct Manner {
    /// Silence after which a keepalive is sent.
    pub(crate) keepalive: Duration,
    /// The message that is one.
    pub(crate) message: Bytes,
    /// When the stream ends, whatever it follows.
    pub(crate) deadline: Option<Duration>,
}

/// A stream of ready messages, the trailer among them.
struct Events {
    /// Sent together with the head of the answer.
    first: Option<Bytes>,
    messages: mpsc::Receiver<Bytes>,
    keepalive: Duration,
    message: Bytes,
    quiet: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

/// Answers with a stream of what is sent to `messages`, once there is a first
/// one: alone, the head would travel the whole way by itself.
pub(crate) async fn answer(mut messages: mpsc::Receiver<Bytes>, manner: Manner) -> Response<Body> {
    let events = Events {
        first: messages.recv().await,
        messages,
        keepalive: manner.keepalive,
        message: manner.message,
        quiet: Box::pin(sleep(manner.keepalive)),
        deadline: manner.deadline.map(|deadline| Box::pin(sleep(deadline))),
        ended: false,
    };
    body::answer(StatusCode::OK, connect::STREAM, events.boxed_unsync())
}

/// Answers with a stream that only ends, with an error.
pub(crate) fn refuse(error: &Error) -> Response<Body> {
    body::answer(StatusCode::OK, connect::STREAM, body::full(connect::end(Some(error))))
}

/// The interval the caller asks for, in whole seconds.
pub(crate) fn keepalive(headers: &HeaderMap) -> Duration {
    let value = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok());
    let seconds: Option<u64> = value.and_then(|text| text.parse().ok()).filter(|n| *n > 0);
    seconds.map_or(KEEPALIVE, |seconds| Duration::from_secs(seconds.min(3600)))
}

/// The deadline the caller sets; 0 and absence mean none.
pub(crate) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("connect-timeout-ms")?.to_str().ok()?;
    let ms: u64 = value.parse().ok()?;
    // Longer than any sandbox lives; the clock cannot overflow.
    const YEAR: u64 = 365 * 24 * 3600 * 1000;
    (ms > 0).then(|| Duration::from_millis(ms.min(YEAR)))
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let events = self.get_mut();
        if events.ended {
            return Poll::Ready(None);
        }
        if let Some(first) = events.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Poll::Ready(message) = events.messages.poll_recv(cx) {
            events.quiet.as_mut().reset(Instant::now() + events.keepalive);
            events.ended = message.is_none();
            return Poll::Ready(message.map(|message| Ok(Frame::data(message))));
        }
        let late = events.deadline.as_mut().is_some_and(|late| late.as_mut().poll(cx).is_ready());
        if late {
            events.ended = true;
            let error = Error::new(Code::DeadlineExceeded, "the deadline of this call has passed");
            return Poll::Ready(Some(Ok(Frame::data(connect::end(Some(&error))))));
        }
        if events.quiet.as_mut().poll(cx).is_ready() {
            events.quiet.as_mut().reset(Instant::now() + events.keepalive);
            // Registers the timer again.
            cx.waker().wake_by_ref();
            return Poll::Ready(Some(Ok(Frame::data(events.message.clone()))));
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn the_caller_sets_the_deadline_and_the_interval() {
        assert_eq!(
            deadline(&headers("connect-timeout-ms", "1500")),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(deadline(&headers("connect-timeout-ms", "0")), None);
        assert_eq!(deadline(&headers("connect-timeout-ms", "soon")), None);
        assert!(deadline(&headers("connect-timeout-ms", "18446744073709551615")).is_some());
        assert_eq!(keepalive(&headers("keepalive-ping-interval", "50")), Duration::from_secs(50));
        assert_eq!(keepalive(&HeaderMap::new()), KEEPALIVE);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_keepalives_and_ended_by_the_deadline() {
        let (sender, receiver) = mpsc::channel(1);
        sender.send(Bytes::from_static(b"first ")).await.unwrap();
        let manner = Manner {
            keepalive: Duration::from_secs(2),
            message: Bytes::from_static(b"k"),
            deadline: Some(Duration::from_secs(5)),
        };
        let body = answer(receiver, manner).await.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"first kk\x02"), "{body:?}");
    }
}
