//! Each setting once: its name, its default, its help, and how it is read.
//!
//! What is private here is what a value may look like; what a setting means is
//! in its help, from which the reference page is generated.

use std::path::PathBuf;

use control::pool::Ready;
use domain::mode::EgressMode;

use super::{Config, LogFormat};

/// One setting, as text, before it is understood.
#[cfg_attr(not(test), expect(dead_code, reason = "a test makes the reference page of them"))]
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) default: &'static str,
    pub(super) help: &'static str,
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
}

/// Each setting once, in the order of the reference page.
pub(super) const SETTINGS: [Setting; 43] = [
    Setting {
        key: "state_dir",
        default: "/var/lib/coldframe",
        help: "Folder for everything that is kept: the database, tokens, sandboxes, and, unless set otherwise, images and templates. Only its owner may enter it.",
        set: |config, text| path(text).map(|value| config.state_dir = value),
    },
    Setting {
        key: "images",
        default: "<state_dir>/images",
        help: "Folder with one folder for each image and the public keys that are trusted.",
        set: |config, text| path(text).map(|value| config.images = Some(value)),
    },
    Setting {
        key: "cache_dir",
        default: "<state_dir>/cache",
        help: "Folder for what machines are made from: booted templates, and the copy of QEMU that they are confined to. The server and `coldframe run` share it. It can be emptied while nothing runs; the next start makes what it needs.",
        set: |config, text| path(text).map(|value| config.cache_dir = Some(value)),
    },
    Setting {
        key: "qemu",
        default: "/usr/bin/qemu-system-x86_64",
        help: "The QEMU to run machines with, 7.2 or later.",
        set: |config, text| path(text).map(|value| config.qemu = value),
    },
    Setting {
        key: "uid_base",
        default: "2000000000",
        help: "The first of 65,536 user ids that machines run as, one for each. Nothing else on this host may use them.",
        set: |config, text| number(text).map(|value| config.uid_base = value),
    },
    Setting {
        key: "gateway_uid",
        default: "1999999999",
        help: "The user id that the gateway runs as. Nothing else on this host may use it.",
        set: |config, text| number(text).map(|value| config.gateway_uid = value),
    },
    Setting {
        key: "dns_servers",
        default: "",
        help: "Servers, separated by commas, at which the gateway looks names up, such as `192.0.2.1:53`. Without any, those of the system.",
        set: |config, text| {
            let servers = text.split(',').map(str::trim).filter(|server| !server.is_empty());
            let parsed = servers.map(str::parse).collect::<Result<_, _>>();
            config.dns_servers = parsed.map_err(|_| "write each like 192.0.2.1:53")?;
            Ok(())
        },
    },
    Setting {
        key: "upstream_roots",
        default: "",
        help: "File with the certificates, in PEM, that destinations are verified against where the gateway itself speaks TLS: named upstreams and intercepted hosts. It must be readable for the gateway's user. Without one, those of the system.",
        set: |config, text| {
            config.upstream_roots = if text.is_empty() { None } else { Some(path(text)?) };
            Ok(())
        },
    },
    Setting {
        key: "database",
        default: "sqlite://<state_dir>/coldframe.db",
        help: "Where the server remembers: `sqlite:///path/file.db` or `postgres://user@host/name`.",
        set: |config, text| filled(text).map(|value| config.database = Some(value)),
    },
    Setting {
        key: "registries",
        default: "",
        help: "Registries that a template may start from an image of, separated by commas: `NAME=URL`, and after it, separated by spaces, `also=HOST` for each host that the registry sends its clients to (for tokens, for layers), `login=/FILE` for a file with `account:password`, and `internal` if its addresses are of this network. `FROM docker://NAME/REPOSITORY:TAG` uses the one called NAME; nothing else is ever asked for.",
        set: |config, text| text.parse().map(|value| config.registries = value),
    },
    Setting {
        key: "listen",
        default: "127.0.0.1:7070",
        help: "Address and port the server listens on. It speaks plain HTTP: for other machines, put a TLS proxy in front.",
        set: |config, text| {
            let address = text.parse().map_err(|_| "write it like 127.0.0.1:7070")?;
            config.listen = address;
            Ok(())
        },
    },
    Setting {
        key: "names",
        default: "",
        help: "Names, separated by commas, under which clients may address the server, beside this machine's own. Requests to another name are refused, so that a web page cannot reach the server under a name of its own. On an address that is not loopback, an empty list means any name.",
        set: |config, text| {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            config.names = names.map(str::to_owned).collect();
            Ok(())
        },
    },
    Setting {
        key: "region",
        default: "local",
        help: "Name of the region this installation belongs to. It is fixed at the first start.",
        set: |config, text| {
            config.region = text.parse().map_err(|error| format!("{error}"))?;
            Ok(())
        },
    },
    Setting {
        key: "max_cpus",
        default: "4",
        help: "The most processors one sandbox may have.",
        set: |config, text| number(text).map(|value| config.max_cpus = value),
    },
    Setting {
        key: "max_memory_mb",
        default: "8192",
        help: "The most memory one sandbox may have, in MiB.",
        set: |config, text| number(text).map(|value| config.max_memory_mb = value),
    },
    Setting {
        key: "max_sandboxes",
        default: "20",
        help: "The most sandboxes that an organisation may have running at once.",
        set: |config, text| number(text).map(|value| config.max_sandboxes = value),
    },
    Setting {
        key: "quota_cpus",
        default: "none",
        help: "The most processors that all running sandboxes of an organisation may have together, or `none`.",
        set: |config, text| bound(text).map(|value| config.totals.cpus = value),
    },
    Setting {
        key: "quota_memory_mb",
        default: "none",
        help: "The most memory that they may have together, in MiB, or `none`.",
        set: |config, text| bound(text).map(|value| config.totals.memory_mib = value),
    },
    Setting {
        key: "quota_disk_mb",
        default: "none",
        help: "The most disk that they may have together, in MiB, or `none`. It is a part of their memory.",
        set: |config, text| bound(text).map(|value| config.totals.disk_mib = value),
    },
    Setting {
        key: "host_max_sandboxes",
        default: "1000",
        help: "The most sandboxes that may run on this host at once, of all organisations.",
        set: |config, text| number(text).map(|value| config.capacity.sandboxes = value),
    },
    Setting {
        key: "cpu_overcommit",
        default: "64",
        help: "How many times the processors of this host may be promised to running sandboxes. With 1, none ever waits for another; most sandboxes wait most of the time.",
        set: |config, text| factor(text).map(|value| config.capacity.cpu_percent = value),
    },
    Setting {
        key: "memory_overcommit",
        default: "4",
        help: "How many times the memory of this host may be promised to running sandboxes. With 1, each can use all it was given at any time. With more, a host whose sandboxes all do so runs out, and the kernel ends machines. Sandboxes of one template share what they have not changed.",
        set: |config, text| factor(text).map(|value| config.capacity.memory_percent = value),
    },
    Setting {
        key: "host_memory_reserve_mb",
        default: "512",
        help: "Memory of this host, in MiB, that must be left when one more sandbox uses all it is given; else it is not started.",
        set: |config, text| amount(text).map(|value| config.capacity.memory_reserve_mib = value),
    },
    Setting {
        key: "host_disk_reserve_mb",
        default: "1024",
        help: "Disk, in MiB, that must be free where machines are kept; else no sandbox is started.",
        set: |config, text| amount(text).map(|value| config.capacity.disk_reserve_mib = value),
    },
    Setting {
        key: "max_paused",
        default: "20",
        help: "The most paused sandboxes that may be kept. They count apart from those that run.",
        set: |config, text| number(text).map(|value| config.max_paused = value),
    },
    Setting {
        key: "max_snapshots",
        default: "20",
        help: "The most snapshots that may be kept by name.",
        set: |config, text| number(text).map(|value| config.max_snapshots = value),
    },
    Setting {
        key: "pause_retention_hours",
        default: "168",
        help: "How long a paused sandbox is kept, in hours. Then its snapshot is made unreadable and removed, and the sandbox has ended.",
        set: |config, text| number(text).map(|value| config.pause_retention_hours = value),
    },
    Setting {
        key: "snapshot_memory_mb",
        default: "<a quarter of the host's memory>",
        help: "The most memory that loaded snapshots may take, in MiB. A snapshot is loaded once for all sandboxes that start from it, and stays loaded while one of them lives.",
        set: |config, text| number(text).map(|value| config.snapshot_memory_mb = Some(value)),
    },
    Setting {
        key: "warm_pool",
        default: "",
        help: "Machines that are kept ready, so that a sandbox of that template and size starts at once: a list such as `base:small=2, base:medium=1`.",
        set: |config, text| {
            let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
            config.pool.ready = entries.map(ready).collect::<Result<_, _>>()?;
            Ok(())
        },
    },
    Setting {
        key: "warm_pool_memory_mb",
        default: "4096",
        help: "The most memory that the machines of `warm_pool` may have together, in MiB. What does not fit is not made.",
        set: |config, text| number(text).map(|value| config.pool.memory_mib = value),
    },
    Setting {
        key: "networks",
        default: "off,brokered,restricted,mediated",
        help: "The modes that sandboxes may be given, separated by commas. `open` is permitted only where it stands here; `off` always is.",
        set: |config, text| {
            let mut modes = list::<EgressMode>(text)?;
            modes.push(EgressMode::Off);
            modes.sort_unstable();
            modes.dedup();
            config.networks = modes;
            Ok(())
        },
    },
    Setting {
        key: "egress_exceptions",
        default: "",
        help: "Internal destinations that sandboxes may reach all the same, where their mode permits it: exactly `HOST:PORT` each, separated by commas.",
        set: |config, text| list(text).map(|value| config.egress.exceptions = value),
    },
    Setting {
        key: "egress_upstreams",
        default: "",
        help: "What named paths lead to, as `NAME=URL`, separated by commas. In every mode but `off`, programs in sandboxes reach them at `http://127.0.0.1:8788/NAME/`. They may be internal.",
        set: |config, text| list(text).map(|value| config.egress.upstreams = value),
    },
    Setting {
        key: "max_volume_mb",
        default: "102400",
        help: "The largest volume, in MiB.",
        set: |config, text| number(text).map(|value| config.max_volume_mb = value),
    },
    Setting {
        key: "max_volumes_mb",
        default: "512000",
        help: "The most MiB that all volumes may have together. A volume is refused, too, when this host's disk could not hold every volume full.",
        set: |config, text| number(text).map(|value| config.max_volumes_mb = value),
    },
    Setting {
        key: "objects",
        default: "file://<state_dir>/objects",
        help: "Where checkpoints of volumes are kept: `file:///folder`, or `s3://bucket/prefix`. It must be in this installation's region. Credentials for S3 are in `objects_credentials`, or in `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN` of the server's environment.",
        set: |config, text| filled(text).map(|value| config.objects = Some(value)),
    },
    Setting {
        key: "objects_endpoint",
        default: "",
        help: "Where S3 is spoken, such as `https://s3.example.org`; Amazon's if empty. With `http://`, data is not encrypted on its way.",
        set: |config, text| {
            config.objects_endpoint = Some(text.to_owned()).filter(|text| !text.is_empty());
            Ok(())
        },
    },
    Setting {
        key: "objects_region",
        default: "us-east-1",
        help: "The region that requests to S3 are signed for, by the name that the S3 service has for it.",
        set: |config, text| filled(text).map(|value| config.objects_region = value),
    },
    Setting {
        key: "objects_credentials",
        default: "",
        help: "A file with lines `aws_access_key_id = …` and `aws_secret_access_key = …`, and `aws_session_token = …` where the credentials have one. Only its owner may read it. It is read again when it changes.",
        set: |config, text| {
            let file = Some(text).filter(|text| !text.is_empty());
            config.objects_credentials = file.map(path).transpose()?;
            Ok(())
        },
    },
    Setting {
        key: "egress_log_days",
        default: "30",
        help: "For how many days lines of the egress log are kept.",
        set: |config, text| number(text).map(|value| config.egress_log_days = value),
    },
    Setting {
        key: "url",
        default: "http://127.0.0.1:7070",
        help: "The server that `coldframe sandbox` and `coldframe token` talk to.",
        set: |config, text| filled(text).map(|value| config.url = value),
    },
    Setting {
        key: "log",
        default: "info",
        help: "What the server logs: `error`, `warn`, `info`, `debug`, or a list such as `info,sandbox=debug`. The log holds metadata only, at every level.",
        set: |config, text| filled(text).map(|value| config.log = value),
    },
    Setting {
        key: "log_format",
        default: "text",
        help: "`text` for people, `json` for programs.",
        set: |config, text| {
            let format = <LogFormat as clap::ValueEnum>::from_str(text, false)?;
            config.log_format = format;
            Ok(())
        },
    },
];

