//! The limits that a client's environment and the server's defaults set: a client can only ask for less.

use link::wire::attach::RequestedLimits;
use link::wire::daemon::Defaults;

/// A client's limit of device memory on `device`: the smaller of the server's default and its own wish.
/// A wish that cannot be read counts as none; the second value says so, for the log.
pub fn memory_limit_bytes(
    defaults: &Defaults,
    requested: &RequestedLimits,
    device: u32,
) -> (Option<u64>, Option<String>) {
    let default = defaults
        .pinned_device_mem_limits_bytes
        .iter()
        .find(|&&(index, _)| index == device)
        .map(|&(_, bytes)| bytes);
    let (wish, complaint) =
        match requested.pinned_device_mem_limit.as_deref().map(parse_memory_limits) {
            None => (None, None),
            Some(Ok(limits)) => {
                (limits.iter().find(|&&(index, _)| index == device).map(|&(_, bytes)| bytes), None)
            }
            Some(Err(message)) => (None, Some(message)),
        };
    let limit = match (default, wish) {
        (Some(default), Some(wish)) => Some(default.min(wish)),
        (one, other) => one.or(other),
    };
    (limit, complaint)
}

/// The share of the SMs that a client's settings allow it, in per cent: the smaller of the server's default and its own wish.
/// A wish that is no percentage counts as none, as the original has it.
pub fn active_thread_percentage(defaults: &Defaults, requested: &RequestedLimits) -> f64 {
    let wish =
        requested.active_thread_percentage.as_deref().and_then(|text| text.trim().parse().ok());
    let wish = wish.filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
    defaults.active_thread_percentage.unwrap_or(100.0).min(wish.unwrap_or(100.0))
}

/// The priority that a client's settings give it: 0 normal, 1 below normal. Its own wish comes first.
pub fn client_priority(defaults: &Defaults, requested: &RequestedLimits) -> u32 {
    let wish = requested.client_priority.as_deref().and_then(|text| text.trim().parse().ok());
    wish.filter(|priority| *priority <= 1).or(defaults.client_priority).unwrap_or(0)
}

/// Reads `0=1G,1=512M` as (device, bytes); K, M and G count by 1024, and may be followed by B.
///
/// # Errors
/// A message that names the part that is wrong.
pub fn parse_memory_limits(text: &str) -> Result<Vec<(u32, u64)>, String> {
    text.split(',').filter(|part| !part.trim().is_empty()).map(parse_one).collect()
}

fn parse_one(part: &str) -> Result<(u32, u64), String> {
    let wrong =
        || format!("memory limit '{}' is not of the form DEVICE=SIZE, as in 0=1G", part.trim());
    let (device, size) = part.split_once('=').ok_or_else(wrong)?;
    let device = device.trim().parse().map_err(|_| wrong())?;
    Ok((device, parse_size_bytes(size.trim()).ok_or_else(wrong)?))
}

fn parse_size_bytes(text: &str) -> Option<u64> {
    let text = text.to_ascii_uppercase();
    let text = text.strip_suffix('B').unwrap_or(&text);
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
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

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            parse_memory_limits("0=1G, 1=512MB,2=100"),
            Ok(vec![(0, 1 << 30), (1, 512 << 20), (2, 100)])
        );
        assert_eq!(parse_memory_limits(""), Ok(vec![]));
        for wrong in
            ["1G", "0=", "0=3X", "x=1G", "0=-1", "0=99999999999999999999", "0=99999999999G"]
        {
            assert!(parse_memory_limits(wrong).is_err(), "{wrong}");
        }
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
        assert_eq!(memory_limit_bytes(&defaults, &asks("0=1G"), 0), (Some(1 << 30), None));
        assert_eq!(memory_limit_bytes(&defaults, &asks("0=4G"), 0), (Some(2 << 30), None));
        assert_eq!(memory_limit_bytes(&defaults, &asks("1=1G"), 1), (Some(1 << 30), None));
        assert_eq!(memory_limit_bytes(&defaults, &asks("1=1G"), 2), (None, None));
        let (limit, complaint) = memory_limit_bytes(&defaults, &asks("junk"), 0);
        assert_eq!(limit, Some(2 << 30));
        assert!(complaint.unwrap().contains("junk"));
    }
}
