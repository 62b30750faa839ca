//! Programs at random, all of them valid, ending, and with one possible result.
//!
//! What keeps them so: threads write only what is theirs, or change counters in ways whose order
//! does not matter; every backward jump counts; instructions that threads execute together stand
//! where all the threads meant come by; operations whose result the ISA leaves open are not used or
//! are masked.

mod control;
mod data;
mod memory;

use crate::operation::{Bare, Chooser, Class, Immediate, Operation};
use crate::operations;
use crate::program::{
    Action, Atomic, Function, Guard, Instruction, Label, Operand, POOL, Passing, Program, Register,
};
use crate::random::Random;

/// The program that belongs to a stream of random numbers.
pub fn generate(random: Random) -> Program {
    let mut random = random;
    let bare = random.pick(&[Bare::Multiply, Bare::Add]);
    let mut chooser = Chooser { random, bare };
    let independent = chooser.chance(30);
    let threads = if independent {
        1 + chooser.random.below(70) as u32
    } else {
        chooser.pick(&[32, 32, 64, 96])
    };
    let blocks = chooser.pick(&[1, 1, 2]);
    let counters = data::counters(&mut chooser);
    let functions = functions(&mut chooser);
    let size = 4 + chooser.random.below(60);
    let mut builder = Builder::new(&mut chooser, &functions, Scope::Kernel { independent });
    builder.counters.clone_from(&counters);
    builder.block(size, 0, Flow::Together);
    let body = builder.code;
    let input = data::input(&mut chooser, threads * blocks);
    Program { body, functions, counters, independent, threads, blocks, input }
}

/// Zero to two functions; a function may call those after it, and itself.
fn functions(chooser: &mut Chooser) -> Vec<Function> {
    let count = chooser.pick(&[0, 0, 1, 2]);
    let mut functions: Vec<Function> = (0..count)
        .map(|_| {
            let mut parameters = vec![control::DEPTH];
            for (class, index) in [(Class::B32, 0), (Class::B64, 1), (Class::B16, 2)] {
                if chooser.chance(60) {
                    parameters.push(Register::new(class, index));
                }
            }
            let result = chooser.pick(&[
                Register::new(Class::B32, 1),
                Register::new(Class::B64, 2),
                Register::new(Class::B16, 3),
            ]);
            let results = if chooser.chance(85) { vec![result] } else { Vec::new() };
            let passing =
                chooser.pick(&[Passing::Parameters, Passing::Parameters, Passing::Registers]);
            Function { parameters, results, passing, body: Vec::new() }
        })
        .collect();
    for index in (0..count).rev() {
        let size = 2 + chooser.random.below(14);
        let mut builder = Builder::new(chooser, &functions, Scope::Function { index });
        builder.block(size, 0, Flow::Apart);
        if builder.chooser.chance(40) {
            builder.recursion(index);
            builder.block(2, 0, Flow::Apart);
        }
        functions[index].body = builder.code;
    }
    functions
}

/// What is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Kernel { independent: bool },
    Function { index: usize },
}

/// Whether all threads of the block come by here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Together,
    Apart,
}

/// Depth of nested control flow.
const NESTING: usize = 3;

struct Builder<'a> {
    chooser: &'a mut Chooser,
    functions: &'a [Function],
    scope: Scope,
    code: Vec<Instruction>,
    labels: u32,
    counters: Vec<Atomic>,
}

impl<'a> Builder<'a> {
    fn new(chooser: &'a mut Chooser, functions: &'a [Function], scope: Scope) -> Self {
        Self { chooser, functions, scope, code: Vec::new(), labels: 0, counters: Vec::new() }
    }

    fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    fn emit(&mut self, action: Action) {
        self.code.push(Instruction { guard: None, action });
    }

    fn guarded(&mut self, guard: Guard, action: Action) {
        self.code.push(Instruction { guard: Some(guard), action });
    }

    /// A register of the pool.
    fn register(&mut self, class: Class) -> Register {
        let count = POOL.iter().find(|pool| pool.0 == class).map_or(1, |pool| pool.1);
        Register::new(class, self.chooser.random.below(usize::from(count)) as u8)
    }

    fn guard(&mut self) -> Guard {
        Guard { predicate: self.register(Class::Predicate).index, negated: self.chooser.chance(50) }
    }

    /// Perhaps under a guard.
    fn emit_anyhow(&mut self, action: Action) {
        // Some of the assembler's expansions of testp and set forget the guard.
        let forgetful = |line: &String| line.starts_with("testp") || line.starts_with("set.");
        let bare = matches!(&action, Action::Compute { operation, .. }
            if operation.lines.iter().any(forgetful));
        if !bare && self.chooser.chance(15) {
            let guard = self.guard();
            self.guarded(guard, action);
        } else {
            self.emit(action);
        }
    }

    /// About `size` instructions.
    fn block(&mut self, size: usize, depth: usize, flow: Flow) {
        for _ in 0..size {
            self.statement(depth, flow);
        }
    }

    fn statement(&mut self, depth: usize, flow: Flow) {
        let kernel = matches!(self.scope, Scope::Kernel { .. });
        let together = flow == Flow::Together && self.scope == Scope::Kernel { independent: false };
        match self.chooser.random.below(100) {
            0..10 => self.load(),
            10..15 => self.store(),
            15..18 => self.atomic(),
            18..20 if kernel => self.count(),
            20..22 => self.special(),
            22..29 if depth < NESTING => self.branch(depth),
            29..32 if depth < NESTING => self.repeat(depth, flow),
            32..34 if depth < NESTING => self.maze(),
            34..36 if depth < NESTING => self.switch(depth),
            36..40 if !self.functions.is_empty() => self.call(),
            40..50 if together => self.gather(),
            50..53 if together => self.masked(),
            53 if self.scope == (Scope::Kernel { independent: true }) => {
                let guard = self.guard();
                self.guarded(guard, Action::Return);
            }
            _ => {
                let operation = operations::any(self.chooser);
                let action = self.compute(operation);
                self.emit_anyhow(action);
            }
        }
    }

    /// An operation with registers or constants for operands.
    fn compute(&mut self, operation: Operation) -> Action {
        let sources: Vec<Operand> = operation
            .sources
            .iter()
            .map(|source| {
                let constant = source.immediate != Immediate::Never && self.chooser.chance(20);
                if constant {
                    data::constant(self.chooser, source.class, source.immediate)
                } else {
                    Operand::Register(self.register(source.class))
                }
            })
            .collect();
        let several = operation.lines.len() > 1;
        let mut results: Vec<Register> = Vec::new();
        for &class in &operation.results {
            // A result of several instructions is written before all sources are read.
            let is_source = |register: &Register| {
                several
                    && sources.iter().any(|s| matches!(s, Operand::Register(r) if r == register))
            };
            let mut register = self.register(class);
            for _ in 0..100 {
                if !results.contains(&register) && !is_source(&register) {
                    break;
                }
                register = self.register(class);
            }
            results.push(register);
        }
        let clash = results.iter().enumerate().any(|(i, register)| {
            results[..i].contains(register)
                || several
                    && sources.iter().any(|s| matches!(s, Operand::Register(r) if r == register))
        });
        if clash {
            // No register is left over.
            return Action::Special { result: Register::new(Class::B32, 0), name: "%laneid" };
        }
        Action::Compute { operation, results, sources }
    }
}
