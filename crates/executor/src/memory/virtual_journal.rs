//! Virtual memory in a session's journal: what [`super::virtual_memory`] has, as things and not as
//! commands, and how the next executor makes it again.
//!
//! A mapping outlives the number of its memory, and parts of what was mapped or made accessible by
//! one command can be unmapped by another. So there is an entry for each reservation, piece of
//! memory, mapping and its access, found by the first word of its body; entries end with the
//! things. The memory itself is the keeper's, or lies in a file that the client had sent and the
//! keeper has.

mod remaking;

use cuda_abi::types::*;
use link::wire::attach::Window;
use link::wire::command::{Effect, Opcode};
use link::wire::owner::Owner;
use policy::memory::reservations::Reservations;
use std::collections::HashMap;
use zerocopy::FromBytes;

/// A thing that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// Addresses: what the client asked for, and what is reserved with the driver.
    Reservation {
        base: u64,
        size_bytes: u64,
        reserved_bytes: u64,
    },
    /// Memory of the keeper's. `sharing`: as the client's command has it.
    Memory {
        key: u64,
        size_bytes: u64,
        number: u32,
        sharing: u32,
    },
    /// Memory of somebody else's, in the entry's file.
    Imported {
        key: u64,
        number: u32,
    },
    /// Its number is used no more, but it is mapped.
    Unnumbered {
        key: u64,
        number: u32,
    },
    Mapped {
        address: u64,
        size_bytes: u64,
        offset_bytes: u64,
        key: u64,
    },
    Access {
        address: u64,
        access: u32,
    },
}

impl Thing {
    /// Under which opcode it is written down, and its words, the first of which is the key.
    fn entry(self) -> (Opcode, [u64; 4]) {
        match self {
            Self::Reservation { base, size_bytes, reserved_bytes } => {
                (Opcode::AddressReserve, [base, size_bytes, reserved_bytes, 0])
            }
            Self::Memory { key, size_bytes, number, sharing } => {
                (Opcode::MemoryCreate, [key, size_bytes, number.into(), sharing.into()])
            }
            Self::Imported { key, number } => (Opcode::MemoryImport, [key, number.into(), 0, 0]),
            Self::Unnumbered { key, number } => (Opcode::MemoryRelease, [key, number.into(), 0, 0]),
            Self::Mapped { address, size_bytes, offset_bytes, key } => {
                (Opcode::MemoryMap, [address, size_bytes, offset_bytes, key])
            }
            Self::Access { address, access } => {
                (Opcode::MemorySetAccess, [address, access.into(), 0, 0])
            }
        }
    }

    /// Reads an entry; `None` if it is none of these.
    pub(crate) fn read(opcode: Opcode, body: &[u8]) -> Option<Self> {
        let Effect::Thing(_) = opcode.facts().journal else { return None };
        let ([first, second, third, fourth], _) = <[u64; 4]>::read_from_prefix(body).ok()?;
        Some(match opcode {
            Opcode::AddressReserve => {
                Self::Reservation { base: first, size_bytes: second, reserved_bytes: third }
            }
            Opcode::MemoryCreate => Self::Memory {
                key: first,
                size_bytes: second,
                number: third as u32,
                sharing: fourth as u32,
            },
            Opcode::MemoryImport => Self::Imported { key: first, number: second as u32 },
            Opcode::MemoryRelease => Self::Unnumbered { key: first, number: second as u32 },
            Opcode::MemoryMap => Self::Mapped {
                address: first,
                size_bytes: second,
                offset_bytes: third,
                key: fourth,
            },
            Opcode::MemorySetAccess => Self::Access { address: first, access: second as u32 },
            _ => return None,
        })
    }

    /// What an entry is found by.
    pub(crate) fn key(body: &[u8]) -> Option<u64> {
        body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// Takes the addresses of a session that another executor has served, before anybody else is given
/// them. Returns them by their first.
pub(crate) fn claim<'a>(
    reservations: &mut Reservations,
    owner: &Owner,
    entries: impl Iterator<Item = (u16, &'a [u8])>,
) -> HashMap<u64, Window> {
    let of = |(opcode, body): (u16, &'a [u8])| match Thing::read(Opcode::from_number(opcode)?, body)
    {
        Some(Thing::Reservation { base, reserved_bytes, .. }) => {
            Some(Window { base, size_bytes: reserved_bytes })
        }
        _ => None,
    };
    let windows = entries.filter_map(of);
    windows.filter(|window| reservations.claim(owner, *window)).map(|it| (it.base, it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::virtual_memory::ACCESS_READ_WRITE;

    #[test]
    fn things_come_back_as_they_were_written() {
        for thing in [
            Thing::Reservation { base: 1 << 45, size_bytes: 3, reserved_bytes: 4 },
            Thing::Memory { key: u64::MAX, size_bytes: 2 << 20, number: 7, sharing: 1 },
            Thing::Imported { key: 5, number: 6 },
            Thing::Unnumbered { key: 5, number: 6 },
            Thing::Mapped { address: 1, size_bytes: 2, offset_bytes: 3, key: 4 },
            Thing::Access { address: 1, access: ACCESS_READ_WRITE },
        ] {
            let (opcode, words) = thing.entry();
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(Thing::read(opcode, &body), Some(thing));
        }
        assert_eq!(Thing::read(Opcode::Launch, &[]), None);
    }

    #[test]
    fn addresses_are_claimed_before_they_are_given_to_others() {
        let owner = Owner::user(1);
        let mut reservations = Reservations::of_first(0, 1);
        let before = reservations.take(&owner, 1, 0).unwrap();
        let mut next = Reservations::of_first(0, 1);
        let (opcode, words) = Thing::Reservation {
            base: before.base,
            size_bytes: 1,
            reserved_bytes: before.size_bytes,
        }
        .entry();
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let entries = [(opcode as u16, body.as_slice()), (Opcode::Launch as u16, &[][..])];
        let claimed = claim(&mut next, &owner, entries.into_iter());
        assert_eq!(claimed.get(&before.base), Some(&before));
        assert_ne!(next.take(&owner, 1, 0).unwrap().base, before.base);
        assert!(!next.claim(&owner, before), "it is taken");
    }
}
