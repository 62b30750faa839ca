//! What tools show as a process's name.

/// Has `ps -e`, `top` and `pgrep` show this process as the original's control daemon and servers,
/// of whose names the kernel keeps 15 letters: scripts look for that. Threads that it starts later
/// have the name, too.
pub fn show_as_the_original() {
    // Of no consequence but for who looks.
    let _ = rustix::thread::set_name(c"nvidia-cuda-mps");
}

/// Has them show it as the product's: one that was started as [`OWN_EXECUTABLE`] would be an `exe`.
///
/// [`OWN_EXECUTABLE`]: crate::inheritance::OWN_EXECUTABLE
pub fn show_as_the_product() {
    let _ = rustix::thread::set_name(c"openmps");
}
