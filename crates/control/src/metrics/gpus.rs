//! The machine's numbers of its GPUs, which NVIDIA's management library, and with it DCGM's label
//! `gpu`, counts by PCI address.
//!
//! A server counts only the devices that it serves, in the order of `CUDA_VISIBLE_DEVICES`: its
//! numbers would join with other GPUs' metrics.

use std::path::Path;

/// One directory for each GPU of NVIDIA's kernel driver, named by its PCI address.
const KERNEL_LIST: &str = "/proc/driver/nvidia/gpus";

/// PCI addresses in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Gpus(Vec<Pci>);

/// Domain, bus, device and function.
type Pci = (u32, u32, u32, u32);

impl Gpus {
    /// Those that the kernel driver lists; none without one.
    pub(super) fn of_this_machine() -> Self {
        Self::listed_in(Path::new(KERNEL_LIST))
    }

    fn listed_in(directory: &Path) -> Self {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut gpus: Vec<Pci> =
            entries.filter_map(|entry| parse(entry.file_name().to_str()?)).collect();
        gpus.sort_unstable();
        Self(gpus)
    }

    /// The number of the GPU at a PCI address.
    pub(super) fn number_of(&self, pci_bus_id: &str) -> Option<u32> {
        let wanted = parse(pci_bus_id)?;
        (0..).zip(&self.0).find(|(_, gpu)| **gpu == wanted).map(|(number, _)| number)
    }
}

/// `0000:3b:00.0`; the management library writes the domain with eight digits.
fn parse(text: &str) -> Option<Pci> {
    let hexadecimal = |text: &str| u32::from_str_radix(text, 16).ok();
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.').unwrap_or((rest, "0"));
    Some((hexadecimal(domain)?, hexadecimal(bus)?, hexadecimal(device)?, hexadecimal(function)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_by_their_pci_address() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["0000:af:00.0", "0000:3b:00.0", "0000:d8:00.0", "nothing"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let gpus = Gpus::listed_in(directory.path());
        assert_eq!(gpus.number_of("0000:3B:00.0"), Some(0));
        assert_eq!(gpus.number_of("00000000:AF:00.0"), Some(1));
        assert_eq!(gpus.number_of("0000:01:00.0"), None);
        assert_eq!(gpus.number_of(""), None);
        assert_eq!(Gpus::listed_in(Path::new("/nowhere")), Gpus::default());
    }
}
