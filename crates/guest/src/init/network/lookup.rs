//! The program that hands connections to everywhere to the relay.
//!
//! The kernel asks it which socket takes a connection or a datagram that none
//! is connected for. It answers with one of eight sockets, by family, protocol
//! and whether the port is 53; an address of loopback it leaves to the kernel.
//! Without a socket in the slot the packet is refused: TCP by a reset, UDP as
//! unreachable.
//!
//! Eight slots, an assembler of four kinds of instruction: less than what a
//! library or a compiler for this would bring into every sandbox.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// Slots of the map.
pub(super) const SLOTS: usize = 8;
/// Added to the slot for UDP, for port 53, and for IPv6.
pub(super) const UDP: usize = 2;
pub(super) const DNS: usize = 1;
pub(super) const V6: usize = 4;

/// The program at work; it stops when this is dropped.
#[derive(Debug)]
pub(super) struct Lookup {
    map: OwnedFd,
    /// Holding it holds the program in its place.
    _link: OwnedFd,
}

impl Lookup {
    /// Puts the program into the network namespace of this process, with no
    /// sockets yet.
    pub(super) fn start() -> io::Result<Self> {
        let map = make_map()?;
        let program = load(&program(map.as_raw_fd()))?;
        let link = attach(&program)?;
        Ok(Self { map, _link: link })
    }

    /// Puts a socket into a slot.
    pub(super) fn set(&self, slot: usize, socket: BorrowedFd<'_>) -> io::Result<()> {
        let key = slot as u32;
        let value = socket.as_raw_fd() as u64;
        let change = Element {
            map: self.map.as_raw_fd() as u32,
            _pad: 0,
            key: &raw const key as u64,
            value: &raw const value as u64,
            flags: 0,
        };
        bpf(UPDATE_ELEMENT, &change).map(drop)
    }

    /// Empties a slot.
    pub(super) fn clear(&self, slot: usize) -> io::Result<()> {
        let key = slot as u32;
        let change = Element {
            map: self.map.as_raw_fd() as u32,
            _pad: 0,
            key: &raw const key as u64,
            value: 0,
            flags: 0,
        };
        match bpf(DELETE_ELEMENT, &change) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

// Commands, types and structures of the kernel's `bpf.h`.
const CREATE_MAP: libc::c_int = 0;
const UPDATE_ELEMENT: libc::c_int = 2;
const DELETE_ELEMENT: libc::c_int = 3;
const LOAD_PROGRAM: libc::c_int = 5;
const CREATE_LINK: libc::c_int = 28;
const MAP_OF_SOCKETS: u32 = 15;
const PROGRAM_SK_LOOKUP: u32 = 30;
const ATTACH_SK_LOOKUP: u32 = 36;

#[repr(C)]
struct Element {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn make_map() -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        kind: u32,
        key_size: u32,
        value_size: u32,
        entries: u32,
        flags: u32,
    }
    let (key_size, value_size, entries) = (4, 8, SLOTS as u32);
    let create = Create { kind: MAP_OF_SOCKETS, key_size, value_size, entries, flags: 0 };
    owned(bpf(CREATE_MAP, &create)?)
}

fn load(program: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach: u32,
    }
    // None of the functions it calls asks for a particular one.
    let license = c"Proprietary";
    let load = Load {
        kind: PROGRAM_SK_LOOKUP,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"coldframe\0\0\0\0\0\0\0",
        interface: 0,
        attach: ATTACH_SK_LOOKUP,
    };
    owned(bpf(LOAD_PROGRAM, &load)?)
}

fn attach(program: &OwnedFd) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Link {
        program: u32,
        target: u32,
        attach: u32,
        flags: u32,
    }
    let namespace = std::fs::File::open("/proc/self/ns/net")?;
    let link = Link {
        program: program.as_raw_fd() as u32,
        target: namespace.as_raw_fd() as u32,
        attach: ATTACH_SK_LOOKUP,
        flags: 0,
    };
    owned(bpf(CREATE_LINK, &link)?)
}

/// The system call. Every pointer in `request` is to something that its caller
/// keeps for as long as the call takes.
fn bpf<T>(command: libc::c_int, request: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads as many bytes as the size says, of a structure
    // whose prefix it knows; what its pointers name outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, request, std::mem::size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(descriptor: libc::c_long) -> io::Result<OwnedFd> {
    let number = libc::c_int::try_from(descriptor).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else
    // knows its number. The kernel marks it close-on-exec itself.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Places in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Far6,
    V4,
    Far,
    Port,
    Look,
    Pass,
    Drop,
}

// Registers: the results of calls, arguments, what calls keep, the stack.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const CONTEXT: u8 = 6;
const SLOT: u8 = 7;
const SOCKET: u8 = 8;
const STACK: u8 = 10;

