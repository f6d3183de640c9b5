//! The gateway's process. Not a command for people: `serve` starts it.
//!
//! It is given its account before it begins, and gives up here what is left: it
//! gains nothing by executing another program, and makes no core file, which
//! would hold keys.

use std::{net::SocketAddr, os::fd::AsFd as _, path::PathBuf, process::ExitCode};

use clap::Parser;
use gateway::{
    engine::Limits,
    process::{Given, run as serve},
    resolve::dns::Dns,
    tls::upstream::{Roots, Trust},
};

use crate::{config::LogFormat, local, log};

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long)]
    log: String,
    #[arg(long, value_enum)]
    log_format: LogFormat,
    #[arg(long)]
    dns_server: Vec<SocketAddr>,
    #[arg(long)]
    roots: Option<PathBuf>,
}

/// Runs until the server is gone.
pub(crate) fn main(arguments: &[std::ffi::OsString]) -> ExitCode {
    match try_main(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the gateway ended");
            ExitCode::FAILURE
        }
    }
}

fn try_main(arguments: &[std::ffi::OsString]) -> anyhow::Result<()> {
    let arguments = Arguments::try_parse_from(arguments)?;
    log::of_gateway(&arguments.log, arguments.log_format)
        .map_err(|failure| anyhow::anyhow!(failure.message))?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    raise_file_limit();
    // The one descriptor that is ours; everything else comes over it.
    let control = std::io::stdin().as_fd().try_clone_to_owned()?;
    let given = Given::receive(control.into())?;
    let root = given.root(local::random)?;
    let roots = match &arguments.roots {
        Some(file) => Roots::These(std::fs::read(file)?),
        None => Roots::Platform,
    };
    let trust = Trust::new(&roots)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let lookup = Dns::new(&arguments.dns_server)?;
        serve(given, root, trust, Box::new(lookup), Limits::default()).await?;
        Ok(())
    })
}

/// Two descriptors for each tunnel; the usual soft limit would end at 500.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}
