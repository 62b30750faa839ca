//! The slow reference: one thread at a time, one instruction at a time.
//!
//! A thread runs until it ends or meets an instruction that threads execute together; those are
//! carried out once all that take part have arrived. A program whose threads wait for each other in
//! vain, or that runs too long, has no result.

use crate::gather::{block_gather, warp_gather};
use crate::operation::Class;
use crate::program::{
    Action, COMMON_BYTES, COUNTER_BYTES, DOUBLES, DUMP_BYTES, HALVES, INITIAL_BYTES, Instruction,
    Label, Operand, PREDICATES, Place, Program, RESULT_BYTES, Register, SLOT_BYTES, Space, WORDS,
    constants, counter_bytes, function_constant,
};

/// Steps of all threads of a block together before a program counts as endless.
const STEPS: usize = 2_000_000;
const SLOT: usize = SLOT_BYTES as usize;
const DEPTH: usize = 16;

/// Registers, local memory and position in one function.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// `None`: the kernel.
    function: Option<usize>,
    pub(crate) next: usize,
    predicates: [bool; PREDICATES],
    halves: [u16; HALVES],
    words: [u32; WORDS],
    doubles: [u64; DOUBLES],
    local: [u8; SLOT],
    /// Where the caller wants the results.
    wanted: Vec<Register>,
}

impl Frame {
    fn new(function: Option<usize>) -> Self {
        Self {
            function,
            next: 0,
            predicates: [false; PREDICATES],
            halves: [0; HALVES],
            words: [0; WORDS],
            doubles: [0; DOUBLES],
            local: [0; SLOT],
            wanted: Vec::new(),
        }
    }

    pub(crate) fn get(&self, register: Register) -> u64 {
        let index = usize::from(register.index);
        match register.class {
            Class::Predicate => u64::from(self.predicates[index]),
            Class::B16 => u64::from(self.halves[index]),
            Class::B32 => u64::from(self.words[index]),
            Class::B64 => self.doubles[index],
        }
    }

    pub(crate) fn set(&mut self, register: Register, bits: u64) {
        let index = usize::from(register.index);
        match register.class {
            Class::Predicate => self.predicates[index] = bits & 1 == 1,
            Class::B16 => self.halves[index] = bits as u16,
            Class::B32 => self.words[index] = bits as u32,
            Class::B64 => self.doubles[index] = bits,
        }
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.get(register),
            Operand::Constant(bits, _) => bits,
        }
    }
}

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// At an instruction that threads execute together.
    Waiting,
    Done,
}

#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) index: u32,
    pub(crate) state: State,
    pub(crate) frames: Vec<Frame>,
    shared: [u8; SLOT],
}

impl Thread {
    pub(crate) fn frame(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    /// Function and instruction where the thread stands, and how deep its calls are.
    pub(crate) fn position(&self) -> (Option<usize>, usize, usize) {
        let depth = self.frames.len();
        self.frames.last().map_or((None, 0, 0), |frame| (frame.function, frame.next, depth))
    }
}

/// Why a program has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// It ran too long.
    Endless,
    /// Threads wait for threads that never come.
    Stuck,
    /// It calls too deeply.
    TooDeep,
}

/// What the program writes to its output buffer.
///
/// # Errors
/// It has no defined result.
pub fn evaluate(program: &Program) -> Result<Vec<u8>, NoResult> {
    let mut output = vec![0; program.output_bytes()];
    for block in 0..program.blocks {
        Block::new(program, block, &mut output).run()?;
    }
    Ok(output)
}

struct Block<'a> {
    program: &'a Program,
    labels: Vec<Vec<usize>>,
    block: u32,
    output: &'a mut Vec<u8>,
    common: Vec<u8>,
    constants: Vec<u8>,
    shared_counters: Vec<u8>,
    threads: Vec<Thread>,
    steps: usize,
}

