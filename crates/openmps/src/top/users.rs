//! Names of users, for the screen.

use std::collections::BTreeMap;
use std::fs;

/// Names by user id; of who has none here, the number is the name.
#[derive(Debug, Default)]
pub(super) struct Users(BTreeMap<u32, String>);

impl Users {
    /// Those that this system's file has: other sources of names are not asked, as an answer may
    /// take long.
    pub(super) fn of_this_system() -> Self {
        Self::parse(&fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    pub(super) fn parse(passwd: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = link::printable(fields.next()?);
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        // Of several names the first counts, as for the system.
        Self(passwd.lines().rev().filter_map(user).collect())
    }

    pub(super) fn name(&self, uid: u32) -> String {
        self.0.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_their_first_name_or_their_number() {
        let users = Users::parse("root:x:0:0::/:/bin/sh\ntoor:x:0:0\nnonsense\nann:x:1000:5\n");
        assert_eq!([0, 1000, 7].map(|uid| users.name(uid)), ["root", "ann", "7"]);
    }
}