/// A folder. It must be absolute: the server and a command are started from
/// different places and must mean the same one.
fn path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("an absolute path is expected".to_owned()) }
}

/// Values separated by commas.
fn list<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<Vec<T>, String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| item.parse().map_err(|error| format!("{error}"))).collect()
}

/// One kind of machine that is kept ready, such as `base:small=2`.
fn ready(entry: &str) -> Result<Ready, String> {
    let wrong = || format!("write {entry:?} like base:small=2");
    let (kind, count) = entry.split_once('=').ok_or_else(wrong)?;
    let (template, size) = kind.split_once(':').ok_or_else(wrong)?;
    Ok(Ready {
        template: template.trim().parse().map_err(|_| wrong())?,
        size: size.trim().parse().map_err(|_| wrong())?,
        count: count.trim().parse().map_err(|_| wrong())?,
    })
}

fn filled(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn number<T: std::str::FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| *number >= T::from(1));
    number.ok_or_else(|| format!("{text:?} is not a possible number"))
}

/// A number, or no bound.
fn bound(text: &str) -> Result<Option<u64>, String> {
    if text == "none" { Ok(None) } else { number(text).map(Some) }
}

/// A number that may be nothing.
fn amount(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a possible number"))
}

/// How many times something is promised, in hundredths: 0.1 to 1000.
fn factor(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a factor; write it like 1 or 2.5, up to 1000");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if part.is_empty() || part.len() > 2 {
        return Err(wrong());
    }
    let read = |digits: &str| digits.parse::<u16>().map_err(|_| wrong());
    let hundredths = read(part)? * if part.len() == 1 { 10 } else { 1 };
    let percent = u64::from(read(whole)?) * 100 + u64::from(hundredths);
    if (10..=100_000).contains(&percent) { Ok(percent) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_read_in_hundredths() {
        for (text, percent) in [("1", 100), ("0.1", 10), ("2.5", 250), ("1.05", 105), ("64", 6400)]
        {
            assert_eq!(factor(text), Ok(percent), "{text}");
        }
        for text in ["", "0", "0.01", "-1", "1.", "1.005", "1001", "1e3", "x"] {
            assert!(factor(text).is_err(), "{text}");
        }
    }
}
