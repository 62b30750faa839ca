//! A loaded driver: one function pointer per symbol.
//!
//! The client passes calls through such a table when no daemon runs, and the server's executor
//! works on one. Nothing here opens a library; the caller resolves symbols.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::NonNull;

use crate::functions::{FUNCTION_COUNT, FUNCTIONS};
use crate::types::*;

macro_rules! driver_table {
    ($(fn $symbol:ident($($parameter:ident: $ty:ty),*) -> CUresult;)*) => {
        /// The entry points of a driver, `None` where it lacks one.
        ///
        /// Each field has a method of the same name that calls it, and answers
        /// `CUDA_ERROR_NOT_SUPPORTED` where it is missing.
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        #[allow(non_snake_case, missing_docs, clippy::type_complexity)]
        pub struct DriverTable {
            $(pub $symbol: Option<unsafe extern "C" fn($($parameter: $ty),*) -> CUresult>,)*
        }

        impl DriverTable {
            /// Fills the table by asking `resolve` for each symbol; null means that it is absent.
            ///
            /// # Safety
            /// A non-null answer must be the address of the driver function of that name, and stay
            /// valid for as long as the table is used.
            pub unsafe fn load(mut resolve: impl FnMut(&CStr) -> *const c_void) -> Self {
                Self {
                    $($symbol: {
                        const NAME: &CStr = symbol_name(concat!(stringify!($symbol), "\0"));
                        // SAFETY: a pointer-sized value; null becomes `None`, and the caller
                        // vouches that any other is a function of this very prototype.
                        unsafe {
                            core::mem::transmute::<
                                *const c_void,
                                Option<unsafe extern "C" fn($($ty),*) -> CUresult>,
                            >(resolve(NAME))
                        }
                    },)*
                }
            }

            $(
                #[doc = concat!("Calls `", stringify!($symbol), "`.")]
                ///
                /// # Safety
                /// As the driver API demands of its arguments.
                #[allow(non_snake_case, clippy::too_many_arguments)]
                #[inline]
                pub unsafe fn $symbol(&self, $($parameter: $ty),*) -> CUresult {
                    match self.$symbol {
                        // SAFETY: passed on to the caller.
                        Some(function) => unsafe { function($($parameter),*) },
                        None => CUresult::ERROR_NOT_SUPPORTED,
                    }
                }
            )*
        }
    };
}

for_each_function!(driver_table);

const fn symbol_name(with_nul: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("symbol with an inner NUL"),
    }
}

impl DriverTable {
    /// The address of the function at `index` of [`FUNCTIONS`], if the driver has it.
    pub fn address(&self, index: usize) -> Option<NonNull<c_void>> {
        const { assert!(size_of::<DriverTable>() == size_of::<*mut c_void>() * FUNCTION_COUNT) };
        assert!(index < FUNCTION_COUNT, "no function with index {index}");
        // SAFETY: a `repr(C)` struct of FUNCTION_COUNT function pointers, in the order of
        // `FUNCTIONS`; the index is inside it, and an optional function pointer reads as a nullable
        // pointer.
        unsafe { (&raw const *self).cast::<Option<NonNull<c_void>>>().add(index).read() }
    }

    /// How many functions the driver has.
    pub fn present(&self) -> usize {
        (0..FUNCTIONS.len()).filter(|&index| self.address(index).is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn version(out: *mut i32) -> CUresult {
        // SAFETY: the test passes a valid pointer.
        unsafe { *out = 13000 };
        CUresult::SUCCESS
    }

    #[test]
    fn loads_what_the_driver_has_in_the_order_of_the_list() {
        // Taken once: a small function may have several addresses.
        let driver = version as *const c_void;
        let mut asked = Vec::new();
        // SAFETY: `version` has the prototype of cuDriverGetVersion.
        let table = unsafe {
            DriverTable::load(|symbol| {
                asked.push(symbol.to_str().unwrap().to_owned());
                if symbol == c"cuDriverGetVersion" { driver } else { core::ptr::null() }
            })
        };
        assert_eq!(asked.len(), FUNCTIONS.len());
        assert!(asked.iter().zip(FUNCTIONS).all(|(a, f)| a == f.symbol));
        assert_eq!(table.present(), 1);
        let index = crate::functions::index_of("cuDriverGetVersion").unwrap();
        assert_eq!(table.address(index).unwrap().as_ptr() as usize, driver as usize);
        let mut found = 0;
        // SAFETY: valid out pointer; the other function is absent.
        unsafe {
            assert_eq!(table.cuDriverGetVersion(&mut found), CUresult::SUCCESS);
            assert_eq!(table.cuInit(0), CUresult::ERROR_NOT_SUPPORTED);
        }
        assert_eq!(found, 13000);
    }
}
