//! A real sandbox, examined from inside (B25).
//!
//! A script prints what it finds and tries to reach what must not be reached.
//! What it prints is judged here by a pure function; a line that is missing has
//! failed, because a sandbox that could not be looked at proves nothing.

use std::time::{Duration, Instant};

use domain::{
    image::ImageName,
    size::{Resources, SizeClass},
};

use super::Finding;
use crate::{
    commands::run::with_sandbox,
    config::Config,
    duration,
    error::printable,
    output::Verdict,
    process::{self, Input, Launch, Signals, Sink, Terminal},
};

/// How long looking around may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Kinds of file systems that hold nothing of the host.
const OWN_FILE_SYSTEMS: [&str; 14] = [
    "overlay", "erofs", "tmpfs", "ramfs", "rootfs", "proc", "sysfs", "devtmpfs", "devpts",
    "cgroup2", "mqueue", "debugfs", "tracefs", "bpf",
];

/// Where something might answer: the metadata service of clouds, a public
/// resolver by both protocols, private networks, the host as machines see it.
const FORBIDDEN: &str =
    "169.254.169.254:80 1.1.1.1:53 1.1.1.1:443 10.0.2.2:22 192.168.0.1:80 172.17.0.1:80";

const SCRIPT: &str = r#"
say() { printf '%s\t%s\n' "$1" "$(printf '%s' "$2" | tr '\n\t' '  ' | head -c 600)"; }
say kernel "$(uname -r)"
say interfaces "$(ls /sys/class/net)"
say routes "$(cat /proc/net/route /proc/net/ipv6_route | awk '$NF != "lo" && $1 != "Iface"')"
say mounts "$(awk '{ print $3 }' /proc/mounts | sort -u)"
say variables "$(env | cut -d= -f1 | sort | tr '\n' ' ')"
say secrets "$(tr '\0' '\n' < /proc/1/environ 2>/dev/null | grep -ciE 'token|secret|key' ; grep -lr coldframe_ /etc /home /root /run /workspace /tmp 2>/dev/null | head -5)"
say uid "$(id -u)"
for target in $FORBIDDEN; do
    if timeout 2 bash -c "exec 3<>/dev/tcp/${target%:*}/${target#*:}" 2>/dev/null
    then say reached "$target"; fi
done
say resolved "$(getent ahosts example.com)"
say end done
"#;

/// Starts a sandbox and says what was found.
pub(super) async fn take(config: &Config) -> Vec<Finding> {
    let check = "sandbox";
    let begun = Instant::now();
    let said = look(config).await;
    let took = duration::show(begun.elapsed());
    match said {
        Ok(said) => {
            let mut findings =
                vec![Finding::ok(check, format!("started, used and removed in {took}"))];
            findings.extend(judge(&said, &host_kernel()));
            findings
        }
        Err(failure) => {
            let advice = failure.hints.first().cloned();
            let advice = advice.filter(|hint| !hint.contains("doctor"));
            let advice = advice.unwrap_or_else(|| "COLDFRAME_LOG=debug shows more".to_owned());
            vec![Finding::fail(check, failure.message, advice)]
        }
    }
}

async fn look(config: &Config) -> crate::error::Outcome<String> {
    let name: ImageName = "base".parse().map_err(|error: domain::image::InvalidImageName| {
        crate::error::Failure::usage(error.to_string())
    })?;
    let launch = Launch {
        command: ["/bin/bash", "-c", SCRIPT].map(str::to_owned).to_vec(),
        environment: [("FORBIDDEN".to_owned(), FORBIDDEN.to_owned())].into(),
        cwd: None,
        user: "user".to_owned(),
        timeout: Some(LIMIT),
        input: Input::Empty,
        terminal: Terminal::No,
    };
    let mut signals = Signals::listen()?;
    let mut sink = Sink::memory();
    let resources = Resources::of(SizeClass::default());
    with_sandbox(config, &name, resources, &mut signals, async |guest, signals| {
        process::drive(guest, &launch, &mut sink, signals).await
    })
    .await?;
    match sink {
        Sink::Memory(said) => Ok(String::from_utf8_lossy(&said.output.bytes).into_owned()),
        Sink::Ours(_) => Ok(String::new()),
    }
}

