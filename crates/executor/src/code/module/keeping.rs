//! Which code keeps a session in its context: where its variables and functions are is the
//! context's to say, and something has their addresses that nobody can change.

use super::asking::Kept;
use super::*;
use std::fmt::Write;

/// What is told in one line of the log.
const MOST_MODULES: usize = 3;
const MOST_CHARACTERS: usize = 80;

impl Modules {
    /// Whether the client has addresses of variables that are not followed, or kernels that have
    /// run could have stored some.
    pub(crate) fn are_addresses_kept(&self) -> bool {
        self.modules.values().any(Module::are_addresses_kept)
    }

    /// How many modules are the reason.
    pub(crate) fn keeping(&self) -> usize {
        self.modules.values().filter(|it| it.are_addresses_kept()).count()
    }

    /// Why, for the log.
    pub(crate) fn kept_addresses(&self) -> String {
        let mut keeping: Vec<_> =
            self.modules.iter().filter(|(_, it)| it.are_addresses_kept()).collect();
        keeping.sort_unstable_by_key(|(number, _)| **number);
        let mut text = String::new();
        for (number, (_, module)) in keeping.iter().take(MOST_MODULES).enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            let kept = module.asked_for.iter().find_map(|it| Some((it.kept?, &it.name)));
            let _ = match (kept, &module.values.variables) {
                (Some((Kept::Asked, name)), _) => {
                    write!(
                        text,
                        "{separator}the program has asked where {name:.MOST_CHARACTERS$} is"
                    )
                }
                (Some((Kept::Given, name)), _) => {
                    write!(
                        text,
                        "{separator}kernels were given the address of {name:.MOST_CHARACTERS$}"
                    )
                }
                (None, Variables::Unknown) if !module.storable.are_any() => {
                    write!(text, "{separator}they cannot be read")
                }
                (None, _) => {
                    write!(
                        text,
                        "{separator}kernels could have stored the address of {}",
                        module.storable
                    )
                }
            };
        }
        match keeping.len().saturating_sub(MOST_MODULES) {
            0 => {}
            more => drop(write!(text, "; {more} more modules")),
        }
        text
    }
}

impl Module {
    fn are_addresses_kept(&self) -> bool {
        let cannot_be_read = matches!(self.values.variables, Variables::Unknown);
        let is_kept = self.asked_for.iter().any(|variable| variable.kept.is_some());
        is_kept || self.has_run && (self.storable.are_any() || cannot_be_read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::state::State;
    use crate::testbed::{Bed, CODE_WITH_VARIABLE, hide_variables, load_of};
    use link::wire::command::GlobalGet;
    use policy::faults::hindrance::Hindrance;

    const MODULE: u32 = 7;
    /// A kernel that stores the address of a variable, and one that stores a function's.
    const STORING: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64\n\
        .visible .global .align 8 .u64 x = 5;\n.visible .entry f() { st.global.u64 [%rd1], x; ret; }\n\0";
    const STORING_FUNCTION: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64\n\
        .func g() { ret; }\n.visible .entry f() { mov.u64 %rd1, g; st.global.u64 [%rd2], %rd1; ret; }\n\0";

    fn load(state: &mut State, code: &[u8]) {
        state.load_image(load_of(MODULE, code), code.to_vec(), None).unwrap();
    }

    #[test]
    fn variables_that_kernels_use_go_along() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        load(state, CODE_WITH_VARIABLE);
        assert_eq!(state.hindrance(), None);
        state.touch_variables(Touch::All);
        assert_eq!(state.hindrance(), None);
        // What they are is saved before the session goes, if it was not yet.
        assert!(state.standing.has_unsaved());
        assert_eq!(state.prepare_to_leave(), Ok(()));
        assert!(!state.standing.has_unsaved());
    }

    #[test]
    fn a_session_stays_once_its_client_knows_where_a_variable_is() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        load(state, CODE_WITH_VARIABLE);
        state.global_get(GlobalGet { module: MODULE, name_bytes: 1 }, b"x").unwrap();
        assert_eq!(state.hindrance(), Some(Hindrance::Variables));
        assert_eq!(state.modules.kept_addresses(), "the program has asked where x is");
    }

    #[test]
    fn a_session_stays_once_kernels_have_run_that_could_store_an_address() {
        let bed = Bed::new();
        for (code, name) in [(STORING, "x"), (STORING_FUNCTION, "g")] {
            let mut client = bed.open();
            let state = client.session.state();
            load(state, code);
            assert_eq!(state.hindrance(), None);
            state.touch_written(0, 8);
            assert_eq!(state.hindrance(), None, "a copy stores no address of code");
            state.touch_variables(Touch::All);
            assert_eq!(state.hindrance(), Some(Hindrance::Variables));
            let said = format!("kernels could have stored the address of {name}");
            assert_eq!(state.modules.kept_addresses(), said);
        }
    }

    #[test]
    fn a_session_stays_with_variables_that_cannot_be_read() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        hide_variables();
        load(state, CODE_WITH_VARIABLE);
        state.touch_variables(Touch::All);
        assert_eq!(state.hindrance(), Some(Hindrance::Variables));
        assert_eq!(state.modules.kept_addresses(), "they cannot be read");
    }
}
