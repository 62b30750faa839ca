//! What Slurm writes of generic resources: `gpu:h100:2`, `gres:shard:3`, `gres/mps=50`,
//! `shard:3(IDX:0)`, separated by commas; and host lists.

/// How many of a resource a list names; a name without a number is one.
pub(crate) fn count(list: &str, resource: &str) -> Option<u32> {
    entries(list).filter_map(|entry| one(entry, resource)).reduce(u32::saturating_add)
}

/// Entries of a list, whose parentheses may have commas.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |c: char| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

fn one(entry: &str, resource: &str) -> Option<u32> {
    let entry = entry.trim();
    let entry = entry.split_once('(').map_or(entry, |(before, _)| before);
    let entry = entry.strip_prefix("gres:").or(entry.strip_prefix("gres/")).unwrap_or(entry);
    let rest = entry.strip_prefix(resource)?;
    if rest.is_empty() {
        return Some(1);
    }
    // A type may stand between the name and the number.
    let rest = rest.strip_prefix([':', '='])?;
    let last = rest.rsplit([':', '=']).next()?;
    match last.parse() {
        Ok(number) => Some(number),
        Err(_) if rest == last => Some(1),
        Err(_) => None,
    }
}

/// Whether a list of hosts, as `a,gpu[1-3,7]`, has this one.
pub(crate) fn has_host(list: &str, host: &str) -> bool {
    entries(list).any(|entry| match entry.split_once('[') {
        None => entry == host,
        Some((prefix, ranges)) => host
            .strip_prefix(prefix)
            .is_some_and(|number| in_ranges(number, ranges.trim_end_matches(']'))),
    })
}

/// Numbers keep their leading zeros.
fn in_ranges(number: &str, ranges: &str) -> bool {
    let value = |text: &str| text.parse::<u64>().ok();
    ranges.split(',').any(|range| match range.split_once('-') {
        None => range == number,
        Some((first, last)) => match (value(first), value(number), value(last)) {
            (Some(low), Some(wanted), Some(high)) => {
                (low..=high).contains(&wanted) && number.len() >= first.len()
            }
            _ => false,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_counted_in_every_spelling() {
        for (list, resource, expected) in [
            ("shard:3(IDX:0)", "shard", Some(3)),
            ("gres:shard:2", "shard", Some(2)),
            ("gres/gpu:1,gres/shard:h100:4", "shard", Some(4)),
            ("gres/mps=50", "mps", Some(50)),
            ("shard:soft:4(2/4,2/4)", "shard", Some(4)),
            ("shard:a:1,shard:b:2", "shard", Some(3)),
            ("gpu", "gpu", Some(1)),
            ("gpu:soft", "gpu", Some(1)),
            ("gpu:soft:2(IDX:0-1),mps:0(0/100,0/100)", "gpu", Some(2)),
            ("gpu:2", "shard", None),
            ("shards:2", "shard", None),
            ("(null)", "gpu", None),
            ("", "gpu", None),
            ("shard:a:x", "shard", None),
        ] {
            assert_eq!(count(list, resource), expected, "{list} {resource}");
        }
    }

    #[test]
    fn hosts_are_found_in_lists() {
        for (list, host, there) in [
            ("node0", "node0", true),
            ("node0", "node01", false),
            ("a,gpu[1-3,7]", "gpu2", true),
            ("a,gpu[1-3,7]", "gpu7", true),
            ("a,gpu[1-3,7]", "gpu4", false),
            ("gpu[001-010]", "gpu007", true),
            ("gpu[001-010]", "gpu7", false),
            ("", "gpu7", false),
        ] {
            assert_eq!(has_host(list, host), there, "{list} {host}");
        }
    }
}