/// Position of each label in a body.
fn labels(body: &[Instruction]) -> Vec<usize> {
    let mut labels = Vec::new();
    for (at, instruction) in body.iter().enumerate() {
        if let Action::Mark(Label(label)) = instruction.action {
            let label = label as usize;
            if labels.len() <= label {
                labels.resize(label + 1, usize::MAX);
            }
            labels[label] = at;
        }
    }
    labels
}

pub(crate) fn read(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

fn write(bytes: &mut [u8], at: usize, width: usize, bits: u64) {
    bytes[at..at + width].copy_from_slice(&bits.to_le_bytes()[..width]);
}

impl<'a> Block<'a> {
    fn new(program: &'a Program, block: u32, output: &'a mut Vec<u8>) -> Self {
        let mut all = vec![labels(&program.body)];
        all.extend(program.functions.iter().map(|function| labels(&function.body)));
        let threads = (0..program.threads)
            .map(|index| {
                let mut frame = Frame::new(None);
                let thread = (block * program.threads + index) as usize;
                let mut at = COMMON_BYTES as usize + thread * INITIAL_BYTES as usize;
                let mut next = |width: usize| {
                    at += width;
                    read(&program.input, at - width, width)
                };
                frame.doubles = [(); DOUBLES].map(|()| next(8));
                for word in &mut frame.words[..10] {
                    *word = next(4) as u32;
                }
                frame.halves = [(); HALVES].map(|()| next(2) as u16);
                let bits = next(4);
                frame.predicates = std::array::from_fn(|i| bits >> i & 1 == 1);
                Thread { index, state: State::Running, frames: vec![frame], shared: [0; SLOT] }
            })
            .collect();
        Self {
            program,
            labels: all,
            block,
            output,
            common: program.input[..COMMON_BYTES as usize].to_vec(),
            constants: constants(),
            shared_counters: vec![0; counter_bytes()],
            threads,
            steps: 0,
        }
    }

    fn run(mut self) -> Result<(), NoResult> {
        loop {
            for index in 0..self.threads.len() {
                while self.threads[index].state == State::Running {
                    self.step(index)?;
                }
            }
            if self.threads.iter().all(|thread| thread.state == State::Done) {
                let counters = counter_bytes();
                let at = counters * (1 + self.block as usize);
                self.output[at..at + counters].copy_from_slice(&self.shared_counters);
                return Ok(());
            }
            if !self.gather() {
                return Err(NoResult::Stuck);
            }
        }
    }

    fn body(&self, function: Option<usize>) -> &'a [Instruction] {
        match function {
            None => &self.program.body,
            Some(index) => &self.program.functions[index].body,
        }
    }

    /// Bytes of the output where a thread's results begin.
    fn result_at(&self, thread: usize) -> usize {
        let counters = counter_bytes() * (1 + self.program.blocks as usize);
        let number = (self.block * self.program.threads) as usize + thread;
        counters + number * RESULT_BYTES as usize
    }

    fn step(&mut self, index: usize) -> Result<(), NoResult> {
        self.steps += 1;
        if self.steps > STEPS {
            return Err(NoResult::Endless);
        }
        let (function, next, _) = self.threads[index].position();
        let body = self.body(function);
        let Some(instruction) = body.get(next) else {
            self.leave(index);
            return Ok(());
        };
        let frame = self.threads[index].frame();
        if let Some(guard) = instruction.guard
            && frame.predicates[usize::from(guard.predicate)] == guard.negated
        {
            frame.next += 1;
            return Ok(());
        }
        if matches!(instruction.action, Action::Gather { .. }) {
            self.threads[index].state = State::Waiting;
            return Ok(());
        }
        self.threads[index].frame().next += 1;
        self.execute(index, &instruction.action, function)
    }

    fn execute(
        &mut self,
        index: usize,
        action: &Action,
        function: Option<usize>,
    ) -> Result<(), NoResult> {
        match action {
            Action::Compute { operation, results, sources } => {
                let frame = self.threads[index].frame();
                let bits: Vec<u64> = sources.iter().map(|&source| frame.operand(source)).collect();
                let values = (operation.evaluate)(&bits);
                for (&register, value) in results.iter().zip(values) {
                    frame.set(register, register.class.truncated(value));
                }
            }
            Action::Special { result, name } => {
                let value = self.special(index, name);
                self.threads[index].frame().set(*result, value);
            }
            Action::Load { place, element, results, .. } => {
                let width = element.bits as usize / 8;
                let at = self.offset(index, place, width * results.len());
                for (i, &register) in results.iter().enumerate() {
                    let raw = read(self.memory(index, place.space), at + i * width, width);
                    let extended = if element.signed && element.bits < 64 {
                        ((raw << (64 - element.bits)) as i64 >> (64 - element.bits)) as u64
                    } else {
                        raw
                    };
                    self.threads[index].frame().set(register, register.class.truncated(extended));
                }
            }
            Action::Store { place, element, sources } => {
                let width = element.bits as usize / 8;
                let at = self.offset(index, place, width * sources.len());
                for (i, &register) in sources.iter().enumerate() {
                    let bits = self.threads[index].frame().get(register);
                    write(self.memory(index, place.space), at + i * width, width, bits);
                }
            }
            Action::Atomic { place, atomic, result, sources } => {
                let width = atomic.class.bits() as usize / 8;
                let at = self.offset(index, place, width);
                let frame = self.threads[index].frame();
                let operands: Vec<u64> = sources.iter().map(|&r| frame.get(r)).collect();
                let memory = self.memory(index, place.space);
                let old = read(memory, at, width);
                let second = operands.get(1).copied().unwrap_or(0);
                let new = (atomic.update)(old, operands[0], second);
                write(memory, at, width, new);
                if let Some(result) = result {
                    self.threads[index].frame().set(*result, old);
                }
            }
            Action::Count { counter, source } => {
                let atomic = self.program.counters[*counter];
                let width = atomic.class.bits() as usize / 8;
                let operand = self.threads[index].frame().get(*source);
                let at = counter % 4 * COUNTER_BYTES as usize;
                let memory: &mut [u8] =
                    if *counter < 4 { self.output } else { &mut self.shared_counters };
                let old = read(memory, at, width);
                write(memory, at, width, (atomic.update)(old, operand, 0));
            }
            Action::Jump(label) => self.jump(index, function, *label),
            Action::Switch { index: register, targets } => {
                let value = self.threads[index].frame().get(*register) as usize;
                if let Some(&label) = targets.get(value) {
                    self.jump(index, function, label);
                }
            }
            Action::Mark(_) | Action::Gather { .. } => {}
            Action::Call { function, arguments, results } => {
                self.call(index, *function, arguments, results)?;
            }
            Action::Return => self.leave(index),
        }
        Ok(())
    }

    fn jump(&mut self, index: usize, function: Option<usize>, label: Label) {
        let table = &self.labels[function.map_or(0, |number| number + 1)];
        let target = table.get(label.0 as usize).copied().unwrap_or(usize::MAX);
        self.threads[index].frame().next = target;
    }

    fn special(&self, index: usize, name: &str) -> u64 {
        let lane = index as u32 % 32;
        let value = match name {
            "%tid.x" => index as u32,
            "%ntid.x" => self.program.threads,
            "%ctaid.x" => self.block,
            "%nctaid.x" => self.program.blocks,
            "%laneid" => lane,
            "%ntid.y" | "%ntid.z" | "%nctaid.y" => 1,
            "%lanemask_eq" => 1 << lane,
            "%lanemask_lt" => (1 << lane) - 1,
            "%lanemask_le" => (1 << lane) | ((1 << lane) - 1),
            "%lanemask_gt" => !((1 << lane) | ((1 << lane) - 1)),
            "%lanemask_ge" => !((1 << lane) - 1),
            _ => 0,
        };
        u64::from(value)
    }

    /// Offset of an access in its memory.
    fn offset(&mut self, index: usize, place: &Place, bytes: usize) -> usize {
        let at = self.threads[index].frame().operand(place.at) as usize;
        let offset = at & (place.space.size_bytes() as usize - 1) & !(bytes - 1);
        match place.space {
            Space::Scratch => self.result_at(index) + DUMP_BYTES as usize + offset,
            _ => offset,
        }
    }

    fn memory(&mut self, index: usize, space: Space) -> &mut [u8] {
        match space {
            // Never written; a copy of the first bytes of the input, and the table.
            Space::Common => &mut self.common,
            Space::Constant => &mut self.constants,
            Space::Scratch => self.output,
            Space::Shared => &mut self.threads[index].shared,
            Space::Local => &mut self.threads[index].frame().local,
        }
    }

    fn call(
        &mut self,
        index: usize,
        function: usize,
        arguments: &[Operand],
        results: &[Register],
    ) -> Result<(), NoResult> {
        let thread = &mut self.threads[index];
        if thread.frames.len() >= DEPTH {
            return Err(NoResult::TooDeep);
        }
        let mut frame = Frame::new(Some(function));
        for (class, count) in [
            (Class::Predicate, PREDICATES),
            (Class::B16, HALVES),
            (Class::B32, WORDS),
            (Class::B64, DOUBLES),
        ] {
            for i in 0..count {
                let register = Register::new(class, i as u8);
                frame.set(register, function_constant(register));
            }
        }
        let parameters = &self.program.functions[function].parameters;
        for (&parameter, &argument) in parameters.iter().zip(arguments) {
            frame.set(parameter, thread.frame().operand(argument));
        }
        frame.wanted = results.to_vec();
        thread.frames.push(frame);
        Ok(())
    }

    /// Return from the innermost function or the end of the kernel.
    fn leave(&mut self, index: usize) {
        if self.threads[index].frames.len() == 1 {
            self.finish(index);
            return;
        }
        let Some(mut callee) = self.threads[index].frames.pop() else { return };
        let results =
            callee.function.map_or(&[][..], |number| &self.program.functions[number].results);
        let wanted = std::mem::take(&mut callee.wanted);
        for (&register, &result) in wanted.iter().zip(results) {
            self.threads[index].frame().set(register, callee.get(result));
        }
    }

    /// The dump at a kernel's end; a thread that left early has none.
    fn finish(&mut self, index: usize) {
        self.threads[index].state = State::Done;
        let frame = self.threads[index].frame().clone();
        if frame.next < self.program.body.len() || self.left_early(&frame) {
            return;
        }
        let start = self.result_at(index);
        let mut at = start;
        let mut put = |output: &mut Vec<u8>, width: usize, bits: u64| {
            write(output, at, width, bits);
            at += width;
        };
        for bits in frame.doubles {
            put(self.output, 8, bits);
        }
        for &bits in &frame.words[..10] {
            put(self.output, 4, bits.into());
        }
        for bits in frame.halves {
            put(self.output, 2, bits.into());
        }
        let bits = (0..6).filter(|&i| frame.predicates[i]).map(|i| 1 << i).sum();
        put(self.output, 4, bits);
        let at = start + (DUMP_BYTES + SLOT_BYTES) as usize;
        self.output[at..at + SLOT].copy_from_slice(&self.threads[index].shared);
        self.output[at + SLOT..at + 2 * SLOT].copy_from_slice(&frame.local);
    }

    /// Whether the last instruction was a `ret` that was taken.
    fn left_early(&self, frame: &Frame) -> bool {
        frame.next == self.program.body.len() && frame.function.is_none() && {
            let last = self.program.body.last();
            last.is_some_and(|last| {
                matches!(last.action, Action::Return)
                    && last.guard.is_none_or(|guard| {
                        frame.predicates[usize::from(guard.predicate)] != guard.negated
                    })
            })
        }
    }

    /// Carries out what enough threads wait for; false when there is nothing.
    fn gather(&mut self) -> bool {
        let mut progress = false;
        let program = self.program;
        let bodies = |function: Option<usize>| match function {
            None => program.body.as_slice(),
            Some(index) => program.functions[index].body.as_slice(),
        };
        for warp in self.threads.chunks_mut(32) {
            progress |= warp_gather(warp, bodies);
        }
        progress | block_gather(&mut self.threads, bodies)
    }
}
