//! The real program with real machines.
//!
//! Needs root, an image and a guest program; where one is missing, each test
//! says `not run:` and why. `COLDFRAME_TEST_IMAGES` names the folder of images,
//! else the usual places are looked at. One template is booted for all tests and
//! kept for the next time.

mod codes;
mod copies;
mod crashes;
mod inside;
mod limits;
mod secrets;
mod service;
mod site;
mod streams;
