//! The project's own tool: `cargo xtask COMMAND`.
//!
//! Everything that a developer or continuous integration does beyond plain cargo is a command here,
//! so that the README can name one line for each and both run the same code.

mod aarch64;
mod chromium;
mod command;
mod compat;
mod container_tools;
mod coverage;
mod cuda_aware_mpi;
mod deb;
mod deb_chroot;
mod deb_systemd;
mod deb_upgrade;
mod debian;
mod demo;
mod dependencies;
mod dist;
mod elf;
mod fresh;
mod fuzz;
mod hecbench;
mod images;
mod images_check;
mod nvidia_shell;
mod openmpi;
mod paths;
mod portable;
mod programs;
mod prometheus;
mod proofs;
mod prose;
mod ptx;
mod python_tools;
mod quick;
mod release;
mod rooms;
mod rpm;
mod same_build;
mod sbom;
mod slurm;
mod suites;
mod system_tree;
mod systems;
mod tarball;
mod test;
mod test_targets;
mod toolchain;
mod tree;
mod wheel;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::dist::Build;
use crate::paths::Paths;

/// The project's own tool.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run five CUDA programs alone and then at once under OpenMPS
    Demo(demo::Demo),
    /// Run every test: format, lints, unit tests, CUDA programs, black-box tests
    Test(test::Test),
    /// Check what a change touches: format, documents, lints, unit tests
    Quick(quick::Quick),
    /// Build the executables and libraries into target/dist, for this system
    Build {
        /// For every system with glibc 2.17 or later, as packages have it; needs python3 and PyPI
        #[arg(long)]
        portable: bool,
    },
    /// Build the Debian package into target/deb
    Deb(deb::Deb),
    /// Build the rpm into target/rpm
    Rpm(rpm::Rpm),
    /// Make every package, with checksums and a bill of materials, in target/release-files, and
    /// install each on a fresh root file system
    Release(release::Release),
    /// Make the container images of the daemon and of the device plugin, in target/images/out
    Images(images::Options),
    /// Build the product for aarch64, and run by QEMU what can be run
    Aarch64,
    /// Build the product once more in another directory: it must be the same
    SameBuild,
    /// Try what is built in fresh Debians of other releases
    Systems,
    /// Run programs of HeCBench (OPENMPS_HECBENCH names a clone) on the software GPU
    Hecbench,
    /// Build the wheel for Python into target/wheel
    Wheel(wheel::Wheel),
    /// Install the CUDA compiler and libraries that the tests need into target/cuda-toolchain
    Toolchain,
    /// Unpack Slurm for its test bed (tests/testbeds/slurm) into target/debian/slurm
    Slurm,
    /// Compile the kernels of the demo into the PTX that is checked in beside them
    Ptx,
    /// Run CuPy's and numba-cuda's own tests, natively and under OpenMPS
    Suites(suites::Suites),
    /// Run random PTX programs on the software GPU against a slow reference
    Random(fuzz::Random),
    /// Feed mutated PTX, images, kernels or control messages
    Fuzz(fuzz::Fuzz),
    /// Compile the CUDA programs of the tests into target/programs
    Programs,
    /// Execute every form of PTX instructions on the software GPU and write COVERAGE-PTX.md
    Coverage,
    /// Compare the table of proofs with what the programs of the last `cargo xtask test` called
    Proofs {
        /// Write tests/proofs.tsv and COMPATIBILITY.md instead, and say what has no proof
        #[arg(long)]
        update: bool,
    },
    /// Check licences, sources, versions and uses of the packages that the project depends on
    Dependencies,
    /// Check the documents against the style sheet of CONTRIBUTING.md, and the links between them
    Prose,
    /// Check how many sources folders have, and how many import each other in a circle
    Rooms,
    /// Write COMPATIBILITY.md from the lists of functions of the client runtime and the software
    /// GPU
    Compat {
        /// Only check that the file is up to date
        #[arg(long)]
        check: bool,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let paths = Paths::find();
    match arguments.task {
        Task::Test(options) => test::run(&paths, &options)?,
        Task::Demo(options) => demo::run(&paths, &options)?,
        Task::Quick(options) => quick::run(&paths, &options)?,
        Task::Build { portable } => {
            let build = if portable { Build::Portable } else { Build::Native };
            let dist = dist::build(&paths, build)?;
            println!("built {}", dist.root.display());
        }
        Task::Deb(options) => println!("built {}", deb::run(&paths, &options)?.display()),
        Task::Rpm(options) => println!("built {}", rpm::run(&paths, &options)?.display()),
        Task::Release(options) => println!("made {}", release::run(&paths, &options)?.display()),
        Task::Images(options) => println!("made {}", images::run(&paths, &options)?.display()),
        Task::Aarch64 => {
            let dist = dist::build(&paths, dist::Build::Portable)?;
            aarch64::check(&paths, &tree::build(&paths, &dist)?)?;
        }
        Task::SameBuild => same_build::check(&paths)?,
        Task::Systems => systems::check(&paths)?,
        Task::Hecbench => hecbench::check(&paths)?,
        Task::Wheel(options) => println!("built {}", wheel::run(&paths, &options)?.display()),
        Task::Toolchain => {
            let toolchain = toolchain::ensure(&paths)?;
            println!("CUDA tool chain ready: {}", toolchain.nvcc().display());
        }
        Task::Slurm => match slurm::ensure(&paths)? {
            debian::Unpacked::At(root) => println!("Slurm is in {}", root.display()),
            debian::Unpacked::Skipped(why) => println!("no Slurm: {why}"),
        },
        Task::Ptx => println!("compiled {} files", ptx::regenerate(&paths)?),
        Task::Programs => {
            let dist = dist::build(&paths, Build::Portable)?;
            container_tools::ensure(&paths);
            prometheus::ensure(&paths);
            let programs = programs::build(&paths, &dist)?;
            println!("built {}", programs.display());
        }
        Task::Random(options) => fuzz::random(&paths, &options)?,
        Task::Fuzz(options) => fuzz::fuzz(&paths, &options)?,
        Task::Suites(options) => {
            let totals = suites::run(&paths, &options)?;
            println!("{} passed, {} failed", totals.passed, totals.failed);
            if totals.failed > 0 {
                anyhow::bail!("not all tests passed");
            }
        }
        Task::Coverage => {
            coverage::write(&paths)?;
            println!("COVERAGE-PTX.md is up to date");
        }
        Task::Proofs { update: true } => proofs::update(&paths)?,
        Task::Proofs { update: false } => proofs::check(&paths)?,
        Task::Dependencies => dependencies::check(&paths)?,
        Task::Prose => {
            prose::check(&paths)?;
            println!("the documents follow the style sheet");
        }
        Task::Rooms => {
            rooms::check(&paths)?;
            println!("no folder has too many sources, and no circle is longer than it may be");
        }
        Task::Compat { check } => {
            compat::run(&paths, if check { compat::Mode::Check } else { compat::Mode::Write })?;
            println!("COMPATIBILITY.md is up to date");
        }
    }
    Ok(())
}
