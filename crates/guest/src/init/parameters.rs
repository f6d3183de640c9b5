//! What the host says on the kernel's command line.

/// Limits and names that the machine is built with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Size of everything writable, in MiB.
    pub(super) disk_mib: u64,
    /// Processes and threads that the workload may have.
    pub(super) processes: u64,
    /// File system type of the root image.
    pub(super) rootfs: String,
}

impl Parameters {
    /// Reads `/proc/cmdline`. What is absent or unreadable has a small default.
    pub(super) fn parse(line: &str) -> Self {
        let value = |name: &str| {
            let word = line.split_whitespace().find_map(|word| word.strip_prefix(name));
            word.and_then(|word| word.strip_prefix('='))
        };
        let number = |name: &str, default: u64| {
            value(name).and_then(|text| text.parse().ok()).filter(|n| *n > 0).unwrap_or(default)
        };
        Self {
            disk_mib: number("coldframe.disk_mib", 256),
            processes: number("coldframe.processes", 512),
            rootfs: value("coldframe.rootfs").unwrap_or("erofs").to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_from_the_command_line() {
        let line = "console=ttyS0 quiet coldframe.disk_mib=64 coldframe.processes=33 \
                    coldframe.rootfs=squashfs\n";
        let expected = Parameters { disk_mib: 64, processes: 33, rootfs: "squashfs".into() };
        assert_eq!(Parameters::parse(line), expected);
    }

    #[test]
    fn what_makes_no_sense_is_a_small_default() {
        let line = "coldframe.disk_mib=0 coldframe.processes=many coldframe.rootfsx=1";
        let expected = Parameters { disk_mib: 256, processes: 512, rootfs: "erofs".into() };
        assert_eq!(Parameters::parse(line), expected);
    }
}
