//! The limits that a client's environment and the server's defaults set: a client can only ask for less.

use super::fairness::DEFAULT_WEIGHT;
use super::priorities::Class;
use link::wire::attach::RequestedLimits;
use link::wire::daemon::Defaults;
use link::wire::shares::MOST_WEIGHT;

/// A client's limit of device memory on the device of this index and UUID: the smaller of the server's default and its own wish.
/// A wish that cannot be read counts as none; the second value says so, for the log.
pub fn memory_limit_bytes(
    defaults: &Defaults,
    requested: &RequestedLimits,
    index: u32,
    uuid: &str,
) -> (Option<u64>, Option<String>) {
    let default = defaults.pinned_device_mem_limits_bytes.iter();
    let default = default.filter(|&&(device, _)| device == index).map(|&(_, bytes)| bytes).min();
    let (wish, complaint) =
        match requested.pinned_device_mem_limit.as_deref().map(parse_memory_limits) {
            None => (None, None),
            Some(Ok(limits)) => {
                let here = limits.iter().filter(|(device, _)| device.is(index, uuid));
                (here.map(|&(_, bytes)| bytes).min(), None)
            }
            Some(Err(message)) => (None, Some(message)),
        };
    (default.into_iter().chain(wish).min(), complaint)
}

/// The share of the SMs that a client's settings allow it, in per cent: the smaller of the server's default and its own wish.
/// A wish that is no percentage counts as none, as the original has it. Where contexts have shares of their own the variable is
/// each context's: see [`context_percentage`].
pub fn active_thread_percentage(defaults: &Defaults, requested: &RequestedLimits) -> f64 {
    let wish = requested.active_thread_percentage.as_deref().and_then(percentage);
    let wish = wish.filter(|_| !is_partitioned(requested));
    defaults.active_thread_percentage.unwrap_or(100.0).min(wish.unwrap_or(100.0))
}

/// The weight that a client asks for; what is no number from 1 to [`MOST_WEIGHT`] counts as nothing said.
pub fn weight(requested: &RequestedLimits) -> u32 {
    let wish = requested.weight.as_deref().and_then(|text| text.trim().parse().ok());
    wish.filter(|weight| (1..=MOST_WEIGHT).contains(weight)).unwrap_or(DEFAULT_WEIGHT)
}

/// Whether a client's kernels are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum GuardMode {
    /// Not.
    #[default]
    Off,
    /// Those that can be; others run as they are.
    On,
    /// Those that cannot be are refused.
    Strict,
}

/// What `OPENMPS_GUARD` asks for.
pub fn guard_mode(requested: &RequestedLimits) -> GuardMode {
    match requested.guard.as_deref().map(str::trim) {
        Some("1") => GuardMode::On,
        Some("strict") => GuardMode::Strict,
        _ => GuardMode::Off,
    }
}

/// Whether a client asks for the latency class.
pub fn latency_class(requested: &RequestedLimits) -> Class {
    match requested.latency.as_deref().map(str::trim) {
        Some("1") => Class::Latency,
        _ => Class::Throughput,
    }
}

/// The priority that a client's settings give it: 0 normal, 1 below normal. Its own wish comes first.
pub fn client_priority(defaults: &Defaults, requested: &RequestedLimits) -> u32 {
    let wish = requested.client_priority.as_deref().and_then(|text| text.trim().parse().ok());
    wish.filter(|priority| *priority <= 1).or(defaults.client_priority).unwrap_or(0)
}

/// The share of one context: at most the client's, and at most what the environment said when the context was made.
pub fn context_percentage(of_client: f64, requested: Option<&str>) -> f64 {
    let wish = requested.and_then(percentage);
    wish.map_or(of_client, |wish| wish.min(of_client))
}

/// Whether a client's contexts may have shares of their own.
pub fn is_partitioned(requested: &RequestedLimits) -> bool {
    requested.per_context_partitioning.as_deref().is_some_and(|text| text.trim() == "1")
}

/// `CUDA_DEVICE_MAX_CONNECTIONS`: 1 to 32 hardware queues.
pub fn connections(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|number| (1..=32).contains(number))
}

fn percentage(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0)
}

/// A device as a list of limits names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The server's number of it.
    Index(u32),
    /// Its UUID or the beginning of that, `GPU-` included.
    Uuid(String),
}

