//! Whose subordinate user ids are: `/etc/subuid` (subuid(5)), which says what ids a user may give
//! to the user namespaces that it makes.
//!
//! A user has them outside of such namespaces, too: a file that belongs to one of them there and
//! sets its user id is a program of that id everywhere.

/// Names under which root's container engines have ranges: Podman's `--userns=auto`, Docker's
/// `userns-remap`, Kubernetes', LXD's.
const ENGINES: [&str; 4] = ["containers", "dockremap", "kubelet", "lxd"];

/// The subordinate ids of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubordinateIds {
    ranges: Vec<Range>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
    user: u32,
}

impl SubordinateIds {
    /// What these files say; `passwd` has the ids of the users whom `subuid` names. Users who are
    /// not there (a directory service has them) have their first subordinate id in place of theirs:
    /// so all of one's count as one. What root or its container engines have is for containers,
    /// each of which may be another's.
    pub fn parse(subuid: &str, passwd: &str) -> Self {
        let mut ranges: Vec<Range> = Vec::new();
        let mut unknown: Vec<(&str, u32)> = Vec::new();
        for line in subuid.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.splitn(3, ':');
            let (Some(name), Some(first), Some(count)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let (Ok(first), Ok(count)) = (first.trim().parse(), count.trim().parse()) else {
                continue;
            };
            if ENGINES.contains(&name) {
                continue;
            }
            let known = user_id(passwd, name).or_else(|| name.parse().ok());
            let user = known.unwrap_or_else(|| {
                let earlier = unknown.iter().find(|(known, _)| *known == name).map(|(_, id)| *id);
                earlier.unwrap_or_else(|| {
                    unknown.push((name, first));
                    first
                })
            });
            if user != 0 {
                ranges.push(Range { first, count, user });
            }
        }
        Self { ranges }
    }

    /// The user who has this id.
    pub fn owner(&self, id: u32) -> Option<u32> {
        let has = |range: &&Range| id.checked_sub(range.first).is_some_and(|at| at < range.count);
        self.ranges.iter().find(has).map(|range| range.user)
    }
}

fn user_id(passwd: &str, name: &str) -> Option<u32> {
    let named = passwd.lines().map(|line| line.split(':'));
    let mut fields =
        named.into_iter().find_map(|mut fields| (fields.next()? == name).then_some(fields))?;
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n";

    #[test]
    fn all_ids_of_a_user_are_that_users() {
        let subuid = "# comment\nroot:100000:65536\nalice:100000:65536\n1001:165536:10\nalice:300000:1\nnonsense\n";
        let ids = SubordinateIds::parse(subuid, PASSWD);
        assert_eq!(ids.owner(99_999), None);
        assert_eq!([100_000, 165_535, 300_000].map(|id| ids.owner(id)), [Some(1000); 3]);
        assert_eq!([165_536, 165_545].map(|id| ids.owner(id)), [Some(1001); 2]);
        assert_eq!([165_546, 1000, 0].map(|id| ids.owner(id)), [None; 3]);
    }

    #[test]
    fn a_user_of_a_directory_service_is_one_user_and_root_is_nobody() {
        let subuid = "carol:200000:10\ndave:300000:10\ncarol:400000:10\nroot:500000:10\n0:500000:10\ncontainers:600000:10\nmax:4294967290:100";
        let ids = SubordinateIds::parse(subuid, PASSWD);
        assert_eq!([200_005, 400_005].map(|id| ids.owner(id)), [Some(200_000); 2]);
        assert_eq!(ids.owner(300_005), Some(300_000));
        assert_eq!([500_005, 600_005].map(|id| ids.owner(id)), [None; 2]);
        assert_eq!(ids.owner(u32::MAX), Some(4_294_967_290));
    }
}
