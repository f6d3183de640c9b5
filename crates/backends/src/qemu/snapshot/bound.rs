//! What a snapshot is bound to, and the sentence when that has changed (U40).
//!
//! A captured machine goes on with the devices, the processor and the programs
//! that it had. If any of these is another one, it would go on wrongly or not at
//! all, so it is not loaded; the sentence says which, and what to do.

use domain::{image::digest::Digest, size::Resources};
use sandbox::spec::SandboxSpec;
use serde::{Deserialize, Serialize};

use crate::qemu::{
    command::{self, Accelerator, Machine, Purpose},
    host::Host,
};

/// How far the host's counter may be off, in parts per million.
const TOLERANCE_PPM: u64 = 100;

/// Everything that has to be the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::qemu) struct Bound {
    image: Digest,
    image_name: String,
    kernel: Digest,
    pub(super) resources: Resources,
    host: HostBound,
}

/// The part that is the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HostBound {
    accelerator: Accelerator,
    processor: String,
    tsc_khz: u64,
    qemu_version: String,
    qemu: Digest,
    guest: Digest,
    /// Digest of the machine's devices.
    devices: Digest,
}

impl Bound {
    /// What a machine of `spec` on this host is bound to.
    pub(in crate::qemu) fn of(spec: &SandboxSpec, host: &Host) -> Self {
        Self {
            image: spec.image.digest,
            image_name: spec.image.name.to_string(),
            kernel: spec.image.manifest.files.vmlinuz.sha256,
            resources: spec.resources,
            host: HostBound::of(host, spec.resources),
        }
    }

    /// The size of the machine's memory.
    pub(in crate::qemu) fn memory_bytes(&self) -> u64 {
        u64::from(self.resources.memory_mib) * 1024 * 1024
    }

    /// Why a machine of `spec` cannot continue it here, if it cannot.
    pub(super) fn mismatch(&self, spec: &SandboxSpec, host: &Host) -> Option<String> {
        self.differs(&Self::of(spec, host))
    }

    fn differs(&self, now: &Self) -> Option<String> {
        if self.image != now.image || self.kernel != now.kernel {
            return Some(format!(
                "the snapshot was made with image {} ({}), and it is to start with {} ({}); \
                 install the image it was made with",
                self.image_name,
                short(self.image),
                now.image_name,
                short(now.image),
            ));
        }
        if self.resources != now.resources {
            let size = |resources: Resources| {
                format!("{} processors and {} MiB", resources.cpus, resources.memory_mib)
            };
            return Some(format!(
                "the snapshot is of a machine with {}, and it is to start with {}; \
                 a snapshot starts with the size it was made with",
                size(self.resources),
                size(now.resources),
            ));
        }
        self.host.mismatch(&now.host)
    }

    /// Why it cannot be loaded on this host, whatever is to be started.
    pub(super) fn host_mismatch(&self, host: &Host) -> Option<String> {
        self.host.mismatch(&HostBound::of(host, self.resources))
    }
}

impl HostBound {
    fn of(host: &Host, resources: Resources) -> Self {
        let build = host.launcher.build();
        let machine = Machine { accelerator: host.accelerator, resources, purpose: Purpose::Copy };
        let devices = command::arguments(&machine).join("\n");
        Self {
            accelerator: host.accelerator,
            processor: host.processor.clone(),
            tsc_khz: host.tsc_khz,
            qemu_version: build.version.clone(),
            qemu: build.digest,
            guest: host.guest_digest,
            devices: Digest::of(devices.as_bytes()),
        }
    }

    fn mismatch(&self, now: &Self) -> Option<String> {
        let again = "start it on a host like the one it was made on, or make it again";
        if self.accelerator != now.accelerator {
            let word = |accelerator| match accelerator {
                Accelerator::Kvm => "KVM",
                Accelerator::Tcg => "translation",
            };
            return Some(format!(
                "the snapshot was made under {}, and machines of this host run under {}; {again}",
                word(self.accelerator),
                word(now.accelerator),
            ));
        }
        if self.processor != now.processor {
            return Some(format!(
                "the snapshot was made on the processor {:?}, and this host has {:?}; {again}",
                self.processor, now.processor,
            ));
        }
        if self.tsc_khz.abs_diff(now.tsc_khz) > now.tsc_khz * TOLERANCE_PPM / 1_000_000 {
            return Some(format!(
                "the snapshot's clock counts {} kHz, and this host's counts {} kHz; {again}",
                self.tsc_khz, now.tsc_khz,
            ));
        }
        if self.qemu != now.qemu {
            return Some(format!(
                "the snapshot was made with QEMU {} (build {}), and this host has {} (build {}); \
                 install the QEMU it was made with, or make it again",
                self.qemu_version,
                short(self.qemu),
                now.qemu_version,
                short(now.qemu),
            ));
        }
        if self.guest != now.guest || self.devices != now.devices {
            return Some(
                "the snapshot was made by another version of Coldframe; start it with that \
                 version, or make it again"
                    .to_owned(),
            );
        }
        None
    }
}

fn short(digest: Digest) -> String {
    digest.hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use domain::size::SizeClass;

    use super::*;

    impl Bound {
        /// A bound of nothing real.
        pub(in crate::qemu) fn for_test(
            accelerator: Accelerator,
            resources: Resources,
            qemu: Digest,
        ) -> Self {
            let host = HostBound {
                accelerator,
                processor: "one".into(),
                tsc_khz: 1000,
                qemu_version: "7.2".into(),
                qemu,
                guest: Digest::of(b"guest"),
                devices: Digest::of(b"devices"),
            };
            let image = Digest::of(b"image");
            Self { image, image_name: "base".into(), kernel: image, resources, host }
        }
    }

    /// U40, K14: whatever has changed, the sentence names it and says what to do.
    #[test]
    fn each_difference_has_a_sentence() {
        let small = Resources::of(SizeClass::Small);
        let bound = Bound::for_test(Accelerator::Tcg, small, Digest::of(b"qemu"));
        let changed = |change: fn(&mut Bound)| {
            let mut other = bound.clone();
            change(&mut other);
            bound.differs(&other).unwrap()
        };
        for (sentence, word) in [
            (changed(|now| now.image = Digest::of(b"x")), "image base"),
            (changed(|now| now.kernel = Digest::of(b"x")), "install the image"),
            (changed(|now| now.resources.memory_mib *= 2), "512 MiB"),
            (changed(|now| now.host.accelerator = Accelerator::Kvm), "KVM"),
            (changed(|now| now.host.processor = "two".into()), "\"two\""),
            (changed(|now| now.host.tsc_khz += 1), "kHz"),
            (changed(|now| now.host.qemu = Digest::of(b"x")), "QEMU 7.2"),
            (changed(|now| now.host.guest = Digest::of(b"x")), "version of Coldframe"),
            (changed(|now| now.host.devices = Digest::of(b"x")), "version of Coldframe"),
        ] {
            assert!(sentence.contains(word) && sentence.contains("; "), "{sentence}");
        }
        assert_eq!(bound.differs(&bound.clone()), None);
    }
}
