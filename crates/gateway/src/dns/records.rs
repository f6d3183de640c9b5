//! Which questions are passed on at all, and which answers come back.

use std::net::IpAddr;

use domain::host::Name;
use hickory_resolver::proto::rr::{RData, Record, RecordType};

use crate::{
    address::{self, Internal, Own},
    resolve::dns::address as address_in,
};

/// The longest time for which an answer may be kept.
const MAX_TTL: u32 = 60;

/// Whether a question of this type and name is passed on.
pub(super) fn may_be_asked(kind: RecordType, name: &Name) -> bool {
    let ordinary = matches!(
        kind,
        RecordType::A
            | RecordType::AAAA
            | RecordType::CAA
            | RecordType::CNAME
            | RecordType::MX
            | RecordType::NAPTR
            | RecordType::NS
            | RecordType::SOA
            | RecordType::SRV
            | RecordType::SSHFP
            | RecordType::TLSA
            | RecordType::TXT
    );
    // Reverse lookups ask about addresses, the host's own networks among them.
    ordinary && name.labels().next_back() != Some("arpa")
}

/// The records, if none of them is an internal address. One that is refuses them
/// all (U24).
pub(super) fn judged(
    records: Vec<Record>,
    own: &Own,
    excepted: bool,
) -> Result<Vec<Record>, Internal> {
    let mut kept = Vec::new();
    for mut record in records {
        if let Some(found) = address_in(&record.data)
            && !excepted
        {
            address::judge(found, own)?;
            // An IPv4 address in IPv6 clothes would be dialled as what it is.
            if IpAddr::to_canonical(&found) != found {
                continue;
            }
        }
        if matches!(record.data, RData::HTTPS(_) | RData::SVCB(_)) {
            continue;
        }
        record.ttl = record.ttl.min(MAX_TTL);
        kept.push(record);
    }
    Ok(kept)
}
