//! Fakes, fixtures and the backend contract, for tests only.

#[cfg(feature = "app")]
pub mod app;
pub mod contract;
pub mod fake_backend;
#[cfg(feature = "gateway")]
pub mod fake_gateway;
pub mod fake_guest;
pub mod fixtures;
#[cfg(feature = "lab")]
pub mod lab;
pub mod postgres;
