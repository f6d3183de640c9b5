//! The log, on standard error. It holds metadata only, at every level: what
//! libraries would write of names that sandboxes look up has to be asked for by
//! the library's own name.

use std::io::{IsTerminal as _, stderr};

use tracing_subscriber::EnvFilter;

use crate::{
    config::{Config, LogFormat},
    error::{Failure, Outcome},
};

/// Libraries whose lower levels repeat what a sandbox asked for.
const TALKATIVE: [&str; 3] = ["hickory_net", "hickory_proto", "hickory_resolver"];

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
    let filter = EnvFilter::try_new(quiet(filter))
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

/// The filter with a word for each talkative library that it does not name.
fn quiet(filter: &str) -> String {
    let unnamed = TALKATIVE.iter().filter(|library| !filter.contains(*library));
    unnamed.fold(filter.to_owned(), |filter, library| format!("{filter},{library}=warn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W133: the names that sandboxes look up are in no log that nobody asked for.
    #[test]
    fn a_library_is_quiet_unless_it_is_named() {
        let all = "debug,hickory_net=warn,hickory_proto=warn,hickory_resolver=warn";
        assert_eq!(quiet("debug"), all);
        let asked = "info,hickory_net=debug";
        assert!(quiet(asked).starts_with("info,hickory_net=debug,hickory_proto=warn"));
        assert!(EnvFilter::try_new(quiet("info")).is_ok());
    }
}
