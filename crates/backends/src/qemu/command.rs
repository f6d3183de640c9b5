//! QEMU's command line, as a function of what the machine is.
//!
//! Everything that belongs to the host reaches QEMU as an inherited descriptor
//! with a fixed number ([`number`]), so the line names no path of the host. A
//! clone has the same devices as its template, or its state would not load;
//! it differs in memory (private), in waiting for state, and in having no
//! kernel to boot: a stub with the kernel's own header stands in, which saves
//! reading and holding the real one in every clone.
//!
//! Deliberately absent: a network device, a graphics device, a monitor on the
//! terminal, and any way to reach the host's files.

use domain::size::Resources;

use super::volumes;

/// The number of each descriptor in the machine.
pub(super) mod number {
    /// Where QEMU complains.
    pub(in crate::qemu) const STDERR: i32 = 2;
    /// Listening socket of the machine protocol.
    pub(in crate::qemu) const QMP: i32 = 10;
    /// Listening socket of the link.
    pub(in crate::qemu) const LINK: i32 = 11;
    /// Root file system.
    pub(in crate::qemu) const ROOTFS: i32 = 12;
    /// Kernel, or the stub.
    pub(in crate::qemu) const KERNEL: i32 = 13;
    /// Memory.
    pub(in crate::qemu) const MEMORY: i32 = 14;
    /// Initial file system, for a boot only.
    pub(in crate::qemu) const INITRD: i32 = 15;
    /// Device state, for a machine that continues.
    pub(in crate::qemu) const STATE: i32 = 15;
    /// Lock on the machine's user. QEMU knows nothing of it.
    pub(in crate::qemu) const USER: i32 = 20;
}

/// Name of the ring that keeps the console.
pub(super) const CONSOLE: &str = "console";
/// Size of that ring.
pub(super) const CONSOLE_BYTES: u32 = 64 * 1024;
/// Name of the guest's end of the link.
pub(super) const PORT: &str = "coldframe.link";
/// The device behind it, as events name it.
pub(super) const PORT_ID: &str = "link-port";
/// Threads for disk reads. QEMU would start up to 64, and ends when it cannot.
pub(super) const DISK_THREADS: u64 = 8;
/// Space for translated code. More is not faster; less is, a little, slower.
pub(super) const TRANSLATION_MIB: u32 = 128;

/// How the machine's processors run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// On the host's processors.
    Kvm,
    /// Translated: slower, and the same wall.
    Tcg,
}

/// What a machine is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To boot, and to be captured.
    Template {
        /// Frequency of the host's time stamp counter. A translated machine has
        /// nothing to measure it against; a wrong value bends its clock.
        tsc_khz: u64,
    },
    /// To continue where a template stopped.
    Clone,
    /// To continue where a sandbox was captured.
    Copy,
}

/// What decides a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) accelerator: Accelerator,
    pub(super) resources: Resources,
    pub(super) purpose: Purpose,
}

/// The arguments, without the program's name.
pub(super) fn arguments(machine: &Machine) -> Vec<String> {
    let Machine { accelerator, resources, purpose } = *machine;
    let mut line = Line::default();
    line.flags(&["-nodefaults", "-no-user-config", "-no-reboot"]);
    line.option("-display", "none");
    line.option("-L", "/firmware");
    // The last output of the console can still be read from a paused machine.
    line.option("-action", "shutdown=pause");
    line.option(
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    );
    line.option("-object", format!("main-loop,id=loop,thread-pool-max={DISK_THREADS}"));
    line.option("-M", "microvm,acpi=on,memory-backend=memory");
    match accelerator {
        Accelerator::Kvm => {
            line.option("-accel", "kvm");
            line.option("-cpu", "host");
        }
        Accelerator::Tcg => {
            line.option("-accel", format!("tcg,thread=multi,tb-size={TRANSLATION_MIB}"));
            line.option("-cpu", "max");
        }
    }
    line.option("-smp", resources.cpus);
    line.option("-m", format!("{}M", resources.memory_mib));
    let share = if matches!(purpose, Purpose::Template { .. }) { "on" } else { "off" };
    line.option(
        "-object",
        format!(
            "memory-backend-file,id=memory,size={}M,mem-path=/proc/self/fd/{},share={share}",
            resources.memory_mib,
            number::MEMORY,
        ),
    );
    line.option("-global", "virtio-mmio.force-legacy=false");
    line.option("-kernel", format!("/proc/self/fd/{}", number::KERNEL));
    match purpose {
        Purpose::Template { tsc_khz } => {
            line.option("-initrd", format!("/proc/self/fd/{}", number::INITRD));
            line.option("-append", kernel_parameters(accelerator, &resources, tsc_khz));
        }
        // The device state carries on from here without the kernel's loader.
        Purpose::Clone => line.option("-incoming", "defer"),
        Purpose::Copy => {
            // What QEMU writes of a captured machine says nothing of the command
            // line. We know it ourselves.
            line.option("-global", "migration.send-configuration=off");
            line.option("-incoming", "defer");
        }
    }
    line.option("-chardev", format!("ringbuf,id={CONSOLE},size={CONSOLE_BYTES}"));
    line.option("-serial", format!("chardev:{CONSOLE}"));
    line.option("-chardev", listening("qmp", number::QMP));
    line.option("-mon", "chardev=qmp,mode=control");
    line.option("-device", "virtio-serial-device,id=serial");
    line.option("-chardev", listening("link", number::LINK));
    line.option(
        "-device",
        format!("virtserialport,bus=serial.0,nr=1,chardev=link,id={PORT_ID},name={PORT}"),
    );
    line.option("-object", "rng-builtin,id=entropy");
    line.option("-device", "virtio-rng-device,rng=entropy");
    line.option("-add-fd", format!("fd={},set=1", number::ROOTFS));
    line.option(
        "-drive",
        "if=none,id=root,file=/dev/fdset/1,format=raw,read-only=on,file.locking=off",
    );
    line.option("-device", "virtio-blk-device,drive=root");
    volumes::add_slots(&mut line);
    line.arguments
}

