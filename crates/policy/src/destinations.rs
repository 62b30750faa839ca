//! Whether a program that was told of one device can go on on another: what it was told of the
//! first must hold on the second.

use cuda_abi::types::CUdevice_attribute as Attribute;

/// What of a device a program may count on.
#[derive(Clone, Copy, Debug)]
pub struct Traits<'a> {
    /// (attribute, value) for each that the driver answers.
    pub attributes: &'a [(i32, i32)],
    /// All of its memory.
    pub memory_bytes: u64,
    /// Memory is made in multiples of this.
    pub granularity_bytes: u64,
}

impl Traits<'_> {
    fn attribute(&self, wanted: i32) -> i32 {
        let found = self.attributes.iter().find(|(number, _)| *number == wanted);
        found.map_or(0, |&(_, value)| value)
    }

    fn compute_capability(&self) -> (i32, i32) {
        let of = |wanted: Attribute| self.attribute(wanted.0 as i32);
        (of(Attribute::COMPUTE_CAPABILITY_MAJOR), of(Attribute::COMPUTE_CAPABILITY_MINOR))
    }
}

/// What a device has, and what a program was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap<T> {
    /// The device's.
    pub has: T,
    /// What it should be.
    pub needs: T,
}

/// What the second device lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Shortfall {
    /// Machine code runs on devices of its own generation, from its own on.
    #[error("its compute capability is {}.{}, and {}.{} is needed", .0.has.0, .0.has.1, .0.needs.0, .0.needs.1)]
    ComputeCapability(Gap<(i32, i32)>),
    /// Bytes in all.
    #[error("it has {} bytes of memory, and the program was told {}", .0.has, .0.needs)]
    Memory(Gap<u64>),
    /// Bytes of which memory is made in multiples.
    #[error("it makes memory in pieces of {} bytes, and {} are needed", .0.has, .0.needs)]
    Granularity(Gap<u64>),
    /// How many.
    #[error("it has {} SMs, and the program was told {}", .0.has, .0.needs)]
    Multiprocessors(Gap<i32>),
    /// Of this number.
    #[error("its device attribute {} is {}, and the program was told {}", .0, .1.has, .1.needs)]
    Attribute(i32, Gap<i32>),
}

/// How a value of another device must be to the one that a program was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    AtLeast,
    AtMost,
    Equal,
    /// It says which device that is, how fast it is, or nothing that a program builds on.
    Any,
}

fn rule_of(attribute: i32) -> Rule {
    match Attribute(attribute as u32) {
        Attribute::WARP_SIZE | Attribute::INTEGRATED | Attribute::UNIFIED_ADDRESSING => Rule::Equal,
        Attribute::TEXTURE_ALIGNMENT
        | Attribute::SURFACE_ALIGNMENT
        | Attribute::TEXTURE_PITCH_ALIGNMENT
        | Attribute::RESERVED_SHARED_MEMORY_PER_BLOCK
        | Attribute::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
        | Attribute::KERNEL_EXEC_TIMEOUT => Rule::AtMost,
        Attribute::COMPUTE_CAPABILITY_MAJOR
        | Attribute::COMPUTE_CAPABILITY_MINOR
        | Attribute::CLOCK_RATE
        | Attribute::MEMORY_CLOCK_RATE
        | Attribute::COMPUTE_MODE
        | Attribute::ECC_ENABLED
        | Attribute::TCC_DRIVER
        | Attribute::PCI_BUS_ID
        | Attribute::PCI_DEVICE_ID
        | Attribute::PCI_DOMAIN_ID
        | Attribute::MULTI_GPU_BOARD
        | Attribute::MULTI_GPU_BOARD_GROUP_ID
        | Attribute::NUMA_CONFIG
        | Attribute::NUMA_ID
        | Attribute::HOST_NUMA_ID
        | Attribute::MPS_ENABLED
        | Attribute::GPU_PCI_DEVICE_ID
        | Attribute::GPU_PCI_SUBSYSTEM_ID => Rule::Any,
        _ => Rule::AtLeast,
    }
}

