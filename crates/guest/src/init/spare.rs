//! A child that stands ready to become the next program.
//!
//! Forking and separating a process is a large part of a start in an emulated
//! machine, and none of it depends on the program. So it is done beforehand, a
//! template is captured with one child waiting, and a start only has to say
//! which program. There is one at a time; who finds none forks.
//!
//! What must hold: while it waits the child is root, so no workload but root's
//! can stop or trace it; it holds no descriptor but its end of the socket, so it
//! keeps nobody's pipe open; and it gives up its rights before it looks at any
//! file, as every start does ([`exec`]).

use std::{
    cell::RefCell,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd},
};

use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
    process::WaitStatus,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    Init,
    cgroups::Group,
    child,
    exec::{self, Program},
};
use crate::messages::Command;

/// Orders above this are for a fork: a packet must fit the socket's buffer.
const MOST: usize = 64 * 1024;
/// Standard input, output, error, and where a failure is told.
const DESCRIPTORS: usize = 4;

/// The place of the one child.
#[derive(Debug, Default)]
pub(super) struct Place(RefCell<Option<Spare>>);

#[derive(Debug)]
struct Spare {
    /// Where it is already.
    group: Group,
    pid: i32,
    ended: oneshot::Receiver<WaitStatus>,
    socket: OwnedFd,
}

/// A child that is becoming a program.
#[derive(Debug)]
pub(super) struct Forked {
    pub(super) group: Group,
    pub(super) pid: i32,
    pub(super) ended: oneshot::Receiver<WaitStatus>,
}

/// Which program. What else it needs the child has known since it was forked.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) uid: u32,
    pub(super) command: Command,
    pub(super) environment: Vec<(String, String)>,
    pub(super) terminal: bool,
}

impl Place {
    /// Makes the next child, if there is none. For when nobody waits.
    pub(super) fn fill(&self, init: &Init) -> io::Result<()> {
        if self.0.borrow().is_some() {
            return Ok(());
        }
        let group = init.cgroups.make()?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let forked = child::fork(group.directory(), || wait(init, theirs));
        let pid = match forked {
            Ok(pid) => pid,
            Err(error) => {
                init.cgroups.retire(group);
                return Err(error);
            }
        };
        let ended = init.reaper.expect(pid);
        *self.0.borrow_mut() = Some(Spare { group, pid, ended, socket });
        Ok(())
    }

    /// Lets the child become a program. None if there is no child, or the order
    /// is too long for one.
    pub(super) fn take(
        &self,
        init: &Init,
        order: &Order,
        descriptors: [BorrowedFd<'_>; DESCRIPTORS],
    ) -> Option<Forked> {
        let order = postcard::to_allocvec(order).ok().filter(|order| order.len() <= MOST)?;
        let Spare { group, pid, ended, socket } = self.0.borrow_mut().take()?;
        if send(socket.as_fd(), &order, descriptors).is_ok() {
            return Some(Forked { group, pid, ended });
        }
        // Somebody who may has ended it.
        group.signal(libc::SIGKILL).ok();
        init.reaper.kill(pid);
        init.cgroups.retire(group);
        None
    }
}

fn send(
    socket: BorrowedFd<'_>,
    order: &[u8],
    descriptors: [BorrowedFd<'_>; DESCRIPTORS],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(order)], &mut control, flags)?;
    Ok(())
}

/// The child's life until its order comes. Without one, init is gone.
fn wait(init: &Init, socket: OwnedFd) -> u8 {
    let Ok(socket) = alone(socket) else { return 126 };
    if exec::separate().is_err() {
        return 126;
    }
    let mut buffer = vec![0; MOST];
    let Ok((order, descriptors)) = receive(socket.as_fd(), &mut buffer) else { return 126 };
    drop(socket);
    let Ok([input, output, error, tell]) = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors) else {
        return 126;
    };
    let reason = exec::exec(&Program {
        uid: order.uid,
        known: init.known.as_ref(),
        command: &order.command,
        environment: &order.environment,
        streams: [input.as_fd(), output.as_fd(), error.as_fd()],
        terminal: order.terminal,
    });
    exec::tell(tell.as_fd(), &reason);
    127
}

/// Keeps one descriptor, as number 3, and the three standard ones.
fn alone(socket: OwnedFd) -> io::Result<OwnedFd> {
    const KEPT: i32 = 3;
    // Closed below like all others, so nobody may own it any more.
    let number = socket.into_raw_fd();
    if number != KEPT {
        // SAFETY: two descriptor numbers. What had the second is a copy of init's
        // that nothing in this child uses any more.
        let placed = unsafe { libc::dup3(number, KEPT, libc::O_CLOEXEC) };
        if placed < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let (first, last) = (libc::c_long::from(KEPT + 1), libc::c_long::from(u32::MAX));
    // SAFETY: closes copies of init's descriptors. Their owners in this copy of
    // the memory are never dropped: the child executes or calls `_exit`.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is open, and this is the first to own it.
    Ok(unsafe { OwnedFd::from_raw_fd(KEPT) })
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(Order, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::with_capacity(DESCRIPTORS);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let order = postcard::from_bytes(&buffer[..received.bytes]).map_err(io::Error::other)?;
    Ok((order, descriptors))
}
