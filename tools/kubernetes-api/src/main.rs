//! Makes `crates/kubernetes/src/api` from `crates/kubernetes/proto`, without protoc:
//! `cargo run --manifest-path tools/kubernetes-api/Cargo.toml && cargo fmt -p kubernetes`, in the
//! root of the repository.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let room = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/kubernetes");
    let protos = room.join("proto");
    let files = ["device_plugin.proto", "pod_resources.proto"].map(|name| protos.join(name));
    let compiled = protox::compile(files, [&protos])?;
    // Transports are the caller's: the generated clients and servers take any.
    let generator = tonic_prost_build::configure().build_transport(false);
    generator.out_dir(room.join("src/api")).compile_fds(compiled)?;
    Ok(())
}