impl DeviceName {
    fn is(&self, index: u32, uuid: &str) -> bool {
        match self {
            Self::Index(named) => *named == index,
            Self::Uuid(prefix) => {
                uuid.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
            }
        }
    }
}

/// Reads `0=1G,GPU-12ab=512MB` as (device, bytes); K, M and G count by 1024 and may be followed by B, a bare number is MiB, as in the
/// shell. Quotes around the whole are ignored: the guide's example has them.
///
/// # Errors
/// A message that names the part that is wrong.
pub fn parse_memory_limits(text: &str) -> Result<Vec<(DeviceName, u64)>, String> {
    let parts = text.split(',').map(|part| part.trim().trim_matches(['\'', '"']));
    parts.filter(|part| !part.is_empty()).map(parse_one).collect()
}

fn parse_one(part: &str) -> Result<(DeviceName, u64), String> {
    let wrong = || format!("memory limit '{part}' is not of the form DEVICE=SIZE, as in 0=1G");
    let (device, size) = part.split_once('=').ok_or_else(wrong)?;
    let device = match device.trim() {
        uuid if ["GPU-", "MIG-"].iter().any(|kind| uuid.starts_with(kind) && uuid.len() > 4) => {
            DeviceName::Uuid(uuid.to_owned())
        }
        index => DeviceName::Index(index.parse().map_err(|_| wrong())?),
    };
    Ok((device, parse_size_bytes(size.trim()).ok_or_else(wrong)?))
}

pub(crate) fn parse_size_bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_uppercase();
    let text = text.strip_suffix('B').unwrap_or(&text);
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1 << 20,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-abcdef01-0000";

    #[test]
    fn sizes_have_units_and_devices_names() {
        let read = parse_memory_limits("'0=1G, GPU-ab=512MB,2=100'").unwrap();
        let index = DeviceName::Index;
        let expected = [
            (index(0), 1 << 30),
            (DeviceName::Uuid("GPU-ab".into()), 512 << 20),
            (index(2), 100 << 20),
        ];
        assert_eq!(read, expected);
        assert_eq!(parse_memory_limits(""), Ok(vec![]));
        for wrong in [
            "1G",
            "0=",
            "0=3X",
            "x=1G",
            "0=-1",
            "GPU-=1G",
            "0=99999999999999999999",
            "0=99999999999G",
        ] {
            assert!(parse_memory_limits(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn contexts_have_shares_of_their_own_where_that_was_asked_for() {
        let defaults = Defaults { active_thread_percentage: Some(50.0), ..Defaults::default() };
        let asks = |partitioned: Option<&str>| RequestedLimits {
            active_thread_percentage: Some("20".into()),
            per_context_partitioning: partitioned.map(str::to_owned),
            ..Default::default()
        };
        assert_eq!(active_thread_percentage(&defaults, &asks(None)), 20.0);
        assert_eq!(active_thread_percentage(&defaults, &asks(Some("0"))), 20.0);
        let of_client = active_thread_percentage(&defaults, &asks(Some("1")));
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
        let modes = ["1", "strict", "0", "yes"].map(guarded);
        assert_eq!(modes, [GuardMode::On, GuardMode::Strict, GuardMode::Off, GuardMode::Off]);
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
        for (text, percent) in [("25", 25.0), ("75", 50.0), ("0", 50.0), ("x", 50.0), ("NaN", 50.0)]
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
        assert_eq!(memory_limit_bytes(&defaults, &asks("0=1G"), 0, UUID), (Some(1 << 30), None));
        assert_eq!(memory_limit_bytes(&defaults, &asks("0=4G"), 0, UUID), (Some(2 << 30), None));
        assert_eq!(memory_limit_bytes(&defaults, &asks("1=1G"), 1, UUID), (Some(1 << 30), None));
        assert_eq!(memory_limit_bytes(&defaults, &asks("1=1G"), 2, UUID), (None, None));
        let by_uuid = asks("GPU-AB=3G,GPU-x=1,0=1536M");
        assert_eq!(memory_limit_bytes(&defaults, &by_uuid, 0, UUID), (Some(1536 << 20), None));
        assert_eq!(
            memory_limit_bytes(&defaults, &asks("GPU-abc=1G"), 0, UUID),
            (Some(1 << 30), None)
        );
        let (limit, complaint) = memory_limit_bytes(&defaults, &asks("junk"), 0, UUID);
        assert_eq!(limit, Some(2 << 30));
        assert!(complaint.unwrap().contains("junk"));
    }
}
