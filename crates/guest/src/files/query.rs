//! The query of a request to `/files`.

/// Decoded pairs, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses what stands behind the question mark.
    pub(crate) fn parse(raw: &str) -> Self {
        let pairs = raw.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(pairs.collect())
    }

    /// The first value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Undoes percent-encoding; `+` is a blank. A broken escape is itself.
pub(crate) fn decode(raw: &str) -> String {
    let bytes = raw.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escaped = match bytes[index..] {
            [b'%', high, low, ..] => digit(high).zip(digit(low)),
            _ => None,
        };
        match (bytes[index], escaped) {
            (_, Some((high, low))) => {
                decoded.push(high * 16 + low);
                index += 3;
                continue;
            }
            (b'+', None) => decoded.push(b' '),
            (byte, None) => decoded.push(byte),
        }
        index += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_may_hold_anything() {
        let query = Query::parse("path=%2Fa%20b%0A%26c+d&username=user&flag");
        assert_eq!(query.get("path"), Some("/a b\n&c d"));
        assert_eq!(query.get("username"), Some("user"));
        assert_eq!(query.get("flag"), Some(""));
        assert_eq!(query.get("missing"), None);
    }

    #[test]
    fn a_broken_escape_is_itself() {
        assert_eq!(decode("%zz%4"), "%zz%4");
    }

    proptest! {
        #[test]
        fn nothing_panics(raw in ".{0,80}") {
            Query::parse(&raw);
        }
    }
}
