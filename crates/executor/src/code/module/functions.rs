//! A session's functions: what the client asks of them, and sets.

use super::Function;
use super::commands::name_in;
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use link::wire::command::{
    CACHE_CONFIG, FunctionAttribute, FunctionAttributes, FunctionAttributesReply, FunctionGet,
    FunctionGetReply, FunctionSetAttribute, MAX_FUNCTIONS, Parameter,
};
use std::sync::Arc;

/// Parameters that a kernel can have at most: 32,764 bytes of single bytes would be more, but no
/// answer could hold them.
const MAX_PARAMETERS: usize = 512;
/// Dynamic shared memory that a block may have.
const MOST_SHARED: i32 = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES.0 as i32;

/// Clients take the smallest number that is free, several threads at once: tables by number are
/// about as long as what is in them, and so much.
const NUMBERS_AHEAD: usize = 1024;

impl State {
    pub(crate) fn function_get(&mut self, wanted: FunctionGet, rest: &[u8]) -> Result<(), Failure> {
        let FunctionGet { module, function, name_bytes, .. } = wanted;
        let name = name_in(rest, name_bytes)?;
        let library = self.modules.library(module)?;
        let prints = self.modules.modules.get(&module).is_some_and(|module| module.prints);
        let index = function as usize;
        if function >= MAX_FUNCTIONS
            || self.modules.functions.get(index).is_some_and(Option::is_some)
        {
            return Err(Failure::Protocol(format!(
                "function {function} is in use, or beyond {MAX_FUNCTIONS}"
            )));
        }
        let next = self.modules.live_functions + NUMBERS_AHEAD;
        if index >= next.max(self.modules.functions.len()) && !self.records.replaying {
            return Err(Failure::Protocol(format!(
                "function {function} is too far beyond those that there are: the smallest free number comes next"
            )));
        }
        self.leave_for(module, &name.to_string_lossy())?;
        let driver = self.driver();
        let origin = self.modules.modules.get(&module).and_then(|module| module.origin.as_ref());
        let known = origin.and_then(|origin| origin.function(&name));
        let (mut kernel, mut handle) = known.unwrap_or((CUkernel::NULL, CUfunction::NULL));
        if known.is_none() {
            // SAFETY: a live library; both results are written. Asking for the function loads it
            // now rather than at its first launch.
            unsafe {
                self.check(driver.cuLibraryGetKernel(&mut kernel, library, name.as_ptr()))?;
                let _quiet = self.quiet()?;
                self.check(driver.cuKernelGetFunction(&mut handle, kernel))?;
            }
            let module = self.modules.modules.get_mut(&module);
            if let Some(origin) = module.and_then(|module| module.origin.as_mut()) {
                origin.note(name.clone(), kernel, handle);
            }
        }
        let parameters = self.parameters(kernel);
        let attributes = self.attributes(handle);
        self.charge_local(frame_bytes(&attributes).into())?;
        let parameter_bytes =
            parameters.iter().map(|parameter| parameter.offset + parameter.size_bytes).max();
        let head = FunctionGetReply {
            parameters: parameters.len() as u32,
            attributes: attributes.len() as u32,
            prints: u32::from(prints),
            reserved: 0,
        };
        self.answer(&head)?;
        self.answer(&parameters[..])?;
        self.answer(&attributes[..])?;
        if self.modules.functions.len() <= index {
            self.modules.functions.resize(index + 1, None);
        }
        let name: Arc<str> = name.to_string_lossy().into();
        let repeatable = self.repeating.has(&name);
        let known = Function {
            handle,
            kernel,
            parameter_bytes: parameter_bytes.unwrap_or(0),
            frame_bytes: frame_bytes(&attributes),
            name,
            prints,
            repeatable,
            allowed_shared_bytes: None,
            module,
        };
        self.modules.functions[index] = Some(known);
        self.modules.live_functions += 1;
        Ok(())
    }

    fn parameters(&self, kernel: CUkernel) -> Vec<Parameter> {
        let mut parameters = Vec::new();
        while parameters.len() < MAX_PARAMETERS {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: a live kernel; both results are written.
            let result = unsafe {
                self.driver().cuKernelGetParamInfo(kernel, parameters.len(), &mut offset, &mut size)
            };
            if !result.is_success() {
                break;
            }
            parameters.push(Parameter { offset: offset as u32, size_bytes: size as u32 });
        }
        parameters
    }

