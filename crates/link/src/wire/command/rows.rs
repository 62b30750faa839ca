//! What is made of a table of commands: the opcodes, [`super::Request`], and each row's
//! [`super::Facts`].

/// Makes all of it. A row with a fact too few does not compile.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $name:ident = $number:literal, $body:ty => $answer:ty;
            $does:ident, $order:ident $({ $($field:ident),* })?, $memory:ident, $time:ident,
            $refusal:ident, $trail:ident, $repeat:ident, $content:ident, $role:ident,
            $effect:ident $arguments:tt;
    )*) => {
        /// What a command asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $number,)* }

        impl Opcode {
            /// The opcode of a number, if there is one.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Every opcode.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Layouts of its body and its answer.
            #[cfg(test)]
            pub(crate) fn layouts(self) -> (Layout, Layout) {
                match self { $(Self::$name => (<$body>::LAYOUT, <$answer>::LAYOUT),)* }
            }

            /// What is known of it.
            pub fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$name => {
                        const FACTS: Facts = Facts {
                            does: Does::$does,
                            holds_stream: holds_stream!($order),
                            memory: Memory::$memory,
                            time: Time::$time,
                            refusal: Refusal::$refusal,
                            trail: Trail::$trail,
                            repeat: Repeat::$repeat,
                            content: Content::$content,
                            role: Role::$role,
                            journal: effect!($body, $answer, $effect $arguments),
                            answer_bytes: size_of::<$answer>(),
                        };
                        &FACTS
                    })*
                }
            }
        }

        /// A command that was read: its body, and what follows that.
        #[derive(Clone, Copy, Debug)]
        pub enum Request<'a> { $($(#[$doc])* $name($body, &'a [u8]),)* }

        impl<'a> Request<'a> {
            /// Reads what follows a command's header; `None`: it is too short.
            #[inline]
            pub fn read(opcode: Opcode, bytes: &'a [u8]) -> Option<Self> {
                match opcode {
                    $(Opcode::$name => {
                        let (body, rest) = <$body>::read_from_prefix(bytes).ok()?;
                        Some(Self::$name(body, rest))
                    })*
                }
            }

            /// Where it stands in the order of streams.
            #[inline]
            pub fn order(&self) -> Order {
                match self {
                    $(Self::$name(_body, _) => Order::$order $({ $($field: _body.$field),* })?,)*
                }
            }
        }
    };
}

macro_rules! holds_stream {
    (Value) => {
        true
    };
    (Peer) => {
        true
    };
    ($order:ident) => {
        false
    };
}

/// A row's last column.
macro_rules! effect {
    ($body:ty, $answer:ty, none()) => { Effect::None };
    ($body:ty, $answer:ty, thing($part:ident)) => { Effect::Thing(Part::$part) };
    ($body:ty, $answer:ty, ends([$($maker:ident),*], $key:expr)) => {
        Effect::Ends { makers: &[$(Opcode::$maker),*], key: key!($body, $key) }
    };
    ($body:ty, $answer:ty, makes($keeps:ident, $key:expr, $again:ident $(($what:literal))?, $part:ident)) => {
        Effect::Makes {
            keeps: Keeps::$keeps,
            key: key!($body, $key),
            again: Again::$again $(($what))?,
            part: Part::$part,
        }
    };
    ($body:ty, $answer:ty, makes_by_answer($keeps:ident, $key:expr, $again:ident, $part:ident)) => {
        Effect::Makes {
            keeps: Keeps::$keeps,
            key: |entry| {
                let key: fn(&$answer) -> u64 = $key;
                Some(key(&last(entry)?))
            },
            again: Again::$again,
            part: Part::$part,
        }
    };
}

/// The key that an expression makes of a command's body and of the whole entry.
macro_rules! key {
    ($body:ty, $key:expr) => {
        |entry| {
            let key: fn(&$body, &[u8]) -> u64 = $key;
            Some(key(&first(entry)?, entry))
        }
    };
}

pub(super) use {commands, effect, holds_stream, key};
