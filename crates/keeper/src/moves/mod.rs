//! Clients that go on on another device of the server, and devices that are drained.
//!
//! A program keeps the number, the name and the UUID of the device that it was told
//! ([`crate::Session`]'s `told_device`); where its session lives is the server's affair. Who may go
//! where is in [`wishes`], the course of a move in [`course`].

pub(crate) mod course;
pub(crate) mod wishes;
