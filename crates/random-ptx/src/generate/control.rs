//! Branches, loops, calls, and what threads do together.

use super::{Builder, Flow, NESTING, Scope};
use crate::operation::{Class, Immediate, Operation, Source};
use crate::operations;
use crate::program::{Action, Gather, Guard, Label, Operand, Passing, Register};

/// How much deeper a function may call itself.
pub(super) const DEPTH: Register = Register::new(Class::B32, 10);
/// Backward jumps left in a maze.
const FUEL: Register = Register::new(Class::B32, 11);
/// Lanes that execute something together.
const LANES: Register = Register::new(Class::B32, 12);
/// Rounds left of the loop at each depth.
const ROUNDS: [Register; 3] =
    [Register::new(Class::B32, 13), Register::new(Class::B32, 14), Register::new(Class::B32, 15)];
/// Whether to go on.
const AGAIN: Register = Register::new(Class::Predicate, 6);

fn number(value: u64) -> Operand {
    Operand::Constant(value, Immediate::Integer)
}

const WORD: Source = Source::integer(Class::B32);

impl Builder<'_> {
    fn assign(&mut self, register: Register, value: u64) {
        let operation = Operation::new("mov.u32", Class::B32, &[WORD], |s| s[0]);
        self.emit(Action::Compute {
            operation,
            results: vec![register],
            sources: vec![number(value)],
        });
    }

    fn and(&mut self, result: Register, source: Register, mask: u64) {
        let operation = Operation::new("and.b32", Class::B32, &[WORD; 2], |s| s[0] & s[1]);
        let sources = vec![Operand::Register(source), number(mask)];
        self.emit(Action::Compute { operation, results: vec![result], sources });
    }

    fn decrement(&mut self, register: Register) {
        let operation =
            Operation::new("sub.u32", Class::B32, &[WORD; 2], |s| s[0].wrapping_sub(s[1]));
        let sources = vec![Operand::Register(register), number(1)];
        self.emit(Action::Compute { operation, results: vec![register], sources });
    }

    /// `AGAIN` = the register is not 0
    fn test(&mut self, register: Register) {
        let operation = Operation::new("setp.ne.u32", Class::Predicate, &[WORD; 2], |s| {
            u64::from(s[0] != s[1])
        });
        let sources = vec![Operand::Register(register), number(0)];
        self.emit(Action::Compute { operation, results: vec![AGAIN], sources });
    }

    fn again(negated: bool) -> Guard {
        Guard { predicate: AGAIN.index, negated }
    }

    /// Perhaps a fresh condition first.
    fn condition(&mut self) -> Guard {
        if self.chooser.chance(60) {
            let operation = operations::condition(self.chooser);
            let action = self.compute(operation);
            if let Action::Compute { results, .. } = &action {
                let predicate = results[0].index;
                self.emit(action);
                return Guard { predicate, negated: self.chooser.chance(50) };
            }
        }
        self.guard()
    }

    /// if, if-else
    pub(super) fn branch(&mut self, depth: usize) {
        let guard = self.condition();
        let (otherwise, end) = (self.label(), self.label());
        let size = 1 + self.chooser.random.below(5);
        self.guarded(guard, Action::Jump(otherwise));
        self.block(size, depth + 1, Flow::Apart);
        if self.chooser.chance(50) {
            self.emit(Action::Jump(end));
            self.emit(Action::Mark(otherwise));
            self.block(size, depth + 1, Flow::Apart);
        } else {
            self.emit(Action::Mark(otherwise));
        }
        self.emit(Action::Mark(end));
    }

    /// A loop of few rounds: as many for each thread, or different ones; perhaps left early.
    pub(super) fn repeat(&mut self, depth: usize, flow: Flow) {
        let rounds = ROUNDS[depth];
        let alike = self.chooser.chance(50);
        if alike {
            let count = 1 + self.chooser.random.below(4) as u64;
            self.assign(rounds, count);
        } else {
            let source = self.register(Class::B32);
            self.and(rounds, source, 3);
        }
        let flow = if alike { flow } else { Flow::Apart };
        let (start, end) = (self.label(), self.label());
        let size = 1 + self.chooser.random.below(5);
        self.emit(Action::Mark(start));
        if !alike {
            self.test(rounds);
            self.guarded(Self::again(true), Action::Jump(end));
        }
        self.block(size, depth + 1, flow);
        if !alike && self.chooser.chance(40) {
            let guard = self.condition();
            self.guarded(guard, Action::Jump(end));
            self.block(size / 2, depth + 1, flow);
        }
        self.decrement(rounds);
        if alike {
            self.test(rounds);
            self.guarded(Self::again(false), Action::Jump(start));
        } else {
            self.emit(Action::Jump(start));
        }
        self.emit(Action::Mark(end));
    }

    /// Pieces of code that jump to each other as they like; a counter ends it.
    pub(super) fn maze(&mut self) {
        let count = 2 + self.chooser.random.below(4);
        let places: Vec<Label> = (0..count).map(|_| self.label()).collect();
        let end = self.label();
        self.assign(FUEL, 6);
        for (at, &place) in places.iter().enumerate() {
            self.emit(Action::Mark(place));
            let size = 1 + self.chooser.random.below(3);
            for _ in 0..size {
                let operation = operations::any(self.chooser);
                let action = self.compute(operation);
                self.emit_anyhow(action);
            }
            let target = self.chooser.random.below(count + 1);
            let label = places.get(target).copied().unwrap_or(end);
            if target <= at {
                self.test(FUEL);
                self.guarded(Self::again(true), Action::Jump(end));
                self.decrement(FUEL);
            }
            let guard = self.condition();
            self.guarded(guard, Action::Jump(label));
        }
        self.emit(Action::Mark(end));
    }

    /// A jump through a table.
    pub(super) fn switch(&mut self, depth: usize) {
        let cases = self.chooser.pick(&[2usize, 4]);
        let targets: Vec<Label> = (0..cases).map(|_| self.label()).collect();
        let end = self.label();
        let source = self.register(Class::B32);
        self.and(LANES, source, cases as u64 - 1);
        self.emit(Action::Switch { index: LANES, targets: targets.clone() });
        for &target in &targets {
            self.emit(Action::Mark(target));
            self.block(1, depth + 1, Flow::Apart);
            // Now and then it falls through.
            if self.chooser.chance(75) {
                self.emit(Action::Jump(end));
            }
        }
        self.emit(Action::Mark(end));
    }

    pub(super) fn call(&mut self) {
        let first = match self.scope {
            Scope::Function { index } => index + 1,
            Scope::Kernel { .. } => 0,
        };
        if first >= self.functions.len() {
            return;
        }
        let function = first + self.chooser.random.below(self.functions.len() - first);
        let depth = number(self.chooser.random.below(3) as u64);
        let action = self.call_of(function, depth);
        // `st.param` cannot be guarded.
        match self.functions[function].passing {
            Passing::Parameters => self.emit(action),
            Passing::Registers => self.emit_anyhow(action),
        }
    }

    fn call_of(&mut self, function: usize, depth: Operand) -> Action {
        let callee = &self.functions[function];
        let classes: Vec<Class> = callee.parameters[1..].iter().map(|r| r.class).collect();
        let results: Vec<Class> = callee.results.iter().map(|r| r.class).collect();
        let mut arguments = vec![depth];
        for class in classes {
            arguments.push(Operand::Register(self.register(class)));
        }
        let results = results.into_iter().map(|class| self.register(class)).collect();
        Action::Call { function, arguments, results }
    }

    /// A function's call of itself.
    pub(super) fn recursion(&mut self, index: usize) {
        let end = self.label();
        self.test(DEPTH);
        self.guarded(Self::again(true), Action::Jump(end));
        self.decrement(DEPTH);
        let action = self.call_of(index, Operand::Register(DEPTH));
        self.emit(action);
        self.emit(Action::Mark(end));
    }

    /// Something that all lanes or all threads do together.
    pub(super) fn gather(&mut self) {
        let gather = match self.chooser.random.below(20) {
            0..6 => {
                let mode = self.chooser.pick(&["up", "down", "bfly", "idx"]);
                let b = self.chooser.random.below(32) as u32;
                let width = self.chooser.pick(&[32u32, 32, 16, 8, 4]);
                let clamp = if mode == "up" { 0 } else { 31 };
                Gather::Shuffle { mode, b, c: (32 - width) << 8 | clamp }
            }
            6..13 => self.any_mask(),
            13 => Gather::BlockBarrier,
            14 => Gather::BlockAnd,
            15 => Gather::BlockOr,
            16 => Gather::BlockCount,
            _ => {
                let distance = 1 + self.chooser.random.below(40) as u32;
                Gather::Exchange { distance }
            }
        };
        let action = self.gather_action(gather, None);
        self.emit(action);
    }

    /// What any set of lanes can do.
    fn any_mask(&mut self) -> Gather {
        match self.chooser.random.below(8) {
            0 => Gather::All,
            1 => Gather::Any,
            2 => Gather::Uniform,
            3 => Gather::Ballot,
            4 => Gather::MatchAny(self.chooser.pick(&[Class::B32, Class::B64])),
            5 => Gather::MatchAll(self.chooser.pick(&[Class::B32, Class::B64])),
            6 => Gather::WarpBarrier,
            _ => Gather::Reduce(self.chooser.pick(&[
                "add.u32", "add.s32", "min.u32", "max.u32", "min.s32", "max.s32", "and.b32",
                "or.b32", "xor.b32",
            ])),
        }
    }

    fn gather_action(&mut self, gather: Gather, mask: Option<Register>) -> Action {
        let (results, sources): (&[Class], &[Class]) = match gather {
            Gather::Shuffle { .. } => (&[Class::B32, Class::Predicate], &[Class::B32]),
            Gather::All | Gather::Any | Gather::Uniform | Gather::BlockAnd | Gather::BlockOr => {
                (&[Class::Predicate], &[Class::Predicate])
            }
            Gather::Ballot | Gather::BlockCount => (&[Class::B32], &[Class::Predicate]),
            Gather::MatchAny(Class::B64) => (&[Class::B32], &[Class::B64]),
            Gather::MatchAll(Class::B64) => (&[Class::B32, Class::Predicate], &[Class::B64]),
            Gather::MatchAll(_) => (&[Class::B32, Class::Predicate], &[Class::B32]),
            Gather::MatchAny(_) | Gather::Reduce(_) => (&[Class::B32], &[Class::B32]),
            Gather::Exchange { .. } => (&[Class::B64], &[Class::B64]),
            Gather::WarpBarrier | Gather::BlockBarrier => (&[], &[]),
        };
        let results = results.iter().map(|&class| self.register(class)).collect();
        let sources = sources.iter().map(|&class| self.register(class)).collect();
        Action::Gather { gather, results, sources, mask }
    }

    /// The lanes for which a condition holds do something together, the others do not.
    pub(super) fn masked(&mut self) {
        let guard = self.condition();
        let sources = vec![Register::new(Class::Predicate, guard.predicate)];
        self.emit(Action::Gather {
            gather: Gather::Ballot,
            results: vec![LANES],
            sources,
            mask: None,
        });
        let guard = Guard { negated: false, ..guard };
        let gather = self.any_mask();
        let action = self.gather_action(gather, Some(LANES));
        if self.chooser.chance(50) {
            self.guarded(guard, action);
        } else {
            let end = self.label();
            self.guarded(Guard { negated: true, ..guard }, Action::Jump(end));
            self.block(1, NESTING, Flow::Apart);
            self.emit(action);
            self.emit(Action::Mark(end));
        }
    }
}
