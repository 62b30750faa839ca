//! Macros in which the generated types are written.
//!
//! Enumerations are plain integers with named constants, never Rust enums: a caller or a newer
//! driver may pass any value. Handles are integers as well; whoever issued one knows what it means.

/// Declares an opaque handle: pointer-sized, compared by value, never dereferenced.
macro_rules! handle {
    ($name:ident) => {
        /// Opaque handle of the CUDA driver API.
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub usize);

        impl $name {
            /// The null handle.
            pub const NULL: Self = Self(0);

            /// Whether this is the null handle.
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    };
}

/// Declares an enumeration with its named values.
macro_rules! enumeration {
    ($name:ident: $repr:ty, $($value:ident = $number:expr,)*) => {
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $repr);

        impl $name {
            $(pub const $value: Self = Self($number);)*
        }
    };
}

/// Declares a plain C structure whose default is all zero bytes.
macro_rules! record {
    ($(#[$meta:meta])* $name:ident { $(pub $field:ident: $ty:ty,)* }) => {
        #[repr(C)]
        $(#[$meta])*
        pub struct $name {
            $(pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: every field is an integer, a float, a raw pointer, an optional function
                // pointer or an aggregate of these; all-zero bytes are a value of each.
                unsafe { core::mem::zeroed() }
            }
        }
    };
}

/// Declares a C union whose default is all zero bytes.
macro_rules! union_record {
    ($name:ident { $(pub $field:ident: $ty:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub union $name {
            $(pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: as for `record!`.
                unsafe { core::mem::zeroed() }
            }
        }
    };
}
