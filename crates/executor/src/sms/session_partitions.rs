//! What one session has of SMs: its share, the partitions of its contexts, and the resources that
//! its program was given.
//!
//! A program's `CUdevResource` is a number that the executor gave out; the driver's bytes stay
//! here. When the session's share changes, its contexts' partitions come to lie within the new one,
//! and go back to where they were once that is in it again ([`super::resharing`]).

mod commands;

use super::partition::{Partition, Placed, multiprocessors};
use crate::session::failure::{Failure, below};
use cuda_abi::types::*;
use link::wire::partition::{MAX_PARTITIONS, MAX_RESOURCES, OWN_SHARE, PartitionReply, SmResource};
use policy::sms::partitions::{Units, all_among};
use std::collections::HashMap;
use std::sync::Arc;

/// What one session has of this.
#[derive(Default)]
pub(crate) struct SessionPartitions {
    /// The session's share.
    own: Placed,
    made: HashMap<u32, Made>,
    /// Dropped while work may still run there.
    retired: Vec<Made>,
    resources: Vec<KnownResource>,
    /// Descriptions, with the numbers of the resources that they are of.
    descriptions: Vec<(Vec<u32>, CUdevResourceDesc)>,
}

/// A context's partition.
#[derive(Clone)]
struct Made {
    /// As it was made.
    original: Arc<Partition>,
    /// As it is: smaller or elsewhere while the session's share does not hold the original.
    current: Arc<Partition>,
    /// The session's share when it was made.
    within: Option<Units>,
    /// What is charged for it: shares are made for whoever has the same.
    charged_bytes: u64,
}

/// SMs that a program knows, and the session's share when it was told of them.
struct KnownResource {
    resource: CUdevResource,
    within: Option<Units>,
}

/// Where a context's partition must go.
pub(crate) enum Target {
    /// There.
    Known(Arc<Partition>),
    /// To at most so many SMs within the session's share.
    Taken(u32),
}

impl SessionPartitions {
    /// The partition of that number; `None` is the whole device.
    pub(crate) fn find(&self, number: u32) -> Result<Option<Arc<Partition>>, Failure> {
        if number == OWN_SHARE {
            return Ok(self.own.share.clone());
        }
        below("partition", number, MAX_PARTITIONS)?;
        let made = self.made.get(&number).map(|made| Arc::clone(&made.current));
        made.map(Some).ok_or(Failure::Cuda(CUresult::ERROR_INVALID_CONTEXT))
    }

    /// Whether the client has numbers of sets of SMs.
    pub(crate) fn have_resources(&self) -> bool {
        !self.resources.is_empty()
    }

    /// The session's share; `None` is the whole device.
    pub(crate) fn own(&self) -> Option<Arc<Partition>> {
        self.own.share.clone()
    }

    /// Gives the session another share. Returns the numbers of its contexts' partitions that must
    /// move, and where to.
    pub(crate) fn set_own(&mut self, own: Placed) -> Vec<(u32, Target)> {
        self.own = own;
        let within = self.own_units();
        let moves = self.made.iter().filter_map(|(&number, made)| {
            let holds = |partition: &Partition| match (&within, partition.units()) {
                (None, _) => true,
                (Some(within), Some(units)) => all_among(within, units),
                // A program's own choice: it lies in the share that it was chosen from.
                (Some(_), None) => within == made.within,
            };
            let target = if holds(&made.original) {
                Target::Known(Arc::clone(&made.original))
            } else if made.current.units().is_some() && holds(&made.current) {
                Target::Known(Arc::clone(&made.current))
            } else {
                Target::Taken(made.original.multiprocessors())
            };
            let stays = matches!(&target, Target::Known(to) if Arc::ptr_eq(to, &made.current));
            (!stays).then_some((number, target))
        });
        moves.collect()
    }

    /// A context's partition has moved; `false` if it is not there any more.
    pub(crate) fn set_current(&mut self, number: u32, partition: Arc<Partition>) -> bool {
        let made = self.made.get_mut(&number);
        made.map(|made| made.current = partition).is_some()
    }

    /// The units of the session's share; `None`: the whole device, or units that are not known.
    fn own_units(&self) -> Option<Units> {
        self.own.share.as_ref().and_then(|share| share.units()).map(<[usize]>::to_vec)
    }

    fn resource(&self, number: u32) -> Result<&KnownResource, Failure> {
        let place = (number as usize).wrapping_sub(1);
        self.resources.get(place).ok_or(Failure::Cuda(CUresult::ERROR_INVALID_VALUE))
    }

    /// Gives a resource a number; equal ones have the same.
    fn keep(&mut self, resource: &CUdevResource) -> Result<SmResource, Failure> {
        if multiprocessors(resource) == 0 {
            return Ok(SmResource::default());
        }
        let within = self.own_units();
        let is_known =
            |known: &KnownResource| known.within == within && is_same(&known.resource, resource);
        let known = self.resources.iter().position(is_known);
        let place = match known {
            Some(place) => place,
            None if self.resources.len() >= MAX_RESOURCES => {
                return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
            }
            None => {
                self.resources.push(KnownResource { resource: *resource, within });
                self.resources.len() - 1
            }
        };
        // SAFETY: plain numbers, of a resource of SMs.
        let sm = unsafe { resource.anonymous.sm };
        Ok(SmResource {
            resource: place as u32 + 1,
            multiprocessors: sm.smCount,
            smallest_partition: sm.minSmPartitionSize,
            alignment: sm.smCoscheduledAlignment,
        })
    }

    fn insert(
        &mut self,
        number: u32,
        partition: Arc<Partition>,
        charged_bytes: u64,
    ) -> PartitionReply {
        let multiprocessors = partition.multiprocessors();
        let (current, within) = (Arc::clone(&partition), self.own_units());
        self.made.insert(number, Made { original: partition, current, within, charged_bytes });
        PartitionReply { multiprocessors, reserved: 0 }
    }

    fn check_free(&self, number: u32) -> Result<(), Failure> {
        if number == OWN_SHARE || number >= MAX_PARTITIONS || self.made.contains_key(&number) {
            let message =
                format!("partition {number} cannot be made: in use, or not below {MAX_PARTITIONS}");
            return Err(Failure::Protocol(message));
        }
        if self.retired.len() >= MAX_PARTITIONS as usize {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        Ok(())
    }
}

fn is_same(one: &CUdevResource, other: &CUdevResource) -> bool {
    // SAFETY: the union's bytes, which the driver or `default` has written.
    let of = |resource: &CUdevResource| unsafe { resource.anonymous._oversize };
    one._internal_padding == other._internal_padding && of(one) == of(other)
}
