//! Limits of groups as text: in the daemon's environment and the settings file,
//! `NAME memory=4G sm-percent=30 weight=3; ...`.

use std::collections::BTreeMap;

use link::wire::shares::{
    GroupLimits, MAX_GROUPS, MAX_PROFILES, MemoryLimit, check_name, check_profile_name,
};
use settings::{DeviceRef, Memory, Percentage, WEIGHT, parse_memory_list};

/// Reads profiles as groups are written: `NAME memory=4G sm-percent=30; ...`.
///
/// # Errors
/// A message that names what is wrong.
pub fn parse_profiles(text: &str) -> Result<Vec<GroupLimits>, String> {
    let profiles = parse_groups(text).map_err(|error| error.replacen("group", "profile", 1))?;
    if profiles.len() > MAX_PROFILES {
        let count = profiles.len();
        return Err(format!("{count} profiles are too many: give at most {MAX_PROFILES}"));
    }
    for profile in &profiles {
        check_profile_name(&profile.name).map_err(|error| error.to_string())?;
    }
    Ok(profiles)
}

/// Reads `NAME memory=4G sm-percent=30; NAME memory=0=1G,1=512M`: groups separated by semicolons,
/// the first word of each its name.
///
/// # Errors
/// A message that names what is wrong.
pub fn parse_groups(text: &str) -> Result<Vec<GroupLimits>, String> {
    let mut groups: BTreeMap<String, GroupLimits> = BTreeMap::new();
    for entry in text.split(';').filter(|entry| !entry.trim().is_empty()) {
        let mut words = entry.split_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        check_name(&name).map_err(|error| error.to_string())?;
        let mut group = GroupLimits { name: name.clone(), ..Default::default() };
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let wrong = |error: &dyn std::fmt::Display| format!("group {name}: {error}");
            match key {
                "memory" if value.contains('=') => {
                    let list = parse_memory_list(value).map_err(|e| wrong(&e))?;
                    for (device, size) in list {
                        let DeviceRef::Ordinal(device) = device else {
                            return Err(wrong(&"give devices by number"));
                        };
                        group.memory.push(limit(Some(device), size));
                    }
                }
                "memory" => {
                    group.memory.push(limit(None, value.parse::<Memory>().map_err(|e| wrong(&e))?));
                }
                "sm-percent" => {
                    let share: Percentage = value.parse().map_err(|e| wrong(&e))?;
                    group.percentage = (share.percent() < 100.0).then_some(share.percent());
                }
                "weight" => {
                    let weight = WEIGHT.number(value).map_err(|e| wrong(&e))?;
                    group.weight = Some(weight as u32);
                }
                _ => {
                    return Err(wrong(&format!(
                        "`{word}` is no limit: give memory=SIZE, sm-percent=PERCENT or weight=NUMBER"
                    )));
                }
            }
        }
        if groups.insert(name.clone(), group).is_some() {
            return Err(format!("group {name} is named twice"));
        }
    }
    if groups.len() > MAX_GROUPS {
        return Err(format!("{} groups are too many: give at most {MAX_GROUPS}", groups.len()));
    }
    Ok(groups.into_values().collect())
}

fn limit(device: Option<u32>, size: Memory) -> MemoryLimit {
    MemoryLimit { device, limit_bytes: size.limit_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_and_mistakes_are_named() {
        let groups =
            parse_groups("a memory=4G sm-percent=30 weight=3; /k8s/* memory=0=1G,1=512M;").unwrap();
        assert_eq!(groups.len(), 2);
        let all = MemoryLimit { device: None, limit_bytes: Some(4 << 30) };
        assert_eq!((groups[1].percentage, groups[1].memory.as_slice()), (Some(30.0), &[all][..]));
        assert_eq!((groups[0].weight, groups[1].weight), (None, Some(3)));
        assert_eq!(groups[0].memory[1].limit_bytes, Some(512 << 20));
        assert_eq!(parse_groups(" "), Ok(Vec::new()));
        for (text, named) in [
            ("a memory=3X", "3X"),
            ("a sm-percent=0", "0"),
            ("a weight=1001", "1001"),
            ("a; a", "twice"),
            ("a color=red", "color"),
            ("a memory=GPU-x=1G", "number"),
        ] {
            let error = parse_groups(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
