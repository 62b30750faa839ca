//! Writes the exported functions, and gives the library the name by which CUDA programs ask for it.

fn main() {
    cuda_abi::build::emit(cuda_abi::classes::Library::Client);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads and exit handlers outlive any dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
