//! Code with variables, made like new for its next owner: what loading set is read when it was
//! loaded, and written again when its owner has given it up.
//!
//! All of it by copies and fills on the session's own stream, which hold up nobody; and at once, so
//! that whatever is kept is like new and nobody ever sees what another client's variables were.
//! Code whose kernels may still run waits for their end, since they could write to it afterwards.
//! What cannot be told whole (managed variables, references to textures, names that the driver does
//! not know) is not kept: see [`policy::faults::code_state::all_variables`].

mod renewing;

use cuda_abi::types::*;

/// Memory as the driver set it when it loaded code.
#[derive(Debug)]
pub(crate) struct Initial(Vec<(CUdeviceptr, Contents)>);

#[derive(Debug)]
enum Contents {
    /// So many bytes.
    Zeros(usize),
    Bytes(Vec<u8>),
}

impl Contents {
    fn new(bytes: Vec<u8>) -> Self {
        match bytes.iter().all(|byte| *byte == 0) {
            true => Self::Zeros(bytes.len()),
            false => Self::Bytes(bytes),
        }
    }
}

/// A function's attribute that its owner has changed, as it was before.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) function: CUfunction,
    pub(crate) kernel: CUkernel,
    pub(crate) attribute: i32,
    value: i32,
    /// That of the kernel, where it has such an attribute.
    of_kernel: Option<i32>,
}

#[cfg(test)]
mod tests {
    use crate::session::state::State;
    use crate::testbed;
    use crate::testbed::{Bed, CODE_WITH_VARIABLE, LOADED_VALUE, load_of};
    use cuda_abi::types::CUdeviceptr;
    use link::wire::command::{FunctionGet, GlobalGet, GlobalGetReply, ModuleUnload};
    use zerocopy::FromBytes;

    const MODULE: u32 = 7;
    const SECRET: u64 = 0x5ec2e7;

    fn load(state: &mut State) {
        let load = load_of(MODULE, CODE_WITH_VARIABLE);
        state.load_image(load, CODE_WITH_VARIABLE.to_vec(), None).unwrap();
        let get = FunctionGet { module: MODULE, function: MODULE, name_bytes: 1, reserved: 0 };
        state.function_get(get, b"f").unwrap();
    }

    fn unload(state: &mut State) {
        state.module_unload(ModuleUnload { module: MODULE, reserved: 0 }).unwrap();
    }

    /// Where the variable is, as the client is told.
    fn variable(state: &mut State) -> CUdeviceptr {
        state.reply.clear();
        state.global_get(GlobalGet { module: MODULE, name_bytes: 1 }, b"x").unwrap();
        GlobalGetReply::ref_from_bytes(&state.reply).unwrap().address
    }

    fn value(at: CUdeviceptr) -> u64 {
        // SAFETY: a variable of this thread's driver, which is loaded.
        unsafe { std::ptr::with_exposed_provenance::<u64>(at as usize).read() }
    }

    /// As a kernel does.
    fn set(at: CUdeviceptr, value: u64) {
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at as usize).write(value) };
    }

    #[test]
    fn the_next_to_load_the_same_finds_it_as_it_was_loaded_and_nothing_is_loaded() {
        let bed = Bed::new();
        let [mut one, mut other] = [bed.open(), bed.open()];
        load(one.session.state());
        let first = testbed::loaded();
        let at = variable(one.session.state());
        assert_eq!(value(at), LOADED_VALUE);
        for round in 0..3 {
            set(at, SECRET + round);
            unload(one.session.state());
            assert_eq!(value(at), LOADED_VALUE, "it is no secret even while nobody has it");
            for client in [&mut other, &mut one] {
                load(client.session.state());
                assert_eq!(variable(client.session.state()), at);
                assert_eq!(value(at), LOADED_VALUE);
                set(at, SECRET);
                unload(client.session.state());
            }
            load(one.session.state());
        }
        assert_eq!((testbed::loaded(), testbed::unloaded()), (first, 0));
        // Who has it has it alone.
        set(at, SECRET);
        load(other.session.state());
        assert_eq!(testbed::loaded(), first + 2, "the code and its function");
        let another = variable(other.session.state());
        assert!(another != at && value(another) == LOADED_VALUE);
    }

    #[test]
    fn what_kernels_may_still_write_to_is_given_to_nobody() {
        let bed = Bed::new();
        let mut client = bed.open();
        load(client.session.state());
        let at = variable(client.session.state());
        client.post_launch();
        testbed::set_work(testbed::Work::Lasts);
        client.serve();
        unload(client.session.state());
        set(at, SECRET);
        assert_eq!(client.session.state().modules.leaving.len(), 1);
        client.session.state().look_whether_idle();
        assert_eq!((value(at), testbed::unloaded()), (SECRET, 0), "its kernel runs");
        testbed::set_work(testbed::Work::EndsAtOnce);
        client.session.state().look_whether_idle();
        assert_eq!(value(at), LOADED_VALUE);
        let before = testbed::loaded();
        load(client.session.state());
        assert_eq!((testbed::loaded(), variable(client.session.state())), (before, at));
    }

    #[test]
    fn what_is_kept_goes_when_memory_is_short_and_nothing_is_kept_meanwhile() {
        let bed = Bed::new();
        let mut client = bed.open();
        load(client.session.state());
        unload(client.session.state());
        assert_eq!(testbed::unloaded(), 0);
        assert!(bed.shared.spares.close());
        bed.shared.unload_spares();
        assert_eq!(testbed::unloaded(), 1);
        load(client.session.state());
        unload(client.session.state());
        assert_eq!(testbed::unloaded(), 2, "at once");
        bed.shared.spares.open();
        let before = testbed::loaded();
        load(client.session.state());
        assert_eq!(testbed::loaded(), before + 2);
        unload(client.session.state());
        assert_eq!(testbed::unloaded(), 2);
    }
}
