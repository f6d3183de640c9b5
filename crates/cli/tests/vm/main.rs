//! The real program with real machines.
//!
//! Needs root, an image and a guest program; where one is missing, each test
//! says `not run:` and why. `COLDFRAME_TEST_IMAGES` names the folder of images,
//! else the usual places are looked at. One template is booted for all tests and
//! kept for the next time. `COLDFRAME_TEST_FULL` makes long streams as long as
//! the promises name them.

#![allow(clippy::print_stdout, reason = "a test says why it did not run and what it measured")]

mod attacks;
mod codes;
mod copies;
mod crashes;
mod inside;
mod limits;
mod pause;
mod pool;
mod secrets;
mod service;
mod site;
mod streams;
mod volumes;