    fn attributes(&self, function: CUfunction) -> Vec<FunctionAttribute> {
        let mut attributes = Vec::new();
        for number in 0..CUfunction_attribute::MAX.0 {
            let mut value = 0;
            // SAFETY: a live function; the result is written.
            let result = unsafe {
                self.driver().cuFuncGetAttribute(&mut value, CUfunction_attribute(number), function)
            };
            if result.is_success() {
                attributes.push(FunctionAttribute { attribute: number as i32, value });
            }
        }
        attributes
    }

    pub(crate) fn function_attributes(
        &mut self,
        wanted: FunctionAttributes,
    ) -> Result<(), Failure> {
        let Function { handle, allowed_shared_bytes, .. } =
            *self.modules.function(wanted.function)?;
        let mut attributes = self.attributes(handle);
        for attribute in &mut attributes {
            if attribute.attribute == MOST_SHARED {
                attribute.value = allowed_shared_bytes.unwrap_or(attribute.value);
            }
        }
        let head = FunctionAttributesReply { attributes: attributes.len() as u32, reserved: 0 };
        self.answer(&head)?;
        self.answer(&attributes[..])
    }

    /// Sets an attribute. What a block may have of shared memory is never lowered in the driver:
    /// the client refuses launches with more than it has allowed itself. cuDNN sets it before each
    /// launch of some kernels, and each time the driver would keep everybody from submitting.
    pub(crate) fn function_set_attribute(
        &mut self,
        wanted: FunctionSetAttribute,
    ) -> Result<(), Failure> {
        let FunctionSetAttribute { function, attribute, value, .. } = wanted;
        let Function { handle, kernel, .. } = *self.modules.function(function)?;
        let (driver, device) = (self.driver(), self.context().device());
        if attribute == MOST_SHARED {
            let mut now = 0;
            // SAFETY: a live function of this session; the result is written.
            let asked = unsafe {
                let most = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
                driver.cuFuncGetAttribute(&mut now, most, handle)
            };
            if asked.is_success() && (0..=now).contains(&value) {
                return self.modules.allow_shared(function, value);
            }
        }
        self.note_setting(function, attribute);
        // SAFETY: a live kernel and function of this session.
        let set = || unsafe {
            if let Ok(attribute) = u32::try_from(attribute) {
                let attribute = CUfunction_attribute(attribute);
                // For nodes that run in a partition; what is wrong with it the function says, too.
                let _ = driver.cuKernelSetAttribute(attribute, value, kernel, device);
            }
            match attribute {
                CACHE_CONFIG => driver.cuFuncSetCacheConfig(handle, CUfunc_cache(value as u32)),
                _ => {
                    driver.cuFuncSetAttribute(handle, CUfunction_attribute(attribute as u32), value)
                }
            }
        };
        self.check(self.context().gate.between(set))?;
        match attribute {
            MOST_SHARED => self.modules.allow_shared(function, value),
            _ => Ok(()),
        }
    }
}

/// Local memory per thread, as a function's attributes say.
fn frame_bytes(attributes: &[FunctionAttribute]) -> u32 {
    let local = CUfunction_attribute::LOCAL_SIZE_BYTES.0 as i32;
    let found = attributes.iter().find(|known| known.attribute == local);
    found.map_or(0, |known| known.value.max(0).cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Bed;
    use link::wire::command::ModuleUnload;

    #[test]
    fn numbers_of_functions_do_not_make_tables_that_nobody_fills() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        let mut get = |function| {
            let get = FunctionGet { module: 0, function, name_bytes: 1, reserved: 0 };
            state.function_get(get, b"f")
        };
        for far in [MAX_FUNCTIONS - 1, 2 * NUMBERS_AHEAD as u32] {
            assert!(matches!(get(far), Err(Failure::Protocol(_))), "{far}");
        }
        // Threads that ask at once, and what was unloaded meanwhile.
        for function in (1..500).rev() {
            get(function).unwrap();
        }
        assert!(get(NUMBERS_AHEAD as u32 + 500).is_err());
        get(NUMBERS_AHEAD as u32 + 400).unwrap();
        state.module_unload(ModuleUnload { module: 0, reserved: 0 }).unwrap();
        assert_eq!(state.modules.live_functions, 0);
    }
}
