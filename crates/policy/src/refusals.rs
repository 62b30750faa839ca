//! What of a client's refused requests is logged: the first of each kind; of the others only their
//! number.

/// A client's refusals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    said: Vec<u32>,
    silent: u64,
}

impl Refusals {
    /// Notes one, by its code; says whether it is to be logged.
    pub fn note(&mut self, code: u32) -> bool {
        if self.said.contains(&code) {
            self.silent += 1;
            return false;
        }
        self.said.push(code);
        true
    }

    /// How many were not logged.
    pub fn silent(&self) -> u64 {
        self.silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once() {
        let mut refusals = Refusals::default();
        assert!(refusals.note(2));
        assert!(!refusals.note(2));
        assert!(refusals.note(805));
        assert!(!refusals.note(805) && !refusals.note(2));
        assert_eq!(refusals.silent(), 3);
    }
}
