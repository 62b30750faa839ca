//! What clients ask of SMs.

use super::*;
use crate::session::state::State;
use crate::sms::partition::{device_resource, split};
use link::wire::partition::{
    DescriptionReply, MAX_DESCRIBED, PartitionCreate, PartitionDrop, PartitionTake, ROUND_DOWN,
    ROUND_UP, ResourceDescribe, ResourceGet, ResourceSplit, ResourceSplitReply,
};
use policy::sms::partitions::ShareSize;

/// What a green context of a program's own takes of the device, by estimate (4 to 5.5 MiB on an
/// H200).
const OWN_PARTITION_BYTES: u64 = 5 << 20;

impl State {
    pub(crate) fn resource_get(&mut self, wanted: ResourceGet) -> Result<(), Failure> {
        let resource = match self.partitions.find(wanted.partition)? {
            Some(partition) => partition.resource,
            None => device_resource(&self.shared.context)?,
        };
        let known = self.partitions.keep(&resource)?;
        self.answer(&known)
    }

    pub(crate) fn resource_split(&mut self, wanted: ResourceSplit) -> Result<(), Failure> {
        let ResourceSplit { resource, least, flags, room } = wanted;
        let from = self.partitions.resource(resource)?.resource;
        let asked = (room > 0).then_some(room);
        let (groups, rest) = split(&self.shared.context, &from, least, flags, asked)?;
        let remaining = match rest {
            Some(rest) => self.partitions.keep(&rest)?,
            None => SmResource::default(),
        };
        let head = ResourceSplitReply { groups: groups.len() as u32, reserved: 0, remaining };
        self.answer(&head)?;
        if room > 0 {
            for group in &groups {
                let known = self.partitions.keep(group)?;
                self.answer(&known)?;
            }
        }
        Ok(())
    }

    pub(crate) fn resource_describe(
        &mut self,
        wanted: ResourceDescribe,
        rest: &[u8],
    ) -> Result<(), Failure> {
        let short = || Failure::Protocol("a description is shorter than it says".into());
        if wanted.count == 0 || wanted.count > MAX_DESCRIBED {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let bytes = rest.get(..wanted.count as usize * 4).ok_or_else(short)?;
        let numbers: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let known = self.partitions.descriptions.iter().position(|(of, _)| *of == numbers);
        let place = match known {
            Some(place) => place,
            None if self.partitions.descriptions.len() >= MAX_RESOURCES => {
                return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
            }
            None => {
                let mut resources = Vec::new();
                for &number in &numbers {
                    resources.push(self.partitions.resource(number)?.resource);
                }
                let context = &self.shared.context;
                let made = self.shared.partitions.describe(context, &mut resources)?;
                self.partitions.descriptions.push((numbers, made));
                self.partitions.descriptions.len() - 1
            }
        };
        let reply = DescriptionReply { description: place as u32 + 1, reserved: 0 };
        self.answer(&reply)
    }

    pub(crate) fn partition_create(&mut self, wanted: PartitionCreate) -> Result<(), Failure> {
        self.partitions.check_free(wanted.partition)?;
        let place = (wanted.description as usize).wrapping_sub(1);
        let (of, description) =
            self.partitions.descriptions.get(place).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let own = self.partitions.own();
        let (mut count, mut is_within) = (0, true);
        for &number in of {
            let known = self.partitions.resource(number)?;
            count += multiprocessors(&known.resource);
            is_within &= own.is_none() || known.within == self.partitions.own_units();
        }
        let (made, charged_bytes) = match is_within {
            true => {
                let description = *description;
                self.charge_or_hold(OWN_PARTITION_BYTES)?;
                match Partition::create(&self.shared.context, description, None) {
                    Ok(made) => (made, OWN_PARTITION_BYTES),
                    Err(failure) => {
                        self.memory.discharge(OWN_PARTITION_BYTES);
                        return Err(failure);
                    }
                }
            }
            // The share has changed since: as many SMs of the present one.
            false => {
                let size = ShareSize::AtMost(count);
                (self.shared.partitions.take(&self.shared.context, size, own.as_deref())?, 0)
            }
        };
        let reply = self.partitions.insert(wanted.partition, made, charged_bytes);
        self.answer(&reply)
    }

    pub(crate) fn partition_take(&mut self, wanted: PartitionTake) -> Result<(), Failure> {
        self.partitions.check_free(wanted.partition)?;
        let (context, outer) = (&self.shared.context, self.partitions.own());
        let size = match wanted.rounding {
            ROUND_UP => ShareSize::AtLeast(wanted.multiprocessors),
            ROUND_DOWN => ShareSize::AtMost(wanted.multiprocessors),
            other => return Err(Failure::Protocol(format!("a share is rounded in way {other}"))),
        };
        let made = self.shared.partitions.take(context, size, outer.as_deref())?;
        let reply = self.partitions.insert(wanted.partition, made, 0);
        self.answer(&reply)
    }

    pub(crate) fn partition_drop(&mut self, wanted: PartitionDrop) -> Result<(), Failure> {
        below("partition", wanted.partition, MAX_PARTITIONS)?;
        let made = self.partitions.made.remove(&wanted.partition);
        let made = made.ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        self.partitions.retired.push(made);
        // A green context may not go before the work in it.
        if !self.may_work() {
            let charged = self.partitions.retired.drain(..).map(|made| made.charged_bytes).sum();
            self.memory.discharge(charged);
        }
        Ok(())
    }
}
