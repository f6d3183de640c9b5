//! Two network namespaces and a thread that lives in each.

use std::{
    fs::File,
    future::Future,
    os::fd::AsFd as _,
    process::Command,
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::{Builder, Handle};

use super::{AUTHORITY, CLOSED, INTERNAL, PUBLIC};

/// Both, until dropped.
pub(super) struct Namespaces {
    names: [String; 2],
    inside: Handle,
    outside: Handle,
    /// Closing it ends both threads.
    _ending: [tokio::sync::oneshot::Sender<()>; 2],
}

impl Namespaces {
    /// Makes both and joins them.
    pub(super) fn new() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = format!("cf{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let names = [format!("{base}i"), format!("{base}o")];
        let made = make(&names);
        if let Err(error) = made {
            remove(&names);
            return Err(error);
        }
        let (inside, first) = enter(&names[0])?;
        let (outside, second) = enter(&names[1])?;
        Ok(Self { names, inside, outside, _ending: [first, second] })
    }

    /// Runs something outside until the lab ends.
    pub(super) fn outside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.outside.spawn(work);
    }

    /// Runs something inside and waits for what it gives.
    pub(super) fn inside<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (sender, receiver) = mpsc::channel();
        self.inside.spawn(async move { sender.send(work.await) });
        receiver.recv().expect("it finishes")
    }

    /// Runs something inside, beside everything else.
    pub(super) fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inside.spawn(work);
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        remove(&self.names);
    }
}

fn make([inside, outside]: &[String; 2]) -> Result<(), String> {
    ip(&format!("netns add {inside}"))?;
    ip(&format!("netns add {outside}"))?;
    ip(&format!("-n {inside} link add lab0 type veth peer name lab1 netns {outside}"))?;
    for (name, link) in [(inside, "lab0"), (outside, "lab1")] {
        ip(&format!("-n {name} link set lo up"))?;
        ip(&format!("-n {name} link set {link} up"))?;
    }
    ip(&format!("-n {inside} addr add 172.31.255.1/30 dev lab0"))?;
    ip(&format!("-n {outside} addr add 172.31.255.2/30 dev lab1"))?;
    ip(&format!("-n {inside} route add default via 172.31.255.2"))?;
    for address in [PUBLIC, CLOSED, AUTHORITY].into_iter().chain(INTERNAL) {
        ip(&format!("-n {outside} addr add {address}/32 dev lo"))?;
    }
    Ok(())
}

fn remove(names: &[String; 2]) {
    for name in names {
        // What was not made cannot be removed.
        drop(ip(&format!("netns del {name}")));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("needs the program ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// A thread in a namespace, with a runtime of its own.
fn enter(name: &str) -> Result<(Handle, tokio::sync::oneshot::Sender<()>), String> {
    let space = File::open(format!("/run/netns/{name}")).map_err(|error| error.to_string())?;
    let (ending, ended) = tokio::sync::oneshot::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let moved = move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network));
        let runtime = match moved {
            Ok(()) => Builder::new_current_thread().enable_all().build(),
            Err(error) => Err(error.into()),
        };
        match runtime {
            Ok(runtime) => {
                drop(sender.send(Ok(runtime.handle().clone())));
                drop(runtime.block_on(ended));
            }
            Err(error) => drop(sender.send(Err(error.to_string()))),
        }
    });
    let handle = receiver.recv().map_err(|error| error.to_string())??;
    Ok((handle, ending))
}
