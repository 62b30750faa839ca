//! Code on the device: images, modules, functions, launches, and what is known of them.

pub(crate) mod answers;
pub(crate) mod attributes;
pub(crate) mod configuration;
pub(crate) mod function;
pub(crate) mod function_settings;
pub(crate) mod image;
pub(crate) mod launch;
pub(crate) mod libraries;
pub(crate) mod library;
pub(crate) mod link_state;
pub(crate) mod module;
pub(crate) mod modules;
pub(crate) mod names;
pub(crate) mod tensor_maps;
