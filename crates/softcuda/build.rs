//! Writes the exported functions of the driver API from `functions.tsv`.

fn main() {
    cuda_abi::build::emit(cuda_abi::classes::Library::Software);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads outlive any dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
