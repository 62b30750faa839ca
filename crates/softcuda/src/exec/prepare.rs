//! Preparing a kernel: its function and everything that it can call, lowered and made executable.

use std::collections::HashMap;

use super::code::Function;
use super::emit::emit;
use super::global::{GlobalSpace, RelocationTarget};
use super::kernel::{Kernel, KernelCode, KernelError, KernelParam};
use super::lower::{self, Lowered, SharedLayout};
use super::simd::SimdLevel;
use super::symbols::Symbols;
use super::window::{CODE_STEP, CODE_WINDOW};
use crate::ptx;

/// Registers that the threads of a block share, on every device that there is.
const REGISTERS_PER_BLOCK: u32 = 65_536;
/// What a thread's registers are rounded up to when a block is placed.
const REGISTER_UNIT: u32 = 8;

/// What a program knows when a kernel is prepared.
pub(super) struct Source<'a> {
    pub(super) texts: &'a [String],
    pub(super) symbols: &'a Symbols,
    pub(super) addresses: &'a [u64],
    pub(super) level: SimdLevel,
    /// Version and target of each text.
    pub(super) versions: &'a [(u32, u32)],
}

/// Prepares function number `entry`.
pub(super) fn prepare(source: &Source<'_>, entry: usize) -> Result<Kernel, KernelError> {
    let name = source.symbols.functions[entry].name.clone();
    let unsupported =
        |line: u32, reason: String| KernelError::Unsupported { name: name.clone(), line, reason };
    let mut shared = SharedLayout::default();
    let mut functions: Vec<Option<Box<Function>>> = Vec::new();
    functions.resize_with(source.symbols.functions.len(), || None);
    let mut edges: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut indirect = false;
    // Functions that must work, then those that only pointers reach: these are refused when called.
    let mut needed = vec![entry];
    let mut optional: Vec<usize> = Vec::new();
    let mut header = None;
    while let Some((number, must)) =
        needed.pop().map(|n| (n, true)).or_else(|| optional.pop().map(|n| (n, false)))
    {
        if functions[number].is_some() {
            continue;
        }
        let place = &source.symbols.functions[number];
        let text = &source.texts[place.module][place.span.clone()];
        let parsed = ptx::Function::parse(text, place.line);
        let lowered = match &parsed {
            Ok(function) => {
                let scope = source.symbols.scope(place.module, source.addresses);
                lower::lower(function, &scope, &mut shared, source.level)
                    .map_err(|r| (r.line, r.reason))
            }
            Err(error) => Err((error.line, error.to_string())),
        };
        let emitted = lowered.and_then(|lowered| {
            let Lowered { ir, calls, addresses, indirect } = lowered;
            let function = emit(ir).map_err(|reason| (place.line, reason))?;
            Ok((function, calls, addresses, indirect))
        });
        match emitted {
            Ok((function, calls, addresses, through_pointers)) => {
                if number == entry
                    && let Ok(parsed) = &parsed
                {
                    header =
                        Some(describe(parsed).map_err(|reason| unsupported(place.line, reason))?);
                }
                if through_pointers && !indirect {
                    indirect = true;
                    optional.extend(pointed_at(source.symbols));
                }
                optional.extend(addresses);
                needed.extend(&calls);
                edges.insert(number, calls);
                functions[number] = Some(Box::new(function));
            }
            Err((line, reason)) if must => {
                let place =
                    if number == entry { String::new() } else { format!("in {}: ", place.name) };
                return Err(unsupported(line, format!("{place}{reason}")));
            }
            Err((line, reason)) => {
                functions[number] = Some(Box::new(refused(&place.name, line, reason)))
            }
        }
    }
    let Some(header) = header else { return Err(KernelError::NotFound(name)) };
    let size = |number: usize| functions[number].as_ref().map_or(0, |f| f.local_bytes);
    let mut paths =
        Paths { edges: &edges, size: &size, known: HashMap::new(), recursive: indirect };
    let local_bytes = paths.longest(entry);
    let recursive = paths.recursive;
    if u64::from(local_bytes) > lower::variables::LOCAL_LIMIT {
        let reason = format!("its calls need {local_bytes} bytes of local memory per thread");
        return Err(unsupported(0, reason));
    }
    if shared.bytes > 1 << 20 {
        return Err(unsupported(0, format!("it needs {} bytes of shared memory", shared.bytes)));
    }
    // A compiler that knows of no bound keeps to what the largest block leaves to each thread.
    let share = REGISTERS_PER_BLOCK / header.max_threads.max(1);
    let most_registers = (share / REGISTER_UNIT * REGISTER_UNIT).clamp(16, 255);
    let registers = functions[entry].as_ref().map_or(16, |f| f.frame_bytes / 128);
    let module = source.symbols.functions[entry].module;
    let constants = source.symbols.globals.iter().filter(|g| g.space == GlobalSpace::Const);
    let const_bytes = constants.map(|g| g.size_bytes).sum::<u64>();
    let (ptx_version, target) = source.versions.get(module).copied().unwrap_or((0, 0));
    Ok(Kernel {
        name,
        param_bytes: header.params.last().map_or(0, |p| p.offset_bytes + p.size_bytes),
        params: header.params,
        // Dynamic shared memory starts aligned for any type.
        static_shared_bytes: (shared.bytes as u32).next_multiple_of(16),
        local_bytes,
        registers: registers.clamp(16, most_registers),
        max_threads_per_block: header.max_threads,
        required_block: header.bounds.required_threads,
        required_cluster: header.bounds.required_cluster,
        min_blocks_per_sm: header.bounds.min_blocks_per_sm,
        const_bytes: const_bytes.min(1 << 16) as u32,
        ptx_version,
        target,
        code: KernelCode { functions, entry, recursive },
    })
}

