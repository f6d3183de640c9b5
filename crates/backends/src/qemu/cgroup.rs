//! The second wall around a machine: what it may take from the host.
//!
//! The first is the machine itself: a guest has the memory and the processors it
//! was given and no others. The cgroup holds QEMU to that, should it be taken
//! over or leak, and it is how a machine is ended for certain.
//!
//! Both versions of the interface are served. Version 2 has one tree; version 1
//! has one tree for each controller and no way to kill all at once, so killing
//! first forbids new processes and then repeats.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

/// The controllers that are needed.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Name of the group that holds one group for each machine.
const PARENT: &str = "coldframe";
/// Period of the processor limit.
const PERIOD_US: u64 = 100_000;

/// Where groups are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy {
    /// One tree with all controllers.
    V2(PathBuf),
    /// The trees of memory, cpu and pids, in this order.
    V1([PathBuf; 3]),
}

/// What one machine may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Memory, its page cache included.
    pub(super) memory_bytes: u64,
    /// Processor time in hundredths of one processor.
    pub(super) cpu_percent: u64,
    /// Processes and threads.
    pub(super) processes: u64,
}

/// The group of one machine.
#[derive(Clone, Debug)]
pub(super) struct Group {
    hierarchy: Hierarchy,
    name: String,
}

impl Hierarchy {
    /// Finds the usable hierarchy from the text of `/proc/self/mountinfo`.
    ///
    /// Version 2 is preferred; a mixed host may have it without controllers.
    pub(super) fn find(mountinfo: &str) -> Option<Self> {
        let mounts: Vec<Mount> = mountinfo.lines().filter_map(Mount::parse).collect();
        let unified = mounts.iter().find(|mount| mount.kind == "cgroup2").filter(|mount| {
            let offered = fs::read_to_string(mount.path.join("cgroup.controllers"));
            let offered = offered.unwrap_or_default();
            CONTROLLERS.iter().all(|name| offered.split_whitespace().any(|one| one == *name))
        });
        if let Some(mount) = unified {
            return Some(Self::V2(mount.path.join(PARENT)));
        }
        let [memory, cpu, pids] = CONTROLLERS.map(|name| {
            let mut controllers = mounts.iter().filter(|mount| mount.kind == "cgroup");
            let found = controllers.find(|mount| mount.options.iter().any(|one| one == name));
            found.map(|mount| mount.path.join(PARENT))
        });
        Some(Self::V1([memory?, cpu?, pids?]))
    }

    /// Makes the parent group and hands the controllers down to it.
    pub(super) fn prepare(&self) -> io::Result<()> {
        for path in self.parents() {
            fs::create_dir_all(path)?;
        }
        if let Self::V2(parent) = self {
            let top = parent.parent().unwrap_or(parent);
            let all = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
            fs::write(top.join("cgroup.subtree_control"), &all)?;
            fs::write(parent.join("cgroup.subtree_control"), &all)?;
        }
        Ok(())
    }

    /// A group for something that this process does and takes with it.
    pub(super) fn own_group(&self, purpose: &str) -> Group {
        self.group(&format!("{purpose}-{}", std::process::id()))
    }

    /// Removes what processes that crashed left of their own groups.
    pub(super) fn sweep(&self, purposes: &[&str]) {
        for parent in self.parents() {
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let ours = purposes.iter().any(|purpose| name.starts_with(purpose));
                let owner = name.rsplit_once('-').map(|(_, pid)| Path::new("/proc").join(pid));
                if ours && owner.is_some_and(|owner| !owner.exists()) {
                    // What still has members is removed next time.
                    fs::remove_dir(entry.path()).unwrap_or_default();
                }
            }
        }
    }

    /// `cgroup v2` or `cgroup v1`.
    pub(super) fn version(&self) -> &'static str {
        match self {
            Self::V2(_) => "cgroup v2",
            Self::V1(_) => "cgroup v1",
        }
    }

    /// The group of that name, whether it exists or not.
    pub(super) fn group(&self, name: &str) -> Group {
        Group { hierarchy: self.clone(), name: name.to_owned() }
    }

    fn parents(&self) -> &[PathBuf] {
        match self {
            Self::V2(parent) => std::slice::from_ref(parent),
            Self::V1(parents) => parents,
        }
    }
}

