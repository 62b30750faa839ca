//! The functions of the driver API, one file per family, under their own names; `functions.tsv` lists them with their class.
//!
//! Each takes the caller's arguments as they came, checks them, and turns the `Result` of the code behind it into a `CUresult`.
#![allow(non_snake_case, reason = "the names are those of the CUDA driver API")]

mod init;

pub(crate) use init::*;
