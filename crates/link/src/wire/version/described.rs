//! Layouts of structs in shared memory, for the description of the client wire that tests compare.

/// A struct's layout.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size_bytes: usize,
    pub(crate) fields: &'static [Field],
}

/// Where a field is, and its type.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) of_type: &'static str,
    pub(crate) offset_bytes: usize,
}

/// A struct of which a description can be made.
pub(crate) trait Described {
    const LAYOUT: Layout;
}

impl Described for () {
    const LAYOUT: Layout = Layout { name: "()", size_bytes: 0, fields: &[] };
}

/// Makes a struct [`Described`]. A field too few, or too many, does not compile.
macro_rules! described {
    ($name:ident { $($field:ident : $ty:ty),* $(,)? }) => {
        impl $crate::wire::version::described::Described for $name {
            const LAYOUT: $crate::wire::version::described::Layout =
                $crate::wire::version::described::Layout {
                    name: stringify!($name),
                    size_bytes: size_of::<$name>(),
                    fields: &[$($crate::wire::version::described::Field {
                        name: stringify!($field),
                        of_type: stringify!($ty),
                        offset_bytes: core::mem::offset_of!($name, $field),
                    }),*],
                };
        }

        const _: fn(&$name) = |it| { let $name { $($field: _),* } = it; };
    };
}

pub(crate) use described;
