//! A value that can be used and cannot be printed.

use std::fmt;

use zeroize::Zeroizing;

/// A credential or another text that must not be shown.
///
/// There is no `Display`, no `Serialize` and no `Deref`. The single way out is
/// [`Secret::expose`], so a search for `expose(` lists every place that handles
/// plaintext. Memory is wiped on drop.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes ownership of a secret text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The plaintext.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new("hunter2".into())), "Secret(..)");
    }
}