/// Where the kernel tells the program what it is about (`bpf_sk_lookup`).
const FAMILY: i16 = 8;
const PROTOCOL: i16 = 12;
const ADDRESS4: i16 = 40;
const ADDRESS6: [i16; 4] = [44, 48, 52, 56];
const PORT: i16 = 60;

const LOOK_UP_ELEMENT: i32 = 1;
const RELEASE_SOCKET: i32 = 86;
const ASSIGN_SOCKET: i32 = 124;

/// The program, for a map with this descriptor.
fn program(map: libc::c_int) -> Vec<u64> {
    let mut code = Assembler::default();
    code.copy(CONTEXT, R1);
    code.load(R2, CONTEXT, FAMILY);
    code.if_equal(R2, libc::AF_INET, Label::V4);
    code.unless_equal(R2, libc::AF_INET6, Label::Pass);
    // ::1, whose last word is 1 in the order of the network.
    let [first @ .., last] = ADDRESS6;
    for word in first {
        code.load(R3, CONTEXT, word);
        code.unless_equal(R3, 0, Label::Far6);
    }
    code.load(R3, CONTEXT, last);
    code.if_equal(R3, 1_i32.to_be(), Label::Pass);
    code.at(Label::Far6);
    code.set(SLOT, V6 as i32);
    code.jump(Label::Far);
    // 127.0.0.0/8.
    code.at(Label::V4);
    code.load(R3, CONTEXT, ADDRESS4);
    code.mask(R3, 0xff);
    code.if_equal(R3, 127, Label::Pass);
    code.set(SLOT, 0);
    code.at(Label::Far);
    code.load(R3, CONTEXT, PROTOCOL);
    code.if_equal(R3, libc::IPPROTO_TCP, Label::Port);
    code.add(SLOT, UDP as i32);
    code.at(Label::Port);
    code.load(R3, CONTEXT, PORT);
    code.unless_equal(R3, 53, Label::Look);
    code.add(SLOT, DNS as i32);
    code.at(Label::Look);
    code.push(SLOT);
    code.map(R1, map);
    code.copy(R2, STACK);
    code.add(R2, -4);
    code.call(LOOK_UP_ELEMENT);
    code.if_equal(R0, 0, Label::Drop);
    code.copy(SOCKET, R0);
    code.copy(R1, CONTEXT);
    code.copy(R2, SOCKET);
    code.set(R3, 0);
    code.call(ASSIGN_SOCKET);
    code.copy(CONTEXT, R0);
    code.copy(R1, SOCKET);
    code.call(RELEASE_SOCKET);
    code.unless_equal(CONTEXT, 0, Label::Drop);
    code.at(Label::Pass);
    code.end(1);
    code.at(Label::Drop);
    code.end(0);
    code.finish()
}

/// Instructions with jumps to labels ahead.
#[derive(Debug, Default)]
struct Assembler {
    code: Vec<(u64, Option<Label>)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn emit(&mut self, operation: u8, to: u8, from: u8, offset: i16, value: i32) {
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = value.to_le_bytes();
        let bytes = [operation, from << 4 | to, low, high, a, b, c, d];
        self.code.push((u64::from_le_bytes(bytes), None));
    }

