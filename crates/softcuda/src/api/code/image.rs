//! Images: the PTX in them, parsed and linked.

use std::ffi::c_void;

use cuda_abi::image::{Accepts, Code, Image, Target};
use cuda_abi::types::CUresult;

use crate::device::config::Config;
use crate::exec::{LoadEnv, LoadError, Program};

/// Separates the texts in the linker's output; a PTX comment, so that the first text alone is
/// valid, too.
pub(crate) const SEPARATOR: &str = "\n//@@softcuda-linked-text@@\n";

/// PTX texts that together make one program.
#[derive(Debug, Clone)]
pub(crate) struct PtxTexts(pub(crate) Vec<String>);

/// Why an image did not load: the code, and a text for the JIT's error log.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: CUresult,
    pub(crate) log: String,
}

impl Refusal {
    pub(crate) fn new(code: CUresult, reason: impl std::fmt::Display) -> Self {
        Refusal { code, log: format!("softcuda: {reason}") }
    }
}

impl PtxTexts {
    /// The PTX of an image at an address (fatbin wrapper, fatbin, PTX text).
    ///
    /// # Safety
    /// `image` points to an image as for `cuModuleLoadData`.
    pub(crate) unsafe fn from_pointer(
        config: &Config,
        image: *const c_void,
    ) -> Result<Self, Refusal> {
        if image.is_null() {
            return Err(Refusal::new(CUresult::ERROR_INVALID_VALUE, "the image's address is NULL"));
        }
        // SAFETY: by the caller's promise; the texts are copied before this returns.
        let image = unsafe { Image::from_pointer(image) };
        let image = image.map_err(|error| Refusal::new(error.result(), error))?;
        Self::from_image(config, &image)
    }

    /// The PTX of an image in a slice.
    pub(crate) fn from_bytes(config: &Config, bytes: &[u8]) -> Result<Self, Refusal> {
        let image = Image::parse(bytes).map_err(|error| Refusal::new(error.result(), error))?;
        Self::from_image(config, &image)
    }

    fn from_image(config: &Config, image: &Image<'_>) -> Result<Self, Refusal> {
        let (major, minor) = config.compute_capability;
        let target = Target { major, minor, accepts: Accepts::PtxOnly };
        let codes = match image.choose(target) {
            Ok(code) => vec![code],
            Err(error) => match image.relocatable_ptx(target) {
                Ok(codes) if !codes.is_empty() => codes,
                _ => return Err(Refusal::new(error.result(), error)),
            },
        };
        let text = |code: &Code<'_>| match code {
            Code::Ptx(bytes) => String::from_utf8(bytes.to_vec())
                .map_err(|_| Refusal::new(CUresult::ERROR_INVALID_PTX, "ptx text is not UTF-8")),
            Code::Elf(_) | Code::Fatbin(_) => Err(Refusal::new(
                CUresult::ERROR_NO_BINARY_FOR_GPU,
                "machine code cannot be executed, only ptx",
            )),
        };
        let texts = codes.iter().map(text).collect::<Result<Vec<String>, _>>()?;
        // What the linker put together comes apart again.
        let parts = texts.iter().flat_map(|text| text.split(SEPARATOR));
        Ok(PtxTexts(parts.map(str::to_owned).collect()))
    }

    /// Parses and links the texts.
    pub(crate) fn load(&self, config: &Config) -> Result<Program, Refusal> {
        let env = LoadEnv { compute_capability: config.compute_capability, simd: config.simd };
        let texts: Vec<&str> = self.0.iter().map(String::as_str).collect();
        Program::link(&texts, &env).map_err(|error| {
            let code = match error {
                LoadError::Parse(_) | LoadError::Symbol(_) => CUresult::ERROR_INVALID_PTX,
                LoadError::Target { .. } | LoadError::AddressSize(_) => {
                    CUresult::ERROR_NO_BINARY_FOR_GPU
                }
            };
            Refusal::new(code, error)
        })
    }
}
