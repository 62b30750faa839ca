//! Which C library this process has.

use std::ffi::CStr;

/// The version of glibc, as `2.36`; none where it says something else.
#[must_use]
pub fn glibc_version() -> Option<String> {
    // SAFETY: the function has no preconditions.
    let version = unsafe { libc::gnu_get_libc_version() };
    if version.is_null() {
        return None;
    }
    // SAFETY: it returns a string that ends with a zero byte and lasts as long as the process.
    let version = unsafe { CStr::from_ptr(version) };
    version.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_has_two_numbers() {
        let version = super::glibc_version().unwrap();
        let parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
        assert!(parts.len() >= 2 && parts[0] == 2 && parts[1] >= 17, "{version}");
    }
}