    fn jump_if(&mut self, operation: u8, register: u8, value: i32, label: Label) {
        self.emit(operation, register, 0, 0, value);
        if let Some(last) = self.code.last_mut() {
            last.1 = Some(label);
        }
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.emit(0xbf, to, from, 0, 0);
    }
    fn set(&mut self, register: u8, value: i32) {
        self.emit(0xb7, register, 0, 0, value);
    }
    fn add(&mut self, register: u8, value: i32) {
        self.emit(0x07, register, 0, 0, value);
    }
    fn mask(&mut self, register: u8, value: i32) {
        self.emit(0x57, register, 0, 0, value);
    }
    /// Reads 32 bits of what `from` points at.
    fn load(&mut self, to: u8, from: u8, offset: i16) {
        self.emit(0x61, to, from, offset, 0);
    }
    /// Puts 32 bits at the end of the stack.
    fn push(&mut self, from: u8) {
        self.emit(0x63, STACK, from, -4, 0);
    }
    fn if_equal(&mut self, register: u8, value: i32, label: Label) {
        self.jump_if(0x15, register, value, label);
    }
    fn unless_equal(&mut self, register: u8, value: i32, label: Label) {
        self.jump_if(0x55, register, value, label);
    }
    fn jump(&mut self, label: Label) {
        self.jump_if(0x05, 0, 0, label);
    }
    fn call(&mut self, function: i32) {
        self.emit(0x85, 0, 0, 0, function);
    }
    /// A map's address; takes two places.
    fn map(&mut self, register: u8, map: libc::c_int) {
        self.emit(0x18, register, 1, 0, map);
        self.emit(0, 0, 0, 0, 0);
    }
    fn end(&mut self, result: i32) {
        self.set(R0, result);
        self.emit(0x95, 0, 0, 0, 0);
    }
    fn at(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn finish(self) -> Vec<u64> {
        let place = |label| self.labels.iter().find(|(known, _)| *known == label);
        let resolve = |(index, &(word, label)): (usize, &(u64, Option<Label>))| {
            let Some((_, target)) = label.and_then(place) else { return word };
            // All jumps go forward, by less than the length of the program.
            let offset = (target - index - 1) as u64;
            word | offset << 16
        };
        self.code.iter().enumerate().map(resolve).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would, on what it is told, with a map that
    /// holds `sockets`. The slot that was assigned, if any, and the result.
    fn run(context: &[(i16, u32)], sockets: &[usize]) -> (Option<u64>, u64) {
        let code = program(3);
        let mut registers = [0_u64; 11];
        let (mut stack, mut assigned, mut at) = (0, None, 0);
        loop {
            let [operation, pair, low, high, value @ ..] = code[at].to_le_bytes();
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            let offset = i16::from_le_bytes([low, high]);
            let value = i32::from_le_bytes(value);
            at += 1;
            let jump = match operation {
                0x05 => true,
                0x15 => registers[to] == u64::from(value as u32),
                0x55 => registers[to] != u64::from(value as u32),
                _ => false,
            };
            match operation {
                0x05 | 0x15 | 0x55 if jump => at += offset as usize,
                0x05 | 0x15 | 0x55 => {}
                0xbf => registers[to] = registers[from],
                0xb7 => registers[to] = value as u64,
                0x07 => registers[to] = registers[to].wrapping_add(value as u64),
                0x57 => registers[to] &= value as u64,
                0x61 => {
                    let told = context.iter().find(|(place, _)| *place == offset);
                    registers[to] = told.map_or(0, |(_, word)| u64::from(*word));
                }
                0x63 => stack = registers[from],
                0x18 => at += 1,
                0x85 => match value {
                    LOOK_UP_ELEMENT => {
                        let found = sockets.contains(&(stack as usize));
                        registers[0] = if found { 100 + stack } else { 0 };
                    }
                    ASSIGN_SOCKET => (assigned, registers[0]) = (Some(registers[2] - 100), 0),
                    RELEASE_SOCKET => assert_eq!(Some(registers[1] - 100), assigned),
                    other => panic!("function {other}"),
                },
                0x95 => return (assigned, registers[0]),
                other => panic!("operation {other:#x}"),
            }
        }
    }

    #[track_caller]
    fn check(context: &[(i16, u32)], slot: usize) {
        assert_eq!(run(context, &[slot]), (Some(slot as u64), 1));
        assert_eq!(run(context, &[]), (None, 0), "without a socket it is refused");
    }

    const IPV4: (i16, u32) = (FAMILY, 2);
    const IPV6: (i16, u32) = (FAMILY, 10);
    const TCP: (i16, u32) = (PROTOCOL, 6);
    const DATAGRAM: (i16, u32) = (PROTOCOL, 17);

    #[test]
    fn each_kind_goes_to_its_own_socket() {
        let far4 = (ADDRESS4, u32::from_ne_bytes([128, 0, 0, 127]));
        let far6 = (ADDRESS6[0], u32::from_ne_bytes([0x20, 1, 0xd, 0xb8]));
        // Only its last word, but not the one that loopback has.
        let nearly = (ADDRESS6[3], u32::from_ne_bytes([0, 0, 0, 2]));
        for (port, dns) in [((PORT, 443), 0), ((PORT, 53), DNS)] {
            check(&[IPV4, far4, TCP, port], dns);
            check(&[IPV4, far4, DATAGRAM, port], UDP + dns);
            check(&[IPV6, far6, TCP, port], V6 + dns);
            check(&[IPV6, nearly, DATAGRAM, port], V6 + UDP + dns);
        }
    }

    #[test]
    fn loopback_is_left_to_the_kernel() {
        let all: Vec<usize> = (0..SLOTS).collect();
        let near4 = (ADDRESS4, u32::from_ne_bytes([127, 9, 9, 9]));
        let near6 = (ADDRESS6[3], u32::from_ne_bytes([0, 0, 0, 1]));
        for protocol in [TCP, DATAGRAM] {
            assert_eq!(run(&[IPV4, near4, protocol, (PORT, 53)], &all), (None, 1));
            assert_eq!(run(&[IPV6, near6, protocol, (PORT, 53)], &all), (None, 1));
        }
        assert_eq!(run(&[(FAMILY, 1)], &all), (None, 1));
    }
}
