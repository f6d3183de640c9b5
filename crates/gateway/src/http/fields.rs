//! Header fields that are between two neighbours only, and our own.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// How every tag of ours begins. A client never sends one: who it is is known
/// from where it comes (U33).
pub const OWN: &str = "x-coldframe-";

/// A tag of ours that came from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a header that begins with x-coldframe- is not yours to send")]
pub struct Forged;

/// Fields that end at the next neighbour, whatever `Connection` says.
const HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Refuses a message that claims to be from one of us.
pub fn no_tags(headers: &HeaderMap) -> Result<(), Forged> {
    if headers.keys().any(|name| name.as_str().starts_with(OWN)) { Err(Forged) } else { Ok(()) }
}

/// Removes what belongs to this connection. `te: trailers` stays: it is about
/// the message, and gRPC needs it.
pub fn strip_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|word| word.trim().parse().ok())
        .collect();
    let trailers = headers
        .get_all(header::TE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|word| word.trim().eq_ignore_ascii_case("trailers")));
    for name in named {
        headers.remove(name);
    }
    for name in HOP {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes our tags from what an upstream answers: a program inside may believe
/// them.
pub fn strip_tags(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(OWN)).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

/// The protocol that a client asks to change to, if it does: one, and not HTTP.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")));
    let mut values = headers.get_all(header::UPGRADE).iter();
    match (asked, values.next(), values.next()) {
        (true, Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"websocket") => {
            Some(value.clone())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields.iter();
        fields
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn what_connection_names_ends_here() {
        let mut headers = map(&[
            ("connection", "x-one, close"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("keep-alive", "5"),
            ("proxy-authorization", "Basic eA=="),
            ("te", "trailers, deflate"),
        ]);
        strip_hop(&mut headers);
        assert_eq!(headers, map(&[("x-two", "2"), ("te", "trailers")]));
    }

    /// U33: a tag of ours is forged, whoever sends it.
    #[test]
    fn our_tags_come_from_nobody() {
        let forged = map(&[("x-coldframe-session", "ses_1")]);
        assert_eq!(no_tags(&forged), Err(Forged));
        assert_eq!(no_tags(&map(&[("x-cold", "1")])), Ok(()));
        let mut answer = forged;
        strip_tags(&mut answer);
        assert!(answer.is_empty());
    }

    #[test]
    fn only_a_websocket_is_an_upgrade() {
        let asked =
            |value| upgrade(&map(&[("connection", "keep-alive, Upgrade"), ("upgrade", value)]));
        assert!(asked("WebSocket").is_some());
        assert!(asked("h2c").is_none());
        assert!(upgrade(&map(&[("upgrade", "websocket")])).is_none());
    }
}
