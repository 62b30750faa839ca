//! Functions of the device runtime that PTX calls without defining them: `vprintf`, `malloc`,
//! `free`, assertions.
//!
//! Operand list: result words, then argument words; `ins.x` counts results in its low half,
//! arguments in its high half.

use super::address::{Generic, Space};
use super::format::format_message;
use crate::exec::code::{Flow, Frame, Ins, OpFn};
use crate::exec::context::Context;
use crate::exec::fault::{Access, FaultKind};
use crate::exec::lanes::Vectors;
use crate::exec::simd::{Body, plain};

/// Longest string read from memory.
const STRING_LIMIT: usize = 1 << 16;

/// The handler of the device-runtime function `name`.
pub(in crate::exec) fn runtime_call(name: &str) -> Option<OpFn> {
    Some(match name {
        "vprintf" => plain::<Printf>(),
        "malloc" => plain::<Malloc>(),
        "free" => plain::<Free>(),
        "__assertfail" | "__assert_fail" => plain::<AssertFail>(),
        "cudaGraphSetConditional" => plain::<SetConditional>(),
        _ => return None,
    })
}

/// Argument word `index` of one lane; 0 when the call passes fewer.
unsafe fn word(cx: &Context<'_>, ins: &Ins, frame: Frame, lane: usize, index: usize) -> u32 {
    if index >= (ins.x >> 16) as usize {
        return 0;
    }
    // SAFETY: the list holds that many arguments behind the results, by the emitter.
    unsafe { *frame.at::<u32>(cx.extra(ins.e, (ins.x & 0xffff) as usize + index)).add(lane) }
}

unsafe fn double(cx: &Context<'_>, ins: &Ins, frame: Frame, lane: usize, index: usize) -> u64 {
    // SAFETY: as `word`.
    unsafe {
        u64::from(word(cx, ins, frame, lane, index))
            | u64::from(word(cx, ins, frame, lane, index + 1)) << 32
    }
}

unsafe fn set_result(
    cx: &Context<'_>,
    ins: &Ins,
    frame: Frame,
    lane: usize,
    index: usize,
    value: u32,
) {
    if index < (ins.x & 0xffff) as usize {
        // SAFETY: the list starts with that many results, by the emitter.
        unsafe { *frame.at::<u32>(cx.extra(ins.e, index)).add(lane) = value }
    }
}

/// Reads `len` bytes at a generic address as one lane sees them.
pub(in crate::exec) fn read_bytes(
    cx: &mut Context<'_>,
    ins: &Ins,
    addr: u64,
    lane: usize,
    len: usize,
) -> Option<Vec<u8>> {
    (0..len as u64)
        .map(|i| {
            let p = Generic::lane(cx, ins, addr.wrapping_add(i), lane as u32, 1, Access::Read)?;
            // SAFETY: the space checked one byte.
            Some(unsafe { p.read() })
        })
        .collect()
}

/// Reads a NUL-terminated string.
pub(in crate::exec) fn read_string(
    cx: &mut Context<'_>,
    ins: &Ins,
    addr: u64,
    lane: usize,
) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < STRING_LIMIT {
        let p = Generic::lane(
            cx,
            ins,
            addr.wrapping_add(text.len() as u64),
            lane as u32,
            1,
            Access::Read,
        )?;
        // SAFETY: the space checked one byte.
        match unsafe { p.read() } {
            0 => break,
            byte => text.push(byte),
        }
    }
    Some(text)
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 != 0)
}

struct Printf;

impl Body for Printf {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter: format and argument block, 64 bits each.
            let (format, args) =
                unsafe { (double(cx, ins, frame, lane, 0), double(cx, ins, frame, lane, 2)) };
            let Some(format) = read_string(cx, ins, format, lane) else { return Flow::Fault };
            let Some((text, count)) = format_message(cx, ins, &format, args, lane) else {
                return Flow::Fault;
            };
            cx.machine.printf(&text);
            // SAFETY: results by the emitter.
            unsafe { set_result(cx, ins, frame, lane, 0, count) };
        }
        Flow::Next
    }
}

struct Malloc;

impl Body for Malloc {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter: a 64-bit size.
            let size = unsafe { double(cx, ins, frame, lane, 0) };
            let addr = if size == 0 { 0 } else { cx.machine.malloc(size).unwrap_or(0) };
            // SAFETY: results by the emitter.
            unsafe {
                set_result(cx, ins, frame, lane, 0, addr as u32);
                set_result(cx, ins, frame, lane, 1, (addr >> 32) as u32);
            }
        }
        Flow::Next
    }
}

struct Free;

impl Body for Free {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter: a 64-bit address.
            let addr = unsafe { double(cx, ins, frame, lane, 0) };
            if addr != 0 && !cx.machine.free(addr) {
                cx.raise(
                    FaultKind::IllegalAddress,
                    lane as u32,
                    format!("free of {addr:#x}, which malloc did not give"),
                );
                return Flow::Fault;
            }
        }
        Flow::Next
    }
}

struct AssertFail;

impl Body for AssertFail {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let mut said = Vec::new();
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter: message, file, line, function.
            let (message, file, line, function) = unsafe {
                (
                    double(cx, ins, frame, lane, 0),
                    double(cx, ins, frame, lane, 2),
                    word(cx, ins, frame, lane, 4),
                    (word(cx, ins, frame, lane, 5), double(cx, ins, frame, lane, 5)),
                )
            };
            let mut text = |addr| {
                let text = read_string(cx, ins, addr, lane);
                cx.fault = None;
                String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
            };
            let (message, file, function) = (text(message), text(file), text(function.1));
            let [bx, by, bz] = cx.block_index;
            let [tx, ty, tz] = cx.thread_of(lane as u32);
            said.push(format!(
                "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{message}` failed."
            ));
        }
        cx.raise(FaultKind::Assert, mask.trailing_zeros(), said.join("\n"));
        Flow::Fault
    }
}

struct SetConditional;

impl Body for SetConditional {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter: a 64-bit handle and a 32-bit value.
            let (handle, value) =
                unsafe { (double(cx, ins, frame, lane, 0), word(cx, ins, frame, lane, 2)) };
            if !cx.machine.set_condition(handle, value) {
                cx.raise(
                    FaultKind::IllegalAddress,
                    lane as u32,
                    format!("{handle:#x} is no condition of a graph"),
                );
                return Flow::Fault;
            }
        }
        Flow::Next
    }
}