/// One line of mountinfo, as far as it matters here.
struct Mount {
    kind: String,
    path: PathBuf,
    options: Vec<String>,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let path = PathBuf::from(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let kind = right.next()?.to_owned();
        let options = right.nth(1)?.split(',').map(str::to_owned).collect();
        Some(Self { kind, path, options })
    }
}

impl Group {
    /// Makes the group with its limits. An existing one gets the limits again.
    pub(super) fn create(&self, limits: &Limits) -> io::Result<()> {
        for path in self.paths() {
            fs::create_dir_all(path)?;
        }
        let quota = limits.cpu_percent * PERIOD_US / 100;
        let memory = limits.memory_bytes.to_string();
        let processes = limits.processes.to_string();
        match self.paths().as_slice() {
            [group] => {
                fs::write(group.join("memory.max"), memory)?;
                // Without this a machine at its limit would fill the host's swap.
                write_if_there(&group.join("memory.swap.max"), "0")?;
                fs::write(group.join("cpu.max"), format!("{quota} {PERIOD_US}"))?;
                fs::write(group.join("pids.max"), processes)
            }
            [in_memory, in_cpu, in_pids] => {
                fs::write(in_memory.join("memory.limit_in_bytes"), &memory)?;
                write_if_there(&in_memory.join("memory.memsw.limit_in_bytes"), &memory)?;
                fs::write(in_cpu.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
                fs::write(in_cpu.join("cpu.cfs_quota_us"), quota.to_string())?;
                fs::write(in_pids.join("pids.max"), processes)
            }
            _ => Ok(()),
        }
    }

    /// The files a process writes to, to join.
    pub(super) fn doors(&self) -> Vec<PathBuf> {
        self.paths().iter().map(|path| path.join("cgroup.procs")).collect()
    }

    /// Who is in it.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut members: Vec<i32> = self
            .doors()
            .iter()
            .filter_map(|door| fs::read_to_string(door).ok())
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// How many processes the kernel has ended because memory ran out.
    pub(super) fn out_of_memory(&self) -> u64 {
        let file = match &self.hierarchy {
            Hierarchy::V2(_) => "memory.events",
            Hierarchy::V1(_) => "memory.oom_control",
        };
        let path = self.paths()[0].join(file);
        let text = fs::read_to_string(path).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Memory that is charged to it.
    pub(super) fn memory_bytes(&self) -> u64 {
        let file = match &self.hierarchy {
            Hierarchy::V2(_) => "memory.current",
            Hierarchy::V1(_) => "memory.usage_in_bytes",
        };
        let text = fs::read_to_string(self.paths()[0].join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Ends everything in it. Returns who was still there at `deadline`.
    pub(super) fn kill(&self, deadline: Instant) -> Vec<i32> {
        let paths = self.paths();
        // Closes the door on version 1, where killing takes several rounds. A
        // group that does not exist has nobody to keep from forking.
        for path in &paths {
            write_if_there(&path.join("pids.max"), "0").unwrap_or_default();
        }
        loop {
            let at_once = paths[0].join("cgroup.kill");
            if !at_once.exists() || fs::write(at_once, "1").is_err() {
                for pid in self.members().into_iter().filter_map(Pid::from_raw) {
                    // One that has just ended is as good as killed.
                    rustix::process::kill_process(pid, Signal::KILL).unwrap_or_default();
                }
            }
            let members = self.members();
            if members.is_empty() || Instant::now() >= deadline {
                return members;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Removes the empty group. A group that does not exist is removed already.
    pub(super) fn remove(&self, deadline: Instant) -> io::Result<()> {
        for path in self.paths() {
            loop {
                match fs::remove_dir(&path) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    // The kernel takes a moment after the last process.
                    Err(error) if Instant::now() >= deadline => return Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        }
        Ok(())
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.hierarchy.parents().iter().map(|parent| parent.join(&self.name)).collect()
    }
}

/// Writes a setting that not every kernel has.
fn write_if_there(path: &Path, value: &str) -> io::Result<()> {
    if path.exists() { fs::write(path, value) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mountinfo(lines: &[(&str, &Path, &str)]) -> String {
        let line = |(kind, path, options): &(&str, &Path, &str)| {
            format!(
                "30 24 0:26 / {} rw,nosuid shared:9 - {kind} {kind} rw,{options}\n",
                path.display()
            )
        };
        lines.iter().map(line).collect()
    }

    const LIMITS: Limits = Limits { memory_bytes: 1 << 20, cpu_percent: 120, processes: 32 };

    #[test]
    fn version_two_is_used_when_it_has_the_controllers() {
        let root = tempfile::tempdir().unwrap();
        let text = mountinfo(&[("cgroup2", root.path(), "nsdelegate")]);
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu memory pids\n").unwrap();
        let hierarchy = Hierarchy::find(&text).unwrap();
        assert_eq!(hierarchy, Hierarchy::V2(root.path().join("coldframe")));

        hierarchy.prepare().unwrap();
        let group = hierarchy.group("sbx_x");
        group.create(&LIMITS).unwrap();
        let read = |name: &str| {
            fs::read_to_string(root.path().join("coldframe/sbx_x").join(name)).unwrap()
        };
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("cpu.max"), "120000 100000");
        assert_eq!(read("pids.max"), "32");
        assert_eq!(group.doors(), [root.path().join("coldframe/sbx_x/cgroup.procs")]);
    }

    #[test]
    fn version_one_is_used_when_version_two_lacks_them() {
        let root = tempfile::tempdir().unwrap();
        let unified = root.path().join("unified");
        let trees = CONTROLLERS.map(|name| root.path().join(name));
        for path in trees.iter().chain([&unified]) {
            fs::create_dir(path).unwrap();
        }
        fs::write(unified.join("cgroup.controllers"), "hugetlb\n").unwrap();
        let text = mountinfo(&[
            ("cgroup2", &unified, "x"),
            ("cgroup", &trees[1], "cpu"),
            ("cgroup", &trees[0], "memory"),
            ("cgroup", &trees[2], "pids"),
        ]);
        let hierarchy = Hierarchy::find(&text).unwrap();
        assert_eq!(hierarchy, Hierarchy::V1(trees.clone().map(|tree| tree.join("coldframe"))));
        let group = hierarchy.group("sbx_x");
        group.create(&LIMITS).unwrap();
        let read = |tree: usize, name: &str| {
            fs::read_to_string(trees[tree].join("coldframe/sbx_x").join(name)).unwrap()
        };
        assert_eq!(read(0, "memory.limit_in_bytes"), "1048576");
        assert_eq!(read(1, "cpu.cfs_quota_us"), "120000");
        assert_eq!(read(2, "pids.max"), "32");
    }

    #[test]
    fn a_host_without_controllers_has_no_hierarchy() {
        assert_eq!(Hierarchy::find("22 1 0:21 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn groups_of_processes_that_are_gone_are_swept() {
        let root = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::V2(root.path().join("coldframe"));
        let own = format!("trial-{}", std::process::id());
        for name in [own.as_str(), "trial-99999999", "template-abc-99999999", "sbx_x-99999999"] {
            fs::create_dir_all(root.path().join("coldframe").join(name)).unwrap();
        }
        hierarchy.sweep(&["trial-", "template-"]);
        let left = fs::read_dir(root.path().join("coldframe")).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["sbx_x-99999999", own.as_str()]);
    }

    #[test]
    fn an_absent_group_is_killed_and_removed_already() {
        let root = tempfile::tempdir().unwrap();
        let group = Hierarchy::V2(root.path().join("coldframe")).group("gone");
        assert!(group.kill(Instant::now()).is_empty());
        assert!(group.remove(Instant::now()).is_ok());
    }
}