struct Header {
    params: Vec<KernelParam>,
    max_threads: u32,
    bounds: ptx::Bounds,
}

fn describe(function: &ptx::Function<'_>) -> Result<Header, String> {
    let mut params = Vec::new();
    let mut end = 0;
    for param in &function.params {
        let (offset_bytes, size_bytes) = lower::variables::kernel_parameter(param, end)?;
        end = offset_bytes + size_bytes;
        params.push(KernelParam { offset_bytes, size_bytes });
    }
    let product = |[x, y, z]: [u32; 3]| x.saturating_mul(y).saturating_mul(z);
    let bound =
        function.bounds.required_threads.or(function.bounds.max_threads).map_or(1024, product);
    Ok(Header { params, max_threads: bound.clamp(1, 1024), bounds: function.bounds })
}

/// Functions whose addresses stand in initialisers.
fn pointed_at(symbols: &Symbols) -> Vec<usize> {
    let relocations = symbols.globals.iter().flat_map(|g| &g.relocations);
    relocations
        .filter_map(|r| match r.target {
            RelocationTarget::Function(address) => {
                Some(((address - CODE_WINDOW) / CODE_STEP) as usize)
            }
            RelocationTarget::Global(_) => None,
        })
        .collect()
}

fn refused(name: &str, line: u32, reason: String) -> Function {
    Function {
        name: name.to_owned(),
        ins: Box::new([]),
        lines: Box::new([line]),
        joins: Box::new([]),
        extras: Box::new([]),
        tables: Vec::new(),
        frame_bytes: 128,
        fills: Vec::new(),
        block_fills: 0,
        formals: Box::new([]),
        local_bytes: 0,
        waits: false,
        refused: Some(reason),
    }
}

/// Longest path through the call graph by local memory.
struct Paths<'a> {
    edges: &'a HashMap<usize, Vec<usize>>,
    size: &'a dyn Fn(usize) -> u32,
    known: HashMap<usize, Option<u32>>,
    recursive: bool,
}

impl Paths<'_> {
    fn longest(&mut self, start: usize) -> u32 {
        // Depth-first without recursion of our own: a long chain of calls must not use up the
        // stack.
        let mut stack = vec![(start, 0usize)];
        self.known.insert(start, None);
        while let Some((number, next)) = stack.pop() {
            let callees = self.edges.get(&number).map_or(&[][..], Vec::as_slice);
            match callees.get(next) {
                Some(&callee) => {
                    stack.push((number, next + 1));
                    match self.known.get(&callee) {
                        Some(None) => self.recursive = true,
                        Some(Some(_)) => {}
                        None => {
                            self.known.insert(callee, None);
                            stack.push((callee, 0));
                        }
                    }
                }
                None => {
                    let deepest = callees
                        .iter()
                        .filter_map(|c| self.known.get(c).copied().flatten())
                        .max()
                        .unwrap_or(0);
                    self.known.insert(number, Some(deepest.saturating_add((self.size)(number))));
                }
            }
        }
        self.known.get(&start).copied().flatten().unwrap_or(0)
    }
}
