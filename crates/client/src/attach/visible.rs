//! `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`: which of the server's devices this process sees,
//! in which order.
//!
//! Pure. The rules are those of the CUDA programming guide: indices or UUIDs (`GPU-` and a unique
//! prefix), separated by commas; the list ends at the first entry that names nothing; a device
//! named twice leaves none.

/// What a device is known by.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// As `GPU-` names it.
    pub(crate) uuid: [u8; 16],
    /// `dddd:bb:dd.f`; sorts in bus order.
    pub(crate) pci_bus_id: String,
}

/// Order of the devices before the choice is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As the server's driver lists them.
    Driver,
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    PciBusId,
}

/// Positions in `devices` of the visible ones, in the order in which the process counts them.
pub(crate) fn visible(devices: &[Identity], order: Order, choice: Option<&str>) -> Vec<usize> {
    let mut ordered: Vec<usize> = (0..devices.len()).collect();
    if order == Order::PciBusId {
        ordered.sort_by_key(|&i| devices[i].pci_bus_id.to_ascii_lowercase());
    }
    let Some(choice) = choice else { return ordered };
    let mut chosen = Vec::new();
    for entry in choice.split(',').map(str::trim) {
        let Some(device) = find(devices, &ordered, entry) else { break };
        if chosen.contains(&device) {
            return Vec::new();
        }
        chosen.push(device);
    }
    chosen
}

fn find(devices: &[Identity], ordered: &[usize], entry: &str) -> Option<usize> {
    if let Ok(index) = entry.parse::<usize>() {
        return ordered.get(index).copied();
    }
    let prefix = entry.strip_prefix("GPU-")?.replace('-', "").to_ascii_lowercase();
    if prefix.is_empty() {
        return None;
    }
    let mut matching =
        ordered.iter().copied().filter(|&i| hex(&devices[i].uuid).starts_with(&prefix));
    let first = matching.next()?;
    matching.next().is_none().then_some(first)
}

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Identity> {
        [(0xaa, "0000:80:00.0"), (0xab, "0000:07:00.0"), (0xbb, "0000:1F:00.0")]
            .into_iter()
            .map(|(byte, pci)| Identity { uuid: [byte; 16], pci_bus_id: pci.to_owned() })
            .collect()
    }

    fn choose(choice: &str) -> Vec<usize> {
        visible(&devices(), Order::Driver, Some(choice))
    }

    #[test]
    fn without_a_choice_all_are_visible() {
        assert_eq!(visible(&devices(), Order::Driver, None), [0, 1, 2]);
        assert_eq!(visible(&devices(), Order::PciBusId, None), [1, 2, 0]);
    }

    #[test]
    fn indices_select_and_reorder_and_end_at_the_first_that_is_none() {
        assert_eq!(choose("2,0"), [2, 0]);
        assert_eq!(choose(" 1 "), [1]);
        assert_eq!(choose("0,7,1"), [0]);
        assert_eq!(choose("-1"), [] as [usize; 0]);
        assert_eq!(choose(""), [] as [usize; 0]);
        assert_eq!(visible(&devices(), Order::PciBusId, Some("0")), [1]);
    }

    #[test]
    fn uuids_match_by_unique_prefix() {
        assert_eq!(choose("GPU-bb"), [2]);
        assert_eq!(choose("GPU-abababab-abab-abab-abab-abababababab,0"), [1, 0]);
        assert_eq!(choose("GPU-a"), [] as [usize; 0], "ambiguous");
        assert_eq!(choose("GPU-"), [] as [usize; 0]);
    }

    #[test]
    fn a_device_named_twice_leaves_none() {
        assert_eq!(choose("0,1,GPU-aaaa"), [] as [usize; 0]);
    }
}
