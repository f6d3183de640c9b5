//! The jailer as a program of its own, for this crate's tests.
//!
//! The product starts its own executable instead, with the same argument.

use std::process::ExitCode;

fn main() -> ExitCode {
    backends::qemu::jail::main()
}
