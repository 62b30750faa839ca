//! Loading and unloading modules, and finding what is in them.

use crate::client::Client;
use crate::code::answers::Answers;
use crate::code::function::{Function, described, packed_bytes};
use crate::code::function_settings::FunctionSettings;
use crate::code::image::{JitOptions, code_at, target_of};
use crate::code::module::Module;
use crate::code::names::Names;
use crate::context::Context;
use crate::memory::memory_map::{Area, Kind};
use crate::result::Result;
use crate::thread::current;
use core::ffi::c_void;
use cuda_abi::types::{CUmodule, CUresult};
use link::wire::command::{
    FunctionGet, GlobalGet, GlobalGetReply, ModuleLoad, ModuleLoadReply, ModuleUnload, Opcode,
};
use std::ffi::CStr;
use std::sync::{Arc, Mutex, OnceLock};
use zerocopy::{FromBytes, IntoBytes};

/// Loads code into a context.
///
/// # Safety
/// The log buffers of `options` are valid.
pub(crate) unsafe fn load(
    client: &Client,
    context: &Arc<Context>,
    code: &[u8],
    options: &JitOptions,
) -> Result<Arc<Module>> {
    let (backend, id) = context.backend()?;
    let number = backend.modules.take()?;
    let (status, reply) = backend.lend(id, code, |address| {
        let body = ModuleLoad {
            module: number,
            optimization_level: options.optimization_level,
            max_registers: options.max_registers,
            log_bytes: options.log_bytes(),
            address,
            size_bytes: code.len() as u64,
        };
        backend.session.call_raw(id, Opcode::ModuleLoad, &[body.as_bytes()])
    })?;
    let (info, error) = logs(&reply);
    // SAFETY: the caller's promise.
    unsafe { options.write_logs(info, error) };
    if status != CUresult::SUCCESS {
        backend.modules.give_back(number);
        crate::warn!("module not loaded: {status}: {}", String::from_utf8_lossy(error));
        return Err(status);
    }
    let module = client.modules.insert_with(|token| Module {
        token,
        context: Arc::clone(context),
        wire_id: id,
        number,
        functions: Names::default(),
        globals: Mutex::default(),
    });
    module.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Loads an image into the current context.
///
/// # Safety
/// `image` points to an image, as for `cuModuleLoadData`.
pub(crate) unsafe fn load_current(client: &Client, image: *const c_void) -> Result<CUmodule> {
    // SAFETY: the caller's promise; without options there are no log buffers.
    unsafe { load_with(client, image, &JitOptions::default()) }
}

/// The same, with options.
///
/// # Safety
/// As for [`load_current`]; the log buffers of `options` are valid.
pub(crate) unsafe fn load_with(
    client: &Client,
    image: *const c_void,
    options: &JitOptions,
) -> Result<CUmodule> {
    let context = current::owner()?;
    // SAFETY: the caller's promise.
    let code = unsafe { code_at(image, target_of(client.device(context.device)?)) }?;
    // SAFETY: the caller's promise.
    let module = unsafe { load(client, &context, code.bytes(), options) }?;
    Ok(CUmodule(module.token))
}

fn logs(reply: &[u8]) -> (&[u8], &[u8]) {
    let Ok((lengths, text)) = ModuleLoadReply::read_from_prefix(reply) else { return (&[], &[]) };
    let (info, rest) = text.split_at(text.len().min(lengths.info_bytes as usize));
    (info, &rest[..rest.len().min(lengths.error_bytes as usize)])
}

/// A module by handle.
pub(crate) fn get(client: &Client, token: usize) -> Result<Arc<Module>> {
    client.modules.get(token).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Forgets the modules of a context that is ending.
pub(crate) fn end_context(client: &Client, context: &Context) {
    for module in client.modules.select(|module| module.context.token == context.token) {
        // A failed session has no modules left.
        let _ = module.unload(client);
    }
}

impl Module {
    /// Unloads the module once its work is done; its functions and variables are dead at once.
    pub(crate) fn unload(&self, client: &Client) -> Result {
        client.modules.remove(self.token).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let (backend, id) = self.context.backend()?;
        let functions = self.functions.adding();
        for function in functions.values() {
            client.functions.remove(function.token);
        }
        for (_, (address, _)) in self.globals.lock().unwrap_or_else(|e| e.into_inner()).drain() {
            let is_global = |area: &Area| matches!(area.kind, Kind::Global | Kind::ManagedGlobal);
            let removed = client.memory.remove(address, is_global);
            if removed.is_some_and(|area| matches!(area.kind, Kind::ManagedGlobal)) {
                backend.session.wait_all(0)?;
                let sides = (&backend.host_heap, &backend.session);
                backend.session.two_sided().mirrors.remove(sides, id, address)?;
            }
        }
        if backend.session.output().is_expected() || backend.session.may_hold() {
            backend.session.wait_all(id)?;
        }
        backend.session.post(
            id,
            Opcode::ModuleUnload,
            &ModuleUnload { module: self.number, reserved: 0 },
        )?;
        // Not before: another thread could give them to functions while the executor still has
        // these.
        functions.values().for_each(|function| backend.functions.give_back(function.number));
        backend.modules.give_back(self.number);
        Ok(())
    }

    /// A kernel by name: CUDA_ERROR_NOT_FOUND if there is none.
    pub(crate) fn function(&self, client: &Client, name: &CStr) -> Result<&Arc<Function>> {
        if let Some(function) = self.functions.get(name) {
            return Ok(function);
        }
        let mut functions = self.functions.adding();
        if let Some(function) = self.functions.get(name) {
            return Ok(function);
        }
        let (backend, id) = self.context.backend()?;
        let number = backend.functions.take()?;
        // A copy: the name may lie in managed memory, and is read under the session's lock.
        let bytes = name.to_bytes().to_vec();
        let body = FunctionGet {
            module: self.number,
            function: number,
            name_bytes: bytes.len() as u32,
            reserved: 0,
        };
        let got = backend.session.call(id, Opcode::FunctionGet, &[body.as_bytes(), &bytes]);
        let reply = got.inspect_err(|_| backend.functions.give_back(number))?;
        let (prints, parameters, attributes) =
            described(&reply).ok_or(CUresult::ERROR_MPS_RPC_FAILURE)?;
        let made = client.functions.insert_with(|token| Function {
            token,
            module: self.token,
            context: Arc::clone(&self.context),
            wire_id: self.wire_id,
            number,
            name: name.to_owned(),
            kernel: OnceLock::new(),
            packed_bytes: packed_bytes(&parameters),
            parameters,
            prints,
            settings: FunctionSettings::new(&attributes),
            occupancy: Answers::default(),
            clusters: Answers::default(),
        });
        functions.insert(name.to_owned(), made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?);
        self.functions.get(name).ok_or(CUresult::ERROR_NOT_FOUND)
    }

    /// Address and length of a variable: CUDA_ERROR_NOT_FOUND if there is none.
    pub(crate) fn global(&self, client: &Client, name: &CStr) -> Result<(u64, u64)> {
        let mut globals = self.globals.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(found) = globals.get(name) {
            return Ok(*found);
        }
        let (backend, id) = self.context.backend()?;
        // A copy, as above.
        let bytes = name.to_bytes().to_vec();
        let body = GlobalGet { module: self.number, name_bytes: bytes.len() as u32 };
        let reply: GlobalGetReply =
            backend.session.call_for(id, Opcode::GlobalGet, &[body.as_bytes(), &bytes])?;
        let found = (reply.address, reply.size_bytes);
        let context = &self.context;
        let kind = if reply.managed == 0 {
            Kind::Global
        } else {
            backend.session.two_sided().begin();
            let sides = (&backend.host_heap, &backend.session);
            backend.session.two_sided().mirrors.add(sides, id, found.0, found.1)?;
            Kind::ManagedGlobal
        };
        client.memory.insert(Area::new(found.0, found.1, kind, context.token, context.device));
        globals.insert(name.to_owned(), found);
        Ok(found)
    }
}
