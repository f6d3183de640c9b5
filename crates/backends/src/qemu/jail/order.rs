//! What the backend and its jailer say to each other.
//!
//! One message each way over a sequenced-packet socket: the order, with the
//! descriptors beside it, and then reports. The socket closes by itself when
//! QEMU is executed, so its end without a failure means success.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

/// The largest message. Command lines are far below it.
const MAX_MESSAGE: usize = 64 * 1024;
/// The most descriptors in one order.
pub(in crate::qemu) const MAX_DESCRIPTORS: usize = 16;

/// Everything the jailer has to know.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::qemu) struct Order {
    /// Folder that becomes the root file system, read-only.
    pub(in crate::qemu) root: PathBuf,
    /// The `cgroup.procs` files to join.
    pub(in crate::qemu) cgroups: Vec<PathBuf>,
    /// User and group of the machine; nobody else has it now.
    pub(in crate::qemu) uid: u32,
    /// Whether the machine needs `/dev/kvm`.
    pub(in crate::qemu) kvm: bool,
    /// The largest file it may write.
    pub(in crate::qemu) max_file_bytes: u64,
    /// The most processes and threads.
    pub(in crate::qemu) max_processes: u64,
    /// Who ends first.
    pub(in crate::qemu) lifetime: Lifetime,
    /// The program inside the root.
    pub(in crate::qemu) program: String,
    /// Its arguments, without its name.
    pub(in crate::qemu) arguments: Vec<String>,
    /// The number that each descriptor gets, in the order in which they came.
    pub(in crate::qemu) numbers: Vec<i32>,
}

/// Whether a machine may outlive the process that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifetime {
    /// It runs on, to be adopted by the next server.
    Outlives,
    /// It ends with that process, however that process ends.
    EndsWithCaller,
}

/// What the jailer says.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::qemu) enum Report {
    /// The machine's first process exists.
    Started {
        /// Its number as the backend sees it.
        pid: i32,
    },
    /// The machine will not start.
    Failed {
        /// What was being done.
        step: String,
        /// Why it failed.
        cause: String,
    },
}

/// Sends the order.
pub(in crate::qemu) fn send(
    socket: BorrowedFd<'_>,
    order: &Order,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(order)?;
    if body.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::other("the order is too large"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("the descriptors do not fit"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&body)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the order.
pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<(Order, Vec<OwnedFd>)> {
    let mut body = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut body)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let order: Order = serde_json::from_slice(&body[..received.bytes])?;
    if order.numbers.len() != descriptors.len() {
        return Err(io::Error::other("not every descriptor arrived"));
    }
    Ok((order, descriptors))
}

/// Sends a report.
pub(super) fn report(socket: BorrowedFd<'_>, report: &Report) -> io::Result<()> {
    let body = serde_json::to_vec(report)?;
    rustix::net::send(socket, &body, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the next report; none when the machine runs.
pub(in crate::qemu) fn next_report(socket: BorrowedFd<'_>) -> io::Result<Option<Report>> {
    let mut body = [0; 4096];
    let (length, _) = rustix::net::recv(socket, &mut body, RecvFlags::empty())?;
    if length == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&body[..length])?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn an_order_arrives_with_its_descriptors() {
        let (near, far) = pair();
        let order = Order {
            root: "/jail".into(),
            cgroups: vec![],
            uid: 7,
            kvm: false,
            max_file_bytes: 1,
            max_processes: 2,
            lifetime: Lifetime::Outlives,
            program: "/qemu".into(),
            arguments: vec!["-S".into()],
            numbers: vec![10, 11],
        };
        send(near.as_fd(), &order, &[near.as_fd(), far.as_fd()]).unwrap();
        let (arrived, descriptors) = receive(far.as_fd()).unwrap();
        assert_eq!(arrived.numbers, [10, 11]);
        assert_eq!(descriptors.len(), 2);
    }

    #[test]
    fn a_closed_socket_means_that_the_machine_runs() {
        let (near, far) = pair();
        report(far.as_fd(), &Report::Started { pid: 4 }).unwrap();
        drop(far);
        assert!(matches!(next_report(near.as_fd()), Ok(Some(Report::Started { pid: 4 }))));
        assert!(matches!(next_report(near.as_fd()), Ok(None)));
    }
}
