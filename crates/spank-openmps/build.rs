//! The version of Slurm that the plugin is for: Slurm loads plugins of its own major and minor
//! version alone. `OPENMPS_SLURM_VERSION=24.11` in the environment of the build says which.

use std::env;

/// Debian 12.
const DEFAULT: &str = "22.05";

fn main() {
    println!("cargo::rerun-if-env-changed=OPENMPS_SLURM_VERSION");
    let version = env::var("OPENMPS_SLURM_VERSION").unwrap_or_else(|_| DEFAULT.to_owned());
    let mut parts = version.split('.').map(str::parse::<u8>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        panic!("OPENMPS_SLURM_VERSION={version}: give it as 24.11");
    };
    let micro = parts.next().and_then(Result::ok).unwrap_or(0);
    let number = u32::from(major) << 16 | u32::from(minor) << 8 | u32::from(micro);
    println!("cargo::rustc-env=SLURM_VERSION_NUMBER={number}");
}