/// What the kernel and the guest's init are told.
fn kernel_parameters(accelerator: Accelerator, resources: &Resources, tsc_khz: u64) -> String {
    let Resources { disk_mib, processes, .. } = resources;
    let clock = match accelerator {
        Accelerator::Kvm => String::new(),
        Accelerator::Tcg => {
            format!(" no_timer_check tsc=reliable clocksource=tsc tsc_early_khz={tsc_khz}")
        }
    };
    format!(
        "console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on{clock} \
         coldframe.rootfs=erofs coldframe.disk_mib={disk_mib} coldframe.processes={processes}"
    )
}

fn listening(id: &str, number: i32) -> String {
    format!("socket,id={id},fd={number},server=on,wait=off")
}

/// A command line that grows.
#[derive(Debug, Default)]
pub(super) struct Line {
    arguments: Vec<String>,
}

impl Line {
    fn flags(&mut self, flags: &[&str]) {
        self.arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    /// Adds an option with its value.
    pub(super) fn option(&mut self, name: &str, value: impl ToString) {
        self.arguments.push(name.to_owned());
        self.arguments.push(value.to_string());
    }
}

#[cfg(test)]
mod tests {
    use domain::size::SizeClass;

    use super::*;

    fn line(accelerator: Accelerator, purpose: Purpose) -> Vec<String> {
        let resources = Resources::of(SizeClass::Small);
        arguments(&Machine { accelerator, resources, purpose })
    }

    fn every_line() -> Vec<Vec<String>> {
        [Accelerator::Kvm, Accelerator::Tcg]
            .into_iter()
            .flat_map(|accelerator| {
                [Purpose::Template { tsc_khz: 2_596_122 }, Purpose::Clone, Purpose::Copy]
                    .map(|purpose| line(accelerator, purpose))
            })
            .collect()
    }

    #[test]
    fn a_template_under_translation() {
        let line = line(Accelerator::Tcg, Purpose::Template { tsc_khz: 2_596_122 });
        insta::assert_snapshot!(line.join("\n"));
    }

    #[test]
    fn a_clone_under_translation() {
        insta::assert_snapshot!(line(Accelerator::Tcg, Purpose::Clone).join("\n"));
    }

    #[test]
    fn a_copy_differs_from_a_clone_in_one_option() {
        let clone = line(Accelerator::Tcg, Purpose::Clone);
        let mut copy = line(Accelerator::Tcg, Purpose::Copy);
        let at = copy.iter().position(|part| part == "migration.send-configuration=off").unwrap();
        copy.drain(at - 1..=at);
        assert_eq!(copy, clone);
    }

    #[test]
    fn a_clone_under_kvm() {
        insta::assert_snapshot!(line(Accelerator::Kvm, Purpose::Clone).join("\n"));
    }

    /// S8, S10, L19: there is no network device, and nothing adds a default one.
    #[test]
    fn no_machine_has_a_network_device() {
        for line in every_line() {
            assert!(line.contains(&"-nodefaults".to_owned()));
            for word in ["-net", "-netdev", "-nic", "virtio-net", "vhost", "slirp", "hostfwd"] {
                assert!(!line.iter().any(|argument| argument.contains(word)), "{word}");
            }
        }
    }

    /// L20: the only ways between guest and host are the ones we opened.
    #[test]
    fn a_command_line_names_no_path_of_the_host() {
        for line in every_line() {
            for argument in &line {
                for part in argument.split(['=', ',']).filter(|part| part.starts_with('/')) {
                    let ours = ["/proc/self/fd/", "/dev/fdset/", "/firmware"];
                    assert!(ours.iter().any(|path| part.starts_with(path)), "{part}");
                }
            }
            for device in ["9p", "vhost-user", "vsock", "virtiofs", "-fsdev", "-virtfs"] {
                assert!(!line.iter().any(|argument| argument.contains(device)), "{device}");
            }
        }
    }

    /// A clone must have its template's devices in its template's order.
    #[test]
    fn a_clone_has_the_devices_of_its_template() {
        let devices = |purpose| {
            let line = line(Accelerator::Tcg, purpose);
            let pairs: Vec<_> = line.windows(2).filter(|pair| pair[0] == "-device").collect();
            pairs.iter().map(|pair| pair[1].clone()).collect::<Vec<_>>()
        };
        assert_eq!(devices(Purpose::Clone), devices(Purpose::Template { tsc_khz: 1 }));
        assert_eq!(devices(Purpose::Clone), devices(Purpose::Copy));
    }
}
