//! The log, on standard error. It holds metadata only, at every level.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::EnvFilter;

use crate::{
    config::{Config, LogFormat},
    error::{Failure, Outcome},
};

/// Begins the log of a server.
pub(crate) fn of_server(config: &Config) -> Outcome<()> {
    start(&config.log, config.log_format)
}

/// Begins the log of the gateway, which goes where that of its server goes.
pub(crate) fn of_gateway(filter: &str, format: LogFormat) -> Outcome<()> {
    start(filter, format)
}

/// Begins the log of a command: what went wrong behind its back, and more only
/// where `COLDFRAME_LOG` asks for it.
pub(crate) fn of_command() -> Outcome<()> {
    let filter = std::env::var("COLDFRAME_LOG").unwrap_or_else(|_| "error".to_owned());
    start(&filter, LogFormat::Text)
}

fn start(filter: &str, format: LogFormat) -> Outcome<()> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failure::usage(format!("log: {filter:?} is not a filter: {error}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::new(crate::error::Kind::Internal, error.to_string()))
}
