//! What keeps a session in its context: it has something that cannot be taken along to another
//! one.

use std::fmt;

macro_rules! hindrances {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// See the module's description.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Hindrance {
            $(#[doc = $text] $(#[$doc])* $name = $number,)*
        }

        impl Hindrance {
            /// The one of this number; 0 is none.
            pub fn from_number(number: u64) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for Hindrance {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

hindrances! {
    /// Another executor does not know who waits behind a value.
    HeldCommands = 1, "commands that wait for values";
    Unsaved = 2, "variables or arrays that cannot be saved";
    Output = 3, "output of kernels";
    Trace = 4, "a trace";
    Guard = 5, "guarded code";
    /// Other sessions have them, or they are theirs.
    Sharing = 6, "memory or events that are shared by CUDA IPC";
    Peers = 7, "memory that several devices share";
    /// Their values may be another object's in the other context.
    Objects = 8, "textures, surfaces or conditions";
    /// They may be another session's in the other context.
    ReservedAddresses = 9, "reserved addresses";
    DeclaredKernels = 10, "kernels that are declared repeatable";
    /// It is in the executor's own.
    SpilledMemory = 11, "memory that is moved out to the host";
    DeviceHeap = 12, "kernels that may have memory of the device's heap";
    /// Their addresses may be others in the other context, and kernels may have stored them.
    Variables = 13, "variables of its code";
    ChangingShare = 14, "a share of SMs that is being changed";
    WorkInFlight = 15, "work of its own that has not ended";
    Events = 16, "more events than the times of which can be taken along";
}

impl Hindrance {
    /// Whether it goes away by itself, as what runs now ends.
    pub fn is_momentary(self) -> bool {
        match self {
            Self::HeldCommands | Self::Output | Self::ChangingShare | Self::WorkInFlight => true,
            Self::Unsaved
            | Self::Trace
            | Self::Guard
            | Self::Sharing
            | Self::Peers
            | Self::Objects
            | Self::ReservedAddresses
            | Self::DeclaredKernels
            | Self::SpilledMemory
            | Self::DeviceHeap
            | Self::Variables
            | Self::Events => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_what_they_are_of() {
        let all: Vec<Hindrance> = (0..=255).filter_map(Hindrance::from_number).collect();
        assert_eq!(all.len(), 16);
        assert!(all.iter().all(|it| Hindrance::from_number(*it as u64) == Some(*it)));
        assert_eq!(Hindrance::Trace.to_string(), "a trace");
        assert!(Hindrance::WorkInFlight.is_momentary() && !Hindrance::Trace.is_momentary());
    }
}
