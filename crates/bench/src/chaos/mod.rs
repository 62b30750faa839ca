//! Chaos: well-behaved clients that check every word of their results, beside others that make
//! every kind of fault.
//!
//! [`good`] and [`bad`] are the clients, processes of their own; [`board`] is the page that they
//! share. [`harness`] is a run: [`scene`] starts clients under a [`Peer`](crate::peer::Peer),
//! [`crew`] hears the good ones; [`tally`] counts what came of it; [`served`] is what the server
//! itself counted, [`belongings`] looks for what is left over and [`settling`] says when.

pub mod bad;
mod belongings;
pub mod board;
mod bounded;
mod crew;
pub mod good;
pub mod harness;
mod kernels;
pub mod kind;
mod refused;
mod scene;
mod served;
mod settling;
pub mod tally;

use serde::{Deserialize, Serialize};

/// What a good client is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has work in flight, nearly always.
    #[default]
    Busy,
    /// It has none.
    Idle,
}

impl Phase {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Idle => "idle",
        }
    }

    /// The phase of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Busy, Self::Idle].into_iter().find(|phase| phase.name() == name)
    }
}

/// A good client made of PyTorch, as a program for `python3`.
pub const TORCH: &str = include_str!("torch_client.py");
