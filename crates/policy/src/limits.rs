//! The limits that a client's environment and the server's defaults set: a client can only ask for
//! less.

use crate::turns::fairness::DEFAULT_WEIGHT;
use crate::turns::priorities::Class;
use link::wire::attach::RequestedLimits;
use link::wire::daemon::Defaults;
pub use settings::GuardMode;
use settings::{
    DEVICE_MAX_CONNECTIONS, DeviceRef, Memory, Percentage, Priority, Total, ValueError,
};
use settings::{WEIGHT, parse_memory_list, parse_memory_of_each, parse_switch};

/// A limit of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryBound {
    /// Absent: none.
    pub bytes: Option<u64>,
    /// What the program is told as the device's memory.
    pub total: Total,
}

impl MemoryBound {
    /// One that is told, if there is one.
    pub fn told(bytes: Option<u64>) -> Self {
        let total = if bytes.is_some() { Total::Limit } else { Total::Device };
        Self { bytes, total }
    }

    /// Both hold: the lower counts, and is told if either is.
    pub fn and(self, other: Self) -> Self {
        let total = match (self.total, other.total) {
            (Total::Device, Total::Device) => Total::Device,
            _ => Total::Limit,
        };
        Self { bytes: self.bytes.into_iter().chain(other.bytes).min(), total }
    }

    /// What a program is told as the memory of a device that has so much.
    pub fn total_bytes(self, device_bytes: u64) -> u64 {
        match (self.total, self.bytes) {
            (Total::Limit, Some(bytes)) => bytes.min(device_bytes),
            _ => device_bytes,
        }
    }
}

/// A client's limit of device memory on the device of this index and UUID, its group's left out:
/// the lowest of the server's default and its own wishes. A wish that cannot be read counts as
/// none; the texts say so, for the log.
pub fn memory_bound(
    defaults: &Defaults,
    requested: &RequestedLimits,
    index: u32,
    uuid: &str,
) -> (MemoryBound, Vec<String>) {
    let default = defaults.pinned_device_mem_limits_bytes.iter();
    let default = default.filter(|&&(device, _)| device == index).map(|&(_, bytes)| bytes).min();
    let mut limit = match defaults.told_devices.contains(&index) {
        true => MemoryBound::told(default),
        false => MemoryBound { bytes: default, total: Total::Device },
    };
    let mut complaints = Vec::new();
    let mut wishes = |text: &Option<String>, read: fn(&str) -> Result<Limits, ValueError>| {
        let limits = match read(text.as_deref().unwrap_or_default()) {
            Ok(limits) => limits,
            Err(error) => {
                complaints.push(error.to_string());
                return None;
            }
        };
        let is_here = |of: &Option<DeviceRef>| of.as_ref().is_none_or(|of| of.names(index, uuid));
        let here = limits.into_iter().filter(|(of, _)| is_here(of));
        here.filter_map(|(_, limit)| limit.limit_bytes()).min()
    };
    let pinned = wishes(&requested.pinned_device_mem_limit, |text| {
        let limits = parse_memory_list(text)?;
        Ok(limits.into_iter().map(|(of, limit)| (Some(of), limit)).collect())
    });
    limit = limit.and(MemoryBound { bytes: pinned, total: Total::Device });
    limit = limit.and(MemoryBound::told(wishes(&requested.memory_limit, parse_memory_of_each)));
    (limit, complaints)
}

type Limits = Vec<(Option<DeviceRef>, Memory)>;

/// The share of the SMs that a client's settings allow it, in per cent: the smaller of the server's
/// default and its own wish. A wish that is no percentage counts as none, as the original has it.
/// Where contexts have shares of their own they lie within this one: see [`context_percentage`].
pub fn active_thread_percentage(defaults: &Defaults, requested: &RequestedLimits) -> f64 {
    let wish = requested.active_thread_percentage.as_deref().and_then(percentage);
    defaults.active_thread_percentage.unwrap_or(100.0).min(wish.unwrap_or(100.0))
}

