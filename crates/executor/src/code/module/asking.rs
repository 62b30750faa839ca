//! Addresses of variables that the client has asked for.
//!
//! In another context the variable lies elsewhere. What the client has then stays valid if the
//! variable is one that is only copied to ([`policy::faults::followed_addresses`]): copies, fills
//! and the like go to where it is now ([`State::reach`]). A kernel that is given such an address
//! gets the one of this context. It could store that, which is written down, since the next
//! executor must know it.

use super::commands::name_in;
use crate::session::failure::{Failure, INVALID};
use crate::session::state::State;
use cuda_abi::types::CUresult;
use executor_link::log::log_server;
use link::wire::command::{GlobalGet, GlobalGetReply};
use policy::faults::followed_addresses::are_copied_to;
use std::borrow::Cow;

/// Marks entries of the journal that are no command: the address of a variable as the client was
/// told, and as kernels were given it.
pub(crate) const GIVEN: u16 = u16::MAX - 2;

/// A variable of which the client has the address.
#[derive(Debug)]
pub(super) struct AskedFor {
    pub(super) name: String,
    /// Its first address, as the client was told.
    told: u64,
    size_bytes: u64,
    /// Why it must stay where it is, if it must.
    pub(super) kept: Option<Kept>,
}

/// Why a variable must stay where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// The client has its address, and may do anything with it.
    Asked,
    /// Kernels were given its address.
    Given,
}

impl AskedFor {
    /// Whether it has any of these bytes, as the client names them.
    pub(super) fn is_met_by(&self, address: u64, size_bytes: u64) -> bool {
        address < self.told.saturating_add(self.size_bytes)
            && self.told < address.saturating_add(size_bytes)
    }
}

impl State {
    pub(crate) fn global_get(&mut self, wanted: GlobalGet, rest: &[u8]) -> Result<(), Failure> {
        let told_before = self.modules.told_before.take();
        let name = name_in(rest, wanted.name_bytes)?;
        // What a guard adds to code is not the program's, and says where the guard's records lie.
        if name.to_bytes().starts_with(ptx_guard::PREFIX.as_bytes()) {
            return Err(Failure::Cuda(CUresult::ERROR_NOT_FOUND));
        }
        let library = self.modules.library(wanted.module)?;
        let (mut present, mut size) = (0, 0);
        let driver = self.driver();
        // SAFETY: a live library; both results are written.
        let managed =
            unsafe { driver.cuLibraryGetManaged(&mut present, &mut size, library, name.as_ptr()) };
        let is_managed = managed.is_success();
        if !is_managed {
            // SAFETY: as above.
            self.check(unsafe {
                driver.cuLibraryGetGlobal(&mut present, &mut size, library, name.as_ptr())
            })?;
        }
        let is_followed = !is_managed && self.guard.is_off() && are_copied_to(name.to_bytes());
        let variable = AskedFor {
            name: name.to_string_lossy().into_owned(),
            told: told_before.filter(|_| is_followed).unwrap_or(present),
            size_bytes: size as u64,
            kept: (!is_followed).then_some(Kept::Asked),
        };
        let address = self.tell_address(wanted.module, variable, present)?;
        let reply = GlobalGetReply {
            address,
            size_bytes: size as u64,
            managed: is_managed.into(),
            reserved: 0,
        };
        self.answer(&reply)
    }

