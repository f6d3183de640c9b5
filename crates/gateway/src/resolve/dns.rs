//! Lookups by DNS, at the servers of the system or those that were configured.
//!
//! No search list and no hosts file: a name means the same for every sandbox and
//! every host. A chain of aliases is followed as far as the library goes (eight
//! steps) and within the time of one lookup.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use async_trait::async_trait;
use domain::host::Name;
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::{self, RData, Record, RecordType},
    system_conf::read_system_conf,
};
use tokio::time::timeout;

use super::{Lookup, LookupError};

/// How long a lookup may take in all.
const TIME: Duration = Duration::from_secs(10);
/// The most addresses that are looked at; a name with more is refused.
const MOST: usize = 64;
/// The most answers that are remembered, and for how long at most.
const REMEMBERED: u64 = 4096;
const MEMORY: Duration = Duration::from_secs(60);

/// Lookups by DNS.
#[derive(Clone)]
pub struct Dns {
    resolver: TokioResolver,
}

impl std::fmt::Debug for Dns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dns").finish_non_exhaustive()
    }
}

impl Dns {
    /// Asks these servers; without any, those of the system.
    pub fn new(servers: &[SocketAddr]) -> Result<Self, LookupError> {
        let (servers, mut options) = match servers {
            [] => system(),
            servers => (servers.iter().map(server).collect(), ResolverOpts::default()),
        };
        options.use_hosts_file = ResolveHosts::Never;
        options.ndots = 1;
        options.timeout = Duration::from_secs(3);
        options.attempts = 2;
        options.cache_size = REMEMBERED;
        options.positive_max_ttl = Some(MEMORY);
        options.negative_max_ttl = Some(MEMORY);
        // The search list of the system is left out.
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self { resolver: builder.build().map_err(failed)? })
    }

    async fn answers(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, LookupError> {
        let mut asked = rr::Name::from_ascii(name.as_str()).map_err(failed)?;
        asked.set_fqdn(true);
        match timeout(TIME, self.resolver.lookup(asked, kind)).await {
            Ok(Ok(lookup)) => Ok(lookup.answers().to_vec()),
            Ok(Err(error)) if error.is_no_records_found() && !error.is_nx_domain() => {
                Ok(Vec::new())
            }
            Ok(Err(error)) => Err(told(error)),
            Err(late) => Err(failed(late)),
        }
    }
}

#[async_trait]
impl Lookup for Dns {
    async fn addresses(&self, name: &Name) -> Result<Vec<IpAddr>, LookupError> {
        let (v4, v6) =
            tokio::join!(self.answers(name, RecordType::A), self.answers(name, RecordType::AAAA),);
        let records = match (v4, v6) {
            (Ok(v4), Ok(v6)) => [v4, v6].concat(),
            // One family that nobody answers for does not take the other away.
            (Ok(records), Err(_)) | (Err(_), Ok(records)) if !records.is_empty() => records,
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let addresses: Vec<IpAddr> =
            records.iter().filter_map(|record| address(&record.data)).collect();
        match addresses.len() {
            0 => Err(LookupError::NoSuchName),
            1..=MOST => Ok(addresses),
            _ => Err(failed(format!("more than {MOST} addresses"))),
        }
    }

    async fn records(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, LookupError> {
        self.answers(name, kind).await
    }
}

/// The address in a record, if it is one of those.
pub(crate) fn address(data: &RData) -> Option<IpAddr> {
    match data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    }
}

/// The system's servers. Where it names none, every lookup fails.
fn system() -> (Vec<NameServerConfig>, ResolverOpts) {
    match read_system_conf() {
        Ok((config, options)) => (config.name_servers().to_vec(), options),
        Err(error) => {
            tracing::warn!(%error, "the system names no DNS server, so no name can be looked up");
            (Vec::new(), ResolverOpts::default())
        }
    }
}

fn server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.to_vec())
}

fn told(error: NetError) -> LookupError {
    if error.is_nx_domain() { LookupError::NoSuchName } else { failed(error) }
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LookupError {
    LookupError::Failed { source: source.into() }
}
