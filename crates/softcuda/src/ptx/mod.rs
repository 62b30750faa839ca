//! PTX text: a hand-written parser from text to syntax tree.
//!
//! Accepts the syntax of PTX ISA 3.x to 9.x as nvcc, NVRTC, libNVVM, Triton and vendor libraries
//! write it. Meaning is `exec`'s business, but a combination of opcode and modifiers that PTX does
//! not have is an error when a module is loaded (`forms`). Nesting and list lengths are bounded, so
//! hostile text costs memory proportional to its length and no stack.

mod ast;
mod constant;
mod error;
mod forms;
mod lexer;
mod parse_body;
mod parse_declaration;
mod parse_module;
mod parse_operand;
mod types;

pub use ast::{
    Body, Bounds, Function, FunctionKind, Guard, Init, Instruction, Linkage, Module, Operand,
    OperandRange, Prototype, Statement, Variable,
};
pub use error::ParseError;
pub use types::{Space, Type};