/// The weight that a client asks for; what is no weight counts as nothing said.
pub fn weight(requested: &RequestedLimits) -> u32 {
    let wish = requested.weight.as_deref().and_then(|text| WEIGHT.number(text).ok());
    wish.map_or(DEFAULT_WEIGHT, |weight| weight as u32)
}

/// What `OPENMPS_GUARD` asks for.
pub fn guard_mode(requested: &RequestedLimits) -> GuardMode {
    requested.guard.as_deref().and_then(|text| GuardMode::parse(text).ok()).unwrap_or_default()
}

/// Whether a client asks for the latency class.
pub fn latency_class(requested: &RequestedLimits) -> Class {
    match requested.latency.as_deref().map(parse_switch) {
        Some(Ok(true)) => Class::Latency,
        _ => Class::Throughput,
    }
}

/// The priority that a client's settings give it: 0 normal, 1 below normal. Its own wish comes
/// first.
pub fn client_priority(defaults: &Defaults, requested: &RequestedLimits) -> u32 {
    let wish = requested.client_priority.as_deref().and_then(|text| text.parse().ok());
    wish.map(Priority::number).or(defaults.client_priority).unwrap_or(0)
}

/// The share of one context: at most the client's, and at most what the environment said when the
/// context was made.
pub fn context_percentage(of_client: f64, requested: Option<&str>) -> f64 {
    let wish = requested.and_then(percentage);
    wish.map_or(of_client, |wish| wish.min(of_client))
}

/// `CUDA_DEVICE_MAX_CONNECTIONS`: 1 to 32 hardware queues.
pub fn connections(text: &str) -> Option<u32> {
    DEVICE_MAX_CONNECTIONS.number(text).ok().map(|number| number as u32)
}

