//! The places where sandboxes run.
//!
//! [`qemu`] gives each sandbox a virtual machine of its own. A backend reports
//! facts and holds no policy; what it must do is written at
//! [`sandbox::backend::Backend`].
//!
//! This crate talks to the kernel directly, so `unsafe` is allowed in it. Every
//! block argues why it is sound.

pub mod qemu;