fn host_kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// What the script's lines mean.
fn judge(said: &str, host_kernel: &str) -> Vec<Finding> {
    let value = |name: &str| {
        let lines = said.lines().filter_map(|line| line.split_once('\t'));
        let mut lines = lines.filter(|(known, _)| *known == name);
        lines.next().map(|(_, value)| printable(value.trim()))
    };
    let defect = "do not use this installation for code that is not trusted, and report it as SECURITY.md says";
    let judged =
        |check: &str, name: &str, holds: &dyn Fn(&str) -> bool, good: &dyn Fn(&str) -> String| {
            match value(name) {
                Some(value) if holds(&value) => Finding::ok(check, good(&value)),
                Some(value) => Finding::fail(check, value, defect),
                None => Finding::fail(check, "the sandbox did not say", defect),
            }
        };
    let mut findings = vec![
        judged(
            "kernel",
            "kernel",
            &|kernel| !kernel.is_empty() && kernel != host_kernel,
            &|kernel| format!("its own, {kernel}"),
        ),
        judged("network devices", "interfaces", &|names| names == "lo", &|_| "only lo".to_owned()),
        judged("routes", "routes", &str::is_empty, &|_| "none that leads out".to_owned()),
        judged(
            "mounts",
            "mounts",
            &|kinds| kinds.split_whitespace().all(|kind| OWN_FILE_SYSTEMS.contains(&kind)),
            &|kinds| format!("nothing of the host ({kinds})"),
        ),
        judged("variables", "variables", &|names| !names.contains("COLDFRAME"), &str::to_owned),
        judged("tokens", "secrets", &|found| found == "0" || found.is_empty(), &|_| {
            "none".to_owned()
        }),
        judged("account", "uid", &|uid| uid == "1000", &|uid| format!("uid {uid}")),
        judged("names", "resolved", &str::is_empty, &|_| "none is resolved".to_owned()),
    ];
    let reached = value("reached");
    findings.push(match (reached, value("end")) {
        (None, Some(_)) => Finding::ok("destinations outside", "none answers"),
        (Some(target), _) => {
            Finding::fail("destinations outside", format!("{target} answers"), defect)
        }
        (None, None) => Finding::fail("destinations outside", "the sandbox did not say", defect),
    });
    debug_assert!(findings.iter().all(|finding| finding.verdict != Verdict::Warn));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "kernel\t6.12\ninterfaces\tlo\nroutes\t\nmounts\toverlay tmpfs\n\
        variables\tHOME PATH\nsecrets\t0\nuid\t1000\nresolved\t\nend\tdone\n";

    fn failed(said: &str) -> Vec<String> {
        let findings = judge(said, "6.1-host").into_iter();
        findings.filter(|finding| !finding.holds()).map(|finding| finding.check).collect()
    }

    /// B25
    #[test]
    fn a_sandbox_as_it_should_be_passes() {
        assert_eq!(failed(GOOD), Vec::<String>::new());
    }

    /// B25, S10
    #[test]
    fn each_way_out_is_named() {
        for (good, bad, check) in [
            ("kernel\t6.12", "kernel\t6.1-host", "kernel"),
            ("interfaces\tlo", "interfaces\teth0 lo", "network devices"),
            ("routes\t", "routes\teth0 0", "routes"),
            ("mounts\toverlay", "mounts\t9p overlay", "mounts"),
            ("secrets\t0", "secrets\t0 /etc/token", "tokens"),
            ("uid\t1000", "uid\t0", "account"),
            ("end\tdone", "reached\t1.1.1.1:53\nend\tdone", "destinations outside"),
        ] {
            assert_eq!(failed(&GOOD.replace(good, bad)), [check], "{bad:?}");
        }
    }

    #[test]
    fn a_sandbox_that_says_nothing_has_failed_throughout() {
        assert_eq!(failed("").len(), judge("", "x").len());
    }
}
