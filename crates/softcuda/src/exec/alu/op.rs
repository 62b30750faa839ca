//! The macro that declares an operation type and its arity trait in one line.

/// Declares operations: `/// doc` then
/// `unary|binary|ternary|compare Name<T: Bound>(a: T, ..) -> T { body }`. What is seldom asked for
/// is told by `unary(rare if CONDITION)`.
macro_rules! op {
    () => {};
    ($(#[$m:meta])* unary$((rare if $rare:expr))? $name:ident<$($p:ident: $b:path),*>($a:ident: $at:ty) -> $d:ty $body:block $($rest:tt)*) => {
        op!(@struct $(#[$m])* $name $($p: $b),*);
        impl<$($p: $b),*> $crate::exec::alu::Unary for $name<$($p),*> {
            $(const IS_RARE: bool = $rare;)?
            type A = $at;
            type D = $d;
            #[inline(always)]
            fn lane($a: $at) -> $d $body
        }
        op!($($rest)*);
    };
    ($(#[$m:meta])* binary$((rare if $rare:expr))? $name:ident<$($p:ident: $b:path),*>($a:ident: $at:ty, $c:ident: $ct:ty) -> $d:ty $body:block $($rest:tt)*) => {
        op!(@struct $(#[$m])* $name $($p: $b),*);
        impl<$($p: $b),*> $crate::exec::alu::Binary for $name<$($p),*> {
            $(const IS_RARE: bool = $rare;)?
            type A = $at;
            type B = $ct;
            type D = $d;
            #[inline(always)]
            fn lane($a: $at, $c: $ct) -> $d $body
        }
        op!($($rest)*);
    };
    ($(#[$m:meta])* ternary $name:ident<$($p:ident: $b:path),*>($a:ident: $at:ty, $c:ident: $ct:ty, $e:ident: $et:ty) -> $d:ty $body:block $($rest:tt)*) => {
        op!(@struct $(#[$m])* $name $($p: $b),*);
        impl<$($p: $b),*> $crate::exec::alu::Ternary for $name<$($p),*> {
            type A = $at;
            type B = $ct;
            type C = $et;
            type D = $d;
            #[inline(always)]
            fn lane($a: $at, $c: $ct, $e: $et) -> $d $body
        }
        op!($($rest)*);
    };
    ($(#[$m:meta])* quaternary $name:ident<$($p:ident: $b:path),*>($a:ident: $at:ty, $c:ident: $ct:ty, $e:ident: $et:ty, $f:ident: $ft:ty) -> $d:ty $body:block $($rest:tt)*) => {
        op!(@struct $(#[$m])* $name $($p: $b),*);
        impl<$($p: $b),*> $crate::exec::alu::Quaternary for $name<$($p),*> {
            type A = $at;
            type B = $ct;
            type C = $et;
            type E = $ft;
            type D = $d;
            #[inline(always)]
            fn lane($a: $at, $c: $ct, $e: $et, $f: $ft) -> $d $body
        }
        op!($($rest)*);
    };
    ($(#[$m:meta])* compare $name:ident<$($p:ident: $b:path),*>($a:ident: $at:ty, $c:ident) $body:block $($rest:tt)*) => {
        op!(@struct $(#[$m])* $name $($p: $b),*);
        impl<$($p: $b),*> $crate::exec::alu::Compare for $name<$($p),*> {
            type A = $at;
            #[inline(always)]
            fn lane($a: $at, $c: $at) -> bool $body
        }
        op!($($rest)*);
    };
    (@struct $(#[$m:meta])* $name:ident $($p:ident: $b:path),*) => {
        $(#[$m])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name<$($p: $b),*>(core::marker::PhantomData<($($p,)*)>);
    };
}
pub(super) use op;
