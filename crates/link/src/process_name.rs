//! What tools show as a process's name.

/// Has `ps -e`, `top` and `pgrep` show this process as the original's control daemon and servers,
/// of whose names the kernel keeps 15 letters: scripts look for that. Threads that it starts later
/// have the name, too.
pub fn show_as_the_original() {
    // Of no consequence but for who looks.
    let _ = rustix::thread::set_name(c"nvidia-cuda-mps");
}