fn percentage(text: &str) -> Option<f64> {
    text.parse().ok().map(Percentage::percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-abcdef01-0000";

    #[test]
    fn a_contexts_share_lies_within_its_clients() {
        let defaults = Defaults { active_thread_percentage: Some(60.0), ..Defaults::default() };
        let asks = RequestedLimits {
            active_thread_percentage: Some("50".into()),
            per_context_partitioning: Some("1".into()),
            ..Default::default()
        };
        let of_client = active_thread_percentage(&defaults, &asks);
        assert_eq!(of_client, 50.0);
        for (wish, percent) in
            [(None, 50.0), (Some("20"), 20.0), (Some("80"), 50.0), (Some("x"), 50.0)]
        {
            assert_eq!(context_percentage(of_client, wish), percent, "{wish:?}");
        }
    }

    #[test]
    fn weights_and_classes_that_cannot_be_read_are_as_if_unsaid() {
        let asks = |weight: &str, latency: &str| RequestedLimits {
            weight: Some(weight.into()),
            latency: Some(latency.into()),
            ..Default::default()
        };
        for (text, expected) in
            [("3", 3), (" 1000 ", 1000), ("0", 1), ("1001", 1), ("-1", 1), ("", 1)]
        {
            assert_eq!(weight(&asks(text, "")), expected, "{text}");
        }
        assert_eq!(latency_class(&asks("", "1")), Class::Latency);
        assert_eq!(latency_class(&asks("", "0")), Class::Throughput);
        assert_eq!(latency_class(&RequestedLimits::default()), Class::Throughput);
        let guarded = |text: &str| {
            guard_mode(&RequestedLimits { guard: Some(text.into()), ..Default::default() })
        };
        use GuardMode::{Off, On, Strict};
        let modes = ["1", "on", "strict", "0", "yes"].map(guarded);
        assert_eq!(modes, [On, On, Strict, Off, Off]);
    }

    #[test]
    fn shares_and_priorities_that_cannot_be_read_are_none() {
        let defaults = Defaults {
            active_thread_percentage: Some(50.0),
            client_priority: Some(1),
            ..Defaults::default()
        };
        let asks = |percentage: &str, priority: &str| RequestedLimits {
            active_thread_percentage: Some(percentage.into()),
            client_priority: Some(priority.into()),
            ..Default::default()
        };
        for (text, percent) in
            [("25", 25.0), (" 25%", 25.0), ("75", 50.0), ("0", 50.0), ("x", 50.0), ("NaN", 50.0)]
        {
            assert_eq!(active_thread_percentage(&defaults, &asks(text, "0")), percent, "{text}");
        }
        for (text, priority) in [("0", 0), ("1", 1), ("2", 1), ("-1", 1), ("", 1)] {
            assert_eq!(client_priority(&defaults, &asks("1", text)), priority, "{text}");
        }
    }

    #[test]
    fn a_client_can_only_ask_for_less() {
        let defaults =
            Defaults { pinned_device_mem_limits_bytes: vec![(0, 2 << 30)], ..Defaults::default() };
        let asks = |text: &str| RequestedLimits {
            pinned_device_mem_limit: Some(text.into()),
            ..Default::default()
        };
        let limit = |text: &str, index| memory_bound(&defaults, &asks(text), index, UUID);
        let untold = |bytes| (MemoryBound { bytes, total: Total::Device }, vec![]);
        assert_eq!(limit("0=1G", 0), untold(Some(1 << 30)));
        assert_eq!(limit("0=4G", 0), untold(Some(2 << 30)));
        assert_eq!(limit("1=1G", 1), untold(Some(1 << 30)));
        assert_eq!(limit("1=1G", 2), untold(None));
        assert_eq!(limit("GPU-AB=3G,GPU-x=1,0=1536M", 0), untold(Some(1536 << 20)));
        assert_eq!(limit("GPU-abc=1G", 0), untold(Some(1 << 30)));
        let (of_default, complaints) = limit("junk", 0);
        assert_eq!(of_default.bytes, Some(2 << 30));
        assert!(complaints[0].contains("junk"));
    }

    #[test]
    fn nothing_is_no_limit() {
        let asks = |pinned: &str, own: &str| RequestedLimits {
            pinned_device_mem_limit: Some(pinned.into()),
            memory_limit: Some(own.into()),
            ..Default::default()
        };
        let none = |asked| memory_bound(&Defaults::default(), &asked, 0, UUID);
        assert_eq!(none(asks("0=0", "0")), (MemoryBound::default(), vec![]));
        assert_eq!(none(asks("0=0,0=1G", "0=0")).0.bytes, Some(1 << 30));
    }

    #[test]
    fn the_lowest_limit_counts_and_is_told_if_any_is() {
        let told = |of_default: u64, told_devices: Vec<u32>, pinned: &str, own: &str| {
            let defaults = Defaults {
                pinned_device_mem_limits_bytes: vec![(0, of_default << 30)],
                told_devices,
                ..Defaults::default()
            };
            let asked = RequestedLimits {
                pinned_device_mem_limit: Some(pinned.into()),
                memory_limit: Some(own.into()),
                ..Default::default()
            };
            let (limit, complaints) = memory_bound(&defaults, &asked, 0, UUID);
            assert_eq!(complaints, Vec::<String>::new());
            limit.total_bytes(8 << 30) >> 30
        };
        assert_eq!(told(4, vec![], "0=2G", ""), 8);
        assert_eq!(told(4, vec![1], "0=2G", ""), 8);
        assert_eq!(told(4, vec![0], "", ""), 4);
        assert_eq!(told(4, vec![0], "0=2G", ""), 2);
        assert_eq!(told(4, vec![], "", "3G"), 3);
        assert_eq!(told(4, vec![], "", "6G"), 4);
        assert_eq!(told(4, vec![], "0=1G", "0=3G,1=7G"), 1);
        assert_eq!(told(100, vec![], "", "90G"), 8);
    }
}
