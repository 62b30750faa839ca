//! Loads, stores, atomics and special registers.

use super::data;
use super::{Builder, Scope};
use crate::operation::{Class, Immediate};
use crate::program::{Action, Addressing, Element, Operand, Place, Space};

const fn element(bits: u32, signed: bool, name: &'static str) -> Element {
    Element { bits, signed, name }
}

const ELEMENTS: [Element; 15] = [
    element(8, false, "u8"),
    element(8, true, "s8"),
    element(8, false, "b8"),
    element(16, false, "u16"),
    element(16, true, "s16"),
    element(16, false, "b16"),
    element(32, false, "u32"),
    element(32, true, "s32"),
    element(32, false, "b32"),
    element(32, false, "f32"),
    element(64, false, "u64"),
    element(64, true, "s64"),
    element(64, false, "b64"),
    element(64, false, "f64"),
    element(32, false, "b32"),
];

impl Builder<'_> {
    fn place(&mut self, spaces: &[Space]) -> Place {
        let space = self.chooser.pick(spaces);
        let at = if self.chooser.chance(50) {
            Operand::Register(self.register(Class::B32))
        } else {
            Operand::Constant(self.chooser.random.below(1024) as u64, Immediate::Integer)
        };
        let generic = space != Space::Constant && self.chooser.chance(30);
        let addressing = if generic { Addressing::Generic } else { Addressing::Direct };
        Place { space, at, addressing }
    }

    fn is_function(&self) -> bool {
        matches!(self.scope, Scope::Function { .. })
    }

    /// Element, number of elements, and the class of register for each.
    fn shape(&mut self) -> (Element, usize, Class) {
        let element = self.chooser.pick(&ELEMENTS);
        let mut count = self.chooser.pick(&[1, 1, 1, 2, 4]);
        while count as u32 * element.bits > 128 {
            count /= 2;
        }
        let exact = element.name.starts_with('f');
        // A register may be wider than what it holds.
        let wider = !exact && self.chooser.chance(30);
        let class = match (element.bits, wider) {
            (64, _) => Class::B64,
            (32, true) => Class::B64,
            (32, false) => Class::B32,
            (_, true) => self.chooser.pick(&[Class::B32, Class::B64]),
            (_, false) => Class::B16,
        };
        (element, count, class)
    }

    pub(super) fn load(&mut self) {
        let spaces: &[Space] = if self.is_function() {
            &[Space::Local, Space::Constant]
        } else {
            &[
                Space::Common,
                Space::Common,
                Space::Scratch,
                Space::Shared,
                Space::Local,
                Space::Constant,
            ]
        };
        let place = self.place(spaces);
        let (element, count, class) = self.shape();
        let mut results: Vec<_> = Vec::new();
        while results.len() < count {
            let register = self.register(class);
            if !results.contains(&register) {
                results.push(register);
            }
        }
        let modifier = match (place.space, place.addressing) {
            (Space::Common, Addressing::Direct) => self.chooser.pick(&["", ".ca", ".cg", ".nc"]),
            (Space::Scratch, _) => self.chooser.pick(&["", ".ca", ".cg"]),
            _ => "",
        };
        self.emit_anyhow(Action::Load { place, element, modifier, results });
    }

    pub(super) fn store(&mut self) {
        let spaces: &[Space] = if self.is_function() {
            &[Space::Local]
        } else {
            &[Space::Scratch, Space::Shared, Space::Local]
        };
        let place = self.place(spaces);
        let (element, count, class) = self.shape();
        let sources = (0..count).map(|_| self.register(class)).collect();
        self.emit_anyhow(Action::Store { place, element, sources });
    }

    /// On memory of the thread's own, so that the old value is known.
    pub(super) fn atomic(&mut self) {
        if self.is_function() {
            return;
        }
        let place = self.place(&[Space::Scratch, Space::Shared]);
        let atomic = data::atomic(self.chooser);
        let sources = (0..atomic.sources).map(|_| self.register(atomic.class)).collect();
        // Exchanges are not reductions.
        let must = atomic.name.starts_with("exch") || atomic.name.starts_with("cas");
        let result = (must || self.chooser.chance(70)).then(|| self.register(atomic.class));
        self.emit_anyhow(Action::Atomic { place, atomic, result, sources });
    }

    /// On a counter of all threads.
    pub(super) fn count(&mut self) {
        let independent = self.scope == Scope::Kernel { independent: true };
        let counter = self.chooser.random.below(if independent { 4 } else { 8 });
        let class = self.counters.get(counter).map_or(Class::B32, |atomic| atomic.class);
        let source = self.register(class);
        self.emit_anyhow(Action::Count { counter, source });
    }

    pub(super) fn special(&mut self) {
        let name = self.chooser.pick(&[
            "%tid.x",
            "%ntid.x",
            "%ctaid.x",
            "%nctaid.x",
            "%laneid",
            "%tid.y",
            "%ntid.y",
            "%ctaid.z",
            "%lanemask_eq",
            "%lanemask_lt",
            "%lanemask_le",
            "%lanemask_gt",
            "%lanemask_ge",
        ]);
        let result = self.register(Class::B32);
        self.emit_anyhow(Action::Special { result, name });
    }
}
