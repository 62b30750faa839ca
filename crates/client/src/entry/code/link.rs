//! Linking: see [`crate::code::link_state`].

use super::module::read_file;
use crate::client::{Client, run};
use crate::code::image::{code_to_link, target_of};
use crate::code::link_state::LinkState;
use crate::entry::arguments::{c_name, not_null};
use crate::result::Result;
use crate::thread::current;
use core::ffi::{c_char, c_void};
use cuda_abi::types::*;
use std::sync::Arc;

fn state(client: &Client, handle: CUlinkState) -> Result<Arc<LinkState>> {
    client.links.get(handle.0).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

pub(crate) unsafe fn cuLinkCreate_v2(
    _numOptions: u32,
    _options: *mut CUjit_option,
    _optionValues: *mut *mut c_void,
    stateOut: *mut CUlinkState,
) -> CUresult {
    run(|client| {
        not_null(stateOut)?;
        current::context()?;
        let made = client.links.insert_with(LinkState::new).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        put!(stateOut, CUlinkState(made.token));
        Ok(())
    })
}

fn add(client: &Client, state: &LinkState, bytes: &[u8]) -> Result {
    let device = client.device(current::context()?.device)?;
    state.add(&code_to_link(bytes, target_of(device))?)
}

pub(crate) unsafe fn cuLinkAddData_v2(
    handle: CUlinkState,
    _type: CUjitInputType,
    data: *mut c_void,
    size: usize,
    _name: *const c_char,
    _numOptions: u32,
    _options: *mut CUjit_option,
    _optionValues: *mut *mut c_void,
) -> CUresult {
    run(|client| {
        not_null(data)?;
        let state = state(client, handle)?;
        // SAFETY: the caller's bytes.
        add(client, &state, unsafe { core::slice::from_raw_parts(data.cast_const().cast(), size) })
    })
}

pub(crate) unsafe fn cuLinkAddFile_v2(
    handle: CUlinkState,
    _type: CUjitInputType,
    path: *const c_char,
    _numOptions: u32,
    _options: *mut CUjit_option,
    _optionValues: *mut *mut c_void,
) -> CUresult {
    run(|client| {
        let state = state(client, handle)?;
        // SAFETY: the caller's string.
        add(client, &state, &read_file(unsafe { c_name(path) }?)?)
    })
}

pub(crate) unsafe fn cuLinkComplete(
    handle: CUlinkState,
    cubinOut: *mut *mut c_void,
    sizeOut: *mut usize,
) -> CUresult {
    run(|client| {
        not_null(cubinOut)?;
        let (image, size_bytes) = state(client, handle)?.complete()?;
        put!(cubinOut, image.cast_mut().cast());
        put_optional!(sizeOut, size_bytes);
        Ok(())
    })
}

pub(crate) unsafe fn cuLinkDestroy(handle: CUlinkState) -> CUresult {
    run(|client| client.links.remove(handle.0).map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE))
}
