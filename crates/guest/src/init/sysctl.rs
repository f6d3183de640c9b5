//! Kernel settings of a sandbox.

use std::{io, path::Path};

/// Must hold; a machine without them does not start.
const REQUIRED: &[(&str, &str)] = &[
    ("fs/suid_dumpable", "0"),
    ("kernel/dmesg_restrict", "1"),
    ("kernel/kptr_restrict", "2"),
    // Kernel messages that are not emergencies stay off the host's console ring.
    ("kernel/printk", "1 4 1 7"),
];

/// Set where the kernel has them.
const WISHED: &[(&str, &str)] = &[
    ("kernel/unprivileged_bpf_disabled", "1"),
    ("kernel/yama/ptrace_scope", "1"),
    ("kernel/perf_event_paranoid", "3"),
    // No memory image of a process is written, even where its limit allows it.
    ("kernel/core_pattern", "\n"),
    ("kernel/core_uses_pid", "0"),
    ("kernel/sysrq", "0"),
    ("kernel/panic", "-1"),
    ("kernel/panic_on_oops", "1"),
    ("fs/protected_hardlinks", "1"),
    ("fs/protected_symlinks", "1"),
    ("fs/protected_fifos", "1"),
    ("fs/protected_regular", "2"),
    ("fs/inotify/max_user_instances", "1024"),
    ("fs/inotify/max_user_watches", "65536"),
    ("vm/overcommit_memory", "0"),
];

/// Applies all of them.
pub(super) fn apply() -> io::Result<()> {
    let root = Path::new("/proc/sys");
    for (name, value) in REQUIRED {
        let written = std::fs::write(root.join(name), value);
        written.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
    }
    for (name, value) in WISHED {
        std::fs::write(root.join(name), value).ok();
    }
    Ok(())
}