/// What keeps a program that was told of `from` from going on on `to`; the first reason.
pub fn shortfall(from: Traits<'_>, to: Traits<'_>) -> Option<Shortfall> {
    let (needs, has) = (from.compute_capability(), to.compute_capability());
    if has.0 != needs.0 || has.1 < needs.1 {
        return Some(Shortfall::ComputeCapability(Gap { has, needs }));
    }
    if to.memory_bytes < from.memory_bytes {
        let (has, needs) = (to.memory_bytes, from.memory_bytes);
        return Some(Shortfall::Memory(Gap { has, needs }));
    }
    if to.granularity_bytes != from.granularity_bytes {
        let (has, needs) = (to.granularity_bytes, from.granularity_bytes);
        return Some(Shortfall::Granularity(Gap { has, needs }));
    }
    from.attributes.iter().find_map(|&(attribute, needs)| {
        let has = to.attribute(attribute);
        let is_fine = match rule_of(attribute) {
            Rule::AtLeast => has >= needs,
            Rule::AtMost => has <= needs,
            Rule::Equal => has == needs,
            Rule::Any => true,
        };
        match is_fine {
            true => None,
            false if attribute == Attribute::MULTIPROCESSOR_COUNT.0 as i32 => {
                Some(Shortfall::Multiprocessors(Gap { has, needs }))
            }
            false => Some(Shortfall::Attribute(attribute, Gap { has, needs })),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn attributes(multiprocessors: i32, capability: (i32, i32), bus: i32) -> Vec<(i32, i32)> {
        vec![
            (Attribute::WARP_SIZE.0 as i32, 32),
            (Attribute::MULTIPROCESSOR_COUNT.0 as i32, multiprocessors),
            (Attribute::TEXTURE_ALIGNMENT.0 as i32, 512),
            (Attribute::PCI_BUS_ID.0 as i32, bus),
            (Attribute::COMPUTE_CAPABILITY_MAJOR.0 as i32, capability.0),
            (Attribute::COMPUTE_CAPABILITY_MINOR.0 as i32, capability.1),
        ]
    }

    fn traits(attributes: &[(i32, i32)], gib: u64) -> Traits<'_> {
        Traits { attributes, memory_bytes: gib * GIB, granularity_bytes: 2 << 20 }
    }

    #[test]
    fn what_is_at_least_equal_will_do() {
        let (small, large) = (attributes(84, (9, 0), 1), attributes(132, (9, 1), 7));
        assert_eq!(shortfall(traits(&small, 80), traits(&small, 80)), None);
        assert_eq!(shortfall(traits(&small, 80), traits(&large, 140)), None);
        assert_eq!(
            shortfall(traits(&large, 80), traits(&small, 80)),
            Some(Shortfall::ComputeCapability(Gap { has: (9, 0), needs: (9, 1) }))
        );
    }

    #[test]
    fn the_reason_is_what_is_missing() {
        let told = attributes(84, (9, 0), 1);
        let text = |to: &[(i32, i32)], gib| {
            shortfall(traits(&told, 80), traits(to, gib)).map(|it| it.to_string())
        };
        let next_generation = text(&attributes(84, (10, 0), 1), 80).unwrap();
        assert_eq!(next_generation, "its compute capability is 10.0, and 9.0 is needed");
        let fewer = text(&attributes(80, (9, 0), 1), 80).unwrap();
        assert_eq!(fewer, "it has 80 SMs, and the program was told 84");
        assert!(text(&told, 40).unwrap().contains("bytes of memory"));
        let mut coarse = told.clone();
        coarse[2].1 = 1024;
        assert!(text(&coarse, 80).unwrap().contains("attribute 14 is 1024"));
        let mut wide = told.clone();
        wide[0].1 = 64;
        assert!(text(&wide, 80).unwrap().contains("attribute 10"));
        let mut grain = traits(&told, 80);
        grain.granularity_bytes = 4 << 20;
        assert!(matches!(shortfall(traits(&told, 80), grain), Some(Shortfall::Granularity(_))));
    }
}