    /// The client may name a variable that is here now: where it is told that it is.
    fn tell_address(
        &mut self,
        number: u32,
        variable: AskedFor,
        present: u64,
    ) -> Result<u64, Failure> {
        let (told, size_bytes) = (variable.told, variable.size_bytes);
        let Some(module) = self.modules.modules.get_mut(&number) else { return Ok(told) };
        let asked_for = &mut module.asked_for;
        if let Some(known) = asked_for.iter_mut().find(|it| it.name == variable.name) {
            return Ok(known.told);
        }
        let is_here = self.memory.followed.present_start(told).is_none_or(|at| at == present);
        if let Some(known) = asked_for
            .iter_mut()
            .find(|it| (it.told, it.size_bytes) == (told, size_bytes) && is_here)
        {
            // Another name of the same.
            known.kept = known.kept.or(variable.kept);
            return Ok(told);
        }
        if self.memory.followed.meet(told, size_bytes) {
            let name = &variable.name;
            log_server!(
                "{}: {name} is where the program was told that another variable is",
                self.handle.label
            );
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        let is_new = self.memory.addressable.insert(told, size_bytes);
        if variable.kept.is_none()
            && !(is_new && self.memory.followed.insert(told, size_bytes, present))
        {
            return Err(INVALID);
        }
        if is_new {
            asked_for.push(variable);
            if !self.modules.asked.contains(&number) {
                self.modules.asked.push(number);
            }
        }
        Ok(told)
    }

    /// The client may name these variables no more.
    pub(super) fn forget_addresses(&mut self, variables: &[AskedFor]) {
        for variable in variables {
            self.memory.addressable.remove(variable.told, variable.size_bytes);
            self.memory.followed.remove(variable.told);
        }
    }

    /// Where memory is that the client names, and may.
    pub(crate) fn reach(&self, at: u64, size_bytes: u64) -> Result<u64, Failure> {
        if !self.memory.addressable.contain(at, size_bytes) {
            return Err(INVALID);
        }
        if self.memory.followed.is_empty() {
            return Ok(at);
        }
        self.memory.followed.present(at, size_bytes).ok_or(INVALID)
    }

    /// Whether parameters of a kernel could have the address of a variable that is followed.
    #[inline]
    pub(crate) fn names_followed(&self, parameters: &[u8]) -> bool {
        !self.memory.followed.is_empty() && self.memory.followed.are_named_by(parameters)
    }

    /// Parameters as a kernel gets them.
    pub(crate) fn given<'a>(&mut self, parameters: &'a [u8]) -> Result<Cow<'a, [u8]>, Failure> {
        if !self.names_followed(parameters) {
            return Ok(Cow::Borrowed(parameters));
        }
        self.give_addresses(parameters)?;
        Ok(self.present_parameters(parameters))
    }

    /// A kernel is about to get these parameters: notes the addresses that it could store.
    pub(crate) fn give_addresses(&mut self, parameters: &[u8]) -> Result<(), Failure> {
        let named: Vec<u64> = self.memory.followed.named_by(parameters).collect();
        for told in named {
            if self.keep_given(told) && !self.records.replaying {
                let present = self.memory.followed.present_start(told).unwrap_or(told);
                self.note_given(told, present)?;
            }
        }
        Ok(())
    }

    /// The variable must stay where it is; says whether that is new.
    fn keep_given(&mut self, told: u64) -> bool {
        let variables = self.modules.modules.values_mut().flat_map(|it| &mut it.asked_for);
        let mut new = variables.filter(|it| it.told == told && it.kept.is_none());
        new.next().is_some_and(|variable| variable.kept.replace(Kept::Given).is_none())
    }

    /// The same parameters with the addresses of this context.
    pub(crate) fn present_parameters<'a>(&self, parameters: &'a [u8]) -> Cow<'a, [u8]> {
        match self.memory.followed.replaced(parameters) {
            Some(replaced) => Cow::Owned(replaced),
            None => Cow::Borrowed(parameters),
        }
    }

    /// Kernels were given an address, as an entry says: whether it is still right.
    pub(crate) fn is_given_still_right(&mut self, body: &[u8]) -> bool {
        let Some((told, given)) = body.split_first_chunk::<8>() else { return false };
        let Some(given) = given.first_chunk::<8>() else { return false };
        let (told, given) = (u64::from_le_bytes(*told), u64::from_le_bytes(*given));
        self.keep_given(told);
        self.memory.followed.present_start(told) == Some(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::{Bed, CODE_WITH_VARIABLE, load_of, submitted};
    use link::wire::command::{Launch, ModuleUnload, Opcode};
    use policy::faults::hindrance::Hindrance;
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    const MODULE: u32 = 7;
    /// The driver of these tests has it in each library.
    const FOLLOWED: &[u8] = b"_ZN6cublas8internal15deviceConstantsE";
    /// Where the variable was in another context.
    const BEFORE: u64 = 0x7e00_0000_1000;

    fn ask(state: &mut State, name: &[u8]) -> Result<u64, Failure> {
        state.reply.clear();
        let wanted = GlobalGet { module: MODULE, name_bytes: name.len() as u32 };
        state.global_get(wanted, name)?;
        Ok(GlobalGetReply::read_from_bytes(&state.reply).unwrap().address)
    }

    /// Asks as the next executor does: the client was told [`BEFORE`].
    fn ask_again(state: &mut State, name: &[u8]) -> Result<u64, Failure> {
        let code = CODE_WITH_VARIABLE;
        state.load_image(load_of(MODULE, code), code.to_vec(), None).unwrap();
        state.modules.told_before = Some(BEFORE);
        ask(state, name)
    }

    fn give(state: &mut State, parameters: &[u64]) {
        let launch = Launch {
            function: 0,
            stream: 0,
            grid: [1; 3],
            block: [32, 1, 1],
            dynamic_shared_bytes: 0,
            parameter_bytes: 8 * parameters.len() as u32,
            attributes: 0,
            reserved: 0,
        };
        state.launch(&launch, parameters.as_bytes(), None).unwrap();
    }

    #[test]
    fn an_address_that_was_told_leads_to_where_the_variable_is() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        assert_eq!(ask_again(state, FOLLOWED).unwrap(), BEFORE);
        let present = state.memory.followed.present_start(BEFORE).unwrap();
        assert_ne!(present, BEFORE);
        assert_eq!(state.reach(BEFORE + 4, 4).unwrap(), present + 4);
        assert!(state.reach(BEFORE, 16).is_err() && state.reach(present, 8).is_err());
        assert_eq!(state.hindrance(), None);
        state.module_unload(ModuleUnload { module: MODULE, reserved: 0 }).unwrap();
        assert!(state.reach(BEFORE, 8).is_err() && state.memory.followed.is_empty());
    }

    #[test]
    fn other_variables_are_told_where_they_are() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        assert_ne!(ask_again(state, b"x").unwrap(), BEFORE);
        assert_eq!(state.hindrance(), Some(Hindrance::Variables));
        assert!(state.memory.followed.is_empty());
    }

    #[test]
    fn a_session_stays_once_a_kernel_was_given_an_address() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        ask_again(state, FOLLOWED).unwrap();
        give(state, &[1, 2]);
        assert_eq!(state.hindrance(), None);
        let written = state.records.journal_bytes();
        give(state, &[1, BEFORE]);
        assert_eq!(state.hindrance(), Some(Hindrance::Variables));
        let name = String::from_utf8_lossy(FOLLOWED);
        assert_eq!(
            state.modules.kept_addresses(),
            format!("kernels were given the address of {name}")
        );
        assert!(state.records.journal_bytes() > written);
        let written = state.records.journal_bytes();
        give(state, &[BEFORE, BEFORE]);
        assert_eq!(state.records.journal_bytes(), written, "it is known");
    }

    #[test]
    fn launches_with_an_address_go_by_themselves() {
        let bed = Bed::new();
        let mut client = bed.open();
        ask_again(client.session.state(), FOLLOWED).unwrap();
        for (parameter, submissions) in [(BEFORE, 4), (BEFORE + 8, 1)] {
            let launch = Launch {
                grid: [1; 3],
                block: [32, 1, 1],
                parameter_bytes: 8,
                ..Launch::new_zeroed()
            };
            let body = [launch.as_bytes(), &parameter.to_ne_bytes()].concat();
            let counts = (0..64).map(|_| {
                (0..4).for_each(|_| client.post(Opcode::Launch, &body));
                let before = submitted();
                client.serve();
                submitted() - before
            });
            assert_eq!(counts.min(), Some(submissions), "{parameter:#x}");
        }
    }

    #[test]
    fn what_was_given_must_be_where_it_was() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        ask_again(state, FOLLOWED).unwrap();
        let present = state.memory.followed.present_start(BEFORE).unwrap();
        let given = |at: u64| [BEFORE.to_le_bytes(), at.to_le_bytes()].concat();
        assert!(state.is_given_still_right(&given(present)));
        assert!(!state.is_given_still_right(&given(BEFORE)));
        assert!(!state.is_given_still_right(&given(present)[..12]));
        assert_eq!(state.hindrance(), Some(Hindrance::Variables));
    }

    #[test]
    fn a_variable_where_another_was_said_to_be_is_refused() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        let code = CODE_WITH_VARIABLE;
        state.load_image(load_of(8, code), code.to_vec(), None).unwrap();
        ask_again(state, FOLLOWED).unwrap();
        // It says that the first one was where the second one is.
        let second =
            AskedFor { name: "y".into(), told: BEFORE, size_bytes: 8, kept: Some(Kept::Asked) };
        assert!(state.tell_address(8, second, BEFORE).is_err());
    }
}
