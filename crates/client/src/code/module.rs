//! Modules and their functions, as the executor knows them: loaded into one context, and forgotten
//! with it.

use crate::client::Client;
use crate::code::answers::Answers;
use crate::code::attributes::Attributes;
use crate::code::function_settings::{Bounds, FunctionSettings};
use crate::code::image::{JitOptions, code_at, target_of};
use crate::code::names::Names;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::memory::memory_map::{Area, Kind};
use crate::session::Result;
use crate::thread::current;
use core::ffi::c_void;
use cuda_abi::types::{CUfunction_attribute, CUmodule, CUresult};
use link::wire::command::{
    FunctionAttribute, FunctionAttributes, FunctionAttributesReply, FunctionGet, FunctionGetReply,
    FunctionSetAttribute, GlobalGet, GlobalGetReply, LaunchAttribute, ModuleKernels, ModuleLoad,
    ModuleLoadReply, ModuleUnload, NamesReply, Occupancy, OccupancyReply, Opcode, Parameter,
};
use link::wire::query::{ClusterOccupancy, ClusterReply};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, OnceLock};
use zerocopy::{FromBytes, IntoBytes};

/// A loaded module.
pub(crate) struct Module {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
    wire_id: u32,
    number: u32,
    functions: Names<Arc<Function>>,
    globals: Mutex<HashMap<CString, (u64, u64)>>,
}

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) token: usize,
    /// Handle of its module.
    pub(crate) module: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) wire_id: u32,
    pub(crate) number: u32,
    pub(crate) name: CString,
    /// Handle of the library's kernel that it is the function of, if it is.
    pub(crate) kernel: OnceLock<usize>,
    pub(crate) parameters: Vec<Parameter>,
    /// Length of the packed parameters.
    pub(crate) packed_bytes: usize,
    /// It can print.
    pub(crate) prints: bool,
    settings: FunctionSettings,
    occupancy: Answers<OccupancyQuestion, OccupancyReply>,
    /// By the question's bytes, attributes included.
    clusters: Answers<Vec<u8>, ClusterReply>,
}

/// Threads of a block, dynamic shared bytes, flags, greatest block.
type OccupancyQuestion = (u32, u64, u32, u32);

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

    /// The names of all kernels.
    pub(crate) fn kernel_names(&self) -> Result<Vec<CString>> {
        let (backend, id) = self.context.backend()?;
        let body = ModuleKernels { module: self.number, reserved: 0 };
        let reply = backend.session.call(id, Opcode::ModuleKernels, &[body.as_bytes()])?;
        let broken = CUresult::ERROR_MPS_RPC_FAILURE;
        let (count, names) = NamesReply::read_from_prefix(&reply).map_err(|_| broken)?;
        let names: Vec<_> = names
            .split_inclusive(|byte| *byte == 0)
            .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
            .take(count.names as usize)
            .map(CStr::to_owned)
            .collect();
        if names.len() == count.names as usize {
            Ok(names)
        } else {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
    }
}

type Described = (bool, Vec<Parameter>, Attributes);

fn described(reply: &[u8]) -> Option<Described> {
    let (counts, rest) = FunctionGetReply::read_from_prefix(reply).ok()?;
    let (parameters, rest) =
        <[Parameter]>::ref_from_prefix_with_elems(rest, counts.parameters as usize).ok()?;
    let attributes = attributes(rest, counts.attributes as usize)?;
    Some((counts.prints != 0, parameters.to_vec(), attributes))
}

/// Length of a kernel's packed parameters.
fn packed_bytes(parameters: &[Parameter]) -> usize {
    parameters.iter().map(|p| (p.offset + p.size_bytes) as usize).max().unwrap_or(0)
}

fn attributes(bytes: &[u8], count: usize) -> Option<Attributes> {
    let (attributes, _) = <[FunctionAttribute]>::ref_from_prefix_with_elems(bytes, count).ok()?;
    Some(attributes.iter().map(|a| (a.attribute, a.value)).collect())
}

impl Function {
    /// A cached attribute: CUDA_ERROR_INVALID_VALUE for what the driver does not know.
    pub(crate) fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32> {
        self.settings.get(attribute).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// A cached attribute that counts something.
    pub(crate) fn count(&self, attribute: CUfunction_attribute) -> Option<u32> {
        self.attribute(attribute).ok().and_then(|value| u32::try_from(value).ok())
    }

    /// Sets an attribute (a `CUfunction_attribute`, or the wire's own numbers): see
    /// [`crate::code::function_settings`].
    pub(crate) fn set_attribute(&self, client: &Client, attribute: i32, value: i32) -> Result {
        let (backend, id) = self.context.backend()?;
        if self.settings.has(attribute, value) {
            return backend.session.check();
        }
        let bounds = Bounds::of(client.device(self.context.device)?);
        let body = FunctionSetAttribute { function: self.number, attribute, value, reserved: 0 };
        let _changing = self.settings.lock();
        if self.settings.is_valid(bounds, attribute, value) {
            backend.session.post(id, Opcode::FunctionSetAttribute, &body)?;
            self.settings.note_posted(attribute, value);
        } else {
            backend.session.call(id, Opcode::FunctionSetAttribute, &[body.as_bytes()])?;
            let read = self.read_attributes(backend, id)?;
            self.settings.note_driver(attribute, value, &read);
        }
        self.occupancy.forget();
        self.clusters.forget();
        Ok(())
    }

    /// All attributes as the driver has them.
    fn read_attributes(&self, backend: &Backend, id: u32) -> Result<Attributes> {
        let body = FunctionAttributes { function: self.number, reserved: 0 };
        let reply = backend.session.call(id, Opcode::FunctionAttributes, &[body.as_bytes()])?;
        FunctionAttributesReply::read_from_prefix(&reply)
            .ok()
            .and_then(|(count, rest)| attributes(rest, count.attributes as usize))
            .ok_or(CUresult::ERROR_MPS_RPC_FAILURE)
    }

    /// Occupancy, asked once per question.
    pub(crate) fn occupancy(&self, question: Occupancy) -> Result<OccupancyReply> {
        let key = (
            question.block_threads,
            question.dynamic_shared_bytes,
            question.flags,
            question.block_limit,
        );
        self.occupancy.find_or_ask(key, || {
            let (backend, id) = self.context.backend()?;
            let body = Occupancy { function: self.number, ..question };
            backend.session.call_for(id, Opcode::Occupancy, &[body.as_bytes()])
        })
    }

    /// What a launch with these attributes could have of clusters and shared memory, asked once per
    /// question: the driver's answer is about the whole device, whatever a client's share of it.
    pub(crate) fn cluster_occupancy(
        &self,
        question: ClusterOccupancy,
        attributes: &[LaunchAttribute],
    ) -> Result<i32> {
        let body = ClusterOccupancy { function: self.number, ..question };
        let parts = [body.as_bytes(), attributes.as_bytes()];
        let reply = self.clusters.find_or_ask(parts.concat(), || {
            let (backend, id) = self.context.backend()?;
            backend.session.call_for(id, Opcode::ClusterOccupancy, &parts)
        });
        reply.map(|reply| reply.value)
    }
}
