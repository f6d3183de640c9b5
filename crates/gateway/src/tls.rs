//! TLS: reading names, opening it where a rule asks for that, and upstream.

pub mod authority;
pub mod hello;
pub mod upstream;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The one provider of cryptography.
pub fn provider() -> Arc<CryptoProvider> {
    rustls::crypto::aws_lc_rs::default_provider().into()
}
