//! The CUDA programs that the tests run, compiled into `target/programs/KIND/NAME`.
//!
//! Every file of `programs/cuda` (its own headers lie in a directory of its name) is compiled once
//! and linked five ways, with the static and the shared runtime library of CUDA 13.0 and 12.9 and
//! the shared one of 11.8; `programs/runtimes` is one program with three of them; every file of
//! `programs/kernels` is linked once; `programs/driver_api` and `programs/process` hold C programs,
//! `programs/cudarc` a Rust one, `programs/mpi` what is linked with Open MPI. A line
//! `// nvcc-flags: ...` in a source adds compiler flags, a line `// nvcc-arch: compute_90` names
//! another virtual architecture than the oldest. Nothing is compiled again unless its inputs
//! changed.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::cuda_aware_mpi;
use crate::dist::Dist;
use crate::openmpi;
use crate::paths::Paths;
use crate::python_tools;
use crate::toolchain::{self, Cudart, Nvrtc, Toolchain};

const NVCC_FLAGS: &[&str] = &["-std=c++17", "-O2", "-c"];

/// PTX for compute capability 7.5 only: the oldest that the compiler knows, so that any device
/// takes it.
const OLDEST_ARCHITECTURE: &str = "compute_75";

/// The kernel suite compares bit by bit: neither compiler may contract or reorder what rounds.
const SUITE_FLAGS: &[&str] =
    &["-fmad=false", "-Xcompiler", "-ffp-contract=off", "-Xcompiler", "-frounding-math"];

/// The programs of a directory: what compiles them, and how they are linked.
struct Group {
    directory: &'static str,
    flags: &'static [&'static str],
    linkages: &'static [Linkage],
}

const PROGRAMS: Group = Group { directory: "programs/cuda", flags: &[], linkages: &LINKAGES };

const SUITE: Group = Group {
    directory: "programs/kernels",
    flags: SUITE_FLAGS,
    linkages: &[Linkage { kind: "kernels", cudart: Cudart::V13_0, library: "libcudart_static.a" }],
};

/// The programs of docs/recipes.md.
const RECIPES: Group = Group {
    directory: "programs/recipes",
    flags: &[],
    linkages: &[Linkage { kind: "recipes", cudart: Cudart::V13_0, library: "libcudart_static.a" }],
};

/// How a program is linked with the CUDA runtime.
struct Linkage {
    kind: &'static str,
    cudart: Cudart,
    library: &'static str,
}

const LINKAGES: [Linkage; 5] = [
    Linkage { kind: "cudart-13.0-static", cudart: Cudart::V13_0, library: "libcudart_static.a" },
    Linkage { kind: "cudart-13.0-shared", cudart: Cudart::V13_0, library: "libcudart.so.13" },
    Linkage { kind: "cudart-12.9-static", cudart: Cudart::V12_9, library: "libcudart_static.a" },
    Linkage { kind: "cudart-12.9-shared", cudart: Cudart::V12_9, library: "libcudart.so.12" },
    Linkage { kind: "cudart-11.8-shared", cudart: Cudart::V11_8, library: "libcudart.so.11.0" },
];

/// Programs with functions that did not exist or had other parameters before CUDA 12, so that what
/// is compiled with a header of CUDA 13 does not run with 11.8.
const NOT_FOR_CUDA_11: [&str; 4] =
    ["conditional_graphs", "graphs", "mixed_commands", "stream_capture"];

/// Compiles everything that is not up to date; installs the compiler first if it must.
///
/// # Errors
/// When a compiler is missing or refuses a program.
pub(crate) fn build(paths: &Paths, dist: &Dist) -> Result<PathBuf> {
    let toolchain = toolchain::ensure(paths)?;
    let out = paths.target.join("programs");
    let builder = Builder { paths, toolchain: &toolchain, out: &out };

    builder.cudart_11()?;
    let mut sources = Vec::new();
    for group in [&PROGRAMS, &SUITE, &RECIPES] {
        let files = files_in(&paths.root.join(group.directory), "cu")?;
        if files.is_empty() {
            bail!("{} holds no CUDA program", group.directory);
        }
        sources.extend(files.into_iter().map(|source| (group, source)));
    }
    in_parallel(sources, |(group, source)| builder.cuda(group, &source))?;
    for (directory, extension) in [("driver_api", "c"), ("process", "c"), ("process", "cpp")] {
        for source in files_in(&paths.root.join("programs").join(directory), extension)? {
            builder.driver_api(&source, &directory.replace('_', "-"), Nvrtc::V13_0, dist)?;
        }
    }
    let nvrtc = paths.root.join("programs/driver_api/nvrtc.c");
    builder.driver_api(&nvrtc, "nvrtc-12.9", Nvrtc::V12_9, dist)?;
    builder.several_runtimes()?;
    builder.mpi()?;
    builder.cudarc()?;
    python_tools::ensure_schemas(paths)?;
    Ok(out)
}

struct Builder<'a> {
    paths: &'a Paths,
    toolchain: &'a Toolchain,
    out: &'a Path,
}

impl Builder<'_> {
    fn cuda(&self, group: &Group, source: &Path) -> Result<()> {
        let name = stem(source)?;
        let text = read(source)?;
        let kinds: Vec<&str> = group.linkages.iter().map(|linkage| linkage.kind).collect();
        let mut inputs = format!(
            "{}\n{} {}\n{}\n{text}",
            self.toolchain.nvcc().display(),
            NVCC_FLAGS.join(" "),
            group.flags.join(" "),
            kinds.join(" ")
        );
        let own = source.with_extension("");
        let shared = ["programs/cuda", "programs/kernels"].map(|path| self.paths.root.join(path));
        for directory in shared.iter().chain(own.is_dir().then_some(&own)) {
            for header in files_in(directory, "h")? {
                inputs.push_str(&read(&header)?);
            }
        }
        let stamp = self.out.join("stamps").join(format!("{name}.cu"));
        if fs::read_to_string(&stamp).is_ok_and(|built| built == inputs) {
            return Ok(());
        }
        let object = self.out.join("objects").join(format!("{name}.o"));
        create_parent(&object)?;
        let directive = |prefix| text.lines().find_map(|line| line.strip_prefix(prefix));
        let extra = directive("// nvcc-flags: ");
        let architecture = directive("// nvcc-arch: ").unwrap_or(OLDEST_ARCHITECTURE);
        command::run_quietly(
            Command::new(self.toolchain.nvcc())
                .args(NVCC_FLAGS)
                .arg(format!("-gencode=arch={architecture},code={architecture}"))
                .args(group.flags)
                .args(extra.unwrap_or_default().split_whitespace())
                .arg(source)
                .arg("-o")
                .arg(&object),
        )?;
        for linkage in group.linkages {
            if linkage.cudart == Cudart::V11_8 && NOT_FOR_CUDA_11.contains(&name.as_str()) {
                continue;
            }
            let program = self.out.join(linkage.kind).join(&name);
            create_parent(&program)?;
            self.link(&object, &program, linkage, &[])?;
        }
        write_stamp(&stamp, &inputs)
    }

    /// Links an object with a CUDA runtime library.
    fn link(&self, object: &Path, to: &Path, linkage: &Linkage, flags: &[&str]) -> Result<()> {
        let libraries = self.toolchain.cudart_directory(linkage.cudart);
        let mut linker = Command::new("g++");
        linker.args(flags).arg(object).arg("-o").arg(to);
        if linkage.cudart == Cudart::V11_8 {
            linker.arg(self.cudart_11_object());
        }
        command::run_quietly(
            linker
                .arg(libraries.join(linkage.library))
                .arg(format!("-Wl,-rpath,{}", libraries.display()))
                .args(["-ldl", "-lpthread", "-lrt"]),
        )?;
        Ok(())
    }

    fn cudart_11_object(&self) -> PathBuf {
        self.out.join("objects/cudart_11.c.o")
    }

    /// What the compiler of CUDA 13 needs and the runtime library of 11.8 does not have.
    fn cudart_11(&self) -> Result<()> {
        let source = self.paths.root.join("programs/runtimes/cudart_11.c");
        let object = self.cudart_11_object();
        let (stamp, inputs) = (self.out.join("stamps/cudart_11.c"), read(&source)?);
        if fs::read_to_string(&stamp).is_ok_and(|built| built == inputs) {
            return Ok(());
        }
        create_parent(&object)?;
        command::run_quietly(
            Command::new("gcc")
                .args(["-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c"])
                .arg(&source)
                .arg("-o")
                .arg(&object),
        )?;
        write_stamp(&stamp, &inputs)
    }

    /// A program of three parts, each with a runtime library of its own.
    fn several_runtimes(&self) -> Result<()> {
        let directory = self.paths.root.join("programs/runtimes");
        let (part, main) = (directory.join("part.cu"), directory.join("several_runtimes.c"));
        let nvcc = self.toolchain.nvcc();
        let inputs = format!("{}\n{}\n{}", nvcc.display(), read(&part)?, read(&main)?);
        let stamp = self.out.join("stamps/several_runtimes");
        if fs::read_to_string(&stamp).is_ok_and(|built| built == inputs) {
            return Ok(());
        }
        let object = self.out.join("objects/part.o");
        create_parent(&object)?;
        command::run_quietly(
            Command::new(nvcc)
                .args(NVCC_FLAGS)
                .args(["-Xcompiler", "-fPIC"])
                .arg(format!("-gencode=arch={OLDEST_ARCHITECTURE},code={OLDEST_ARCHITECTURE}"))
                .arg(&part)
                .arg("-o")
                .arg(&object),
        )?;
        let out = self.out.join("runtimes");
        let program = out.join("several_runtimes");
        create_parent(&program)?;
        let kinds = ["cudart-11.8-shared", "cudart-12.9-static", "cudart-13.0-shared"];
        for linkage in LINKAGES.iter().filter(|linkage| kinds.contains(&linkage.kind)) {
            let library = out.join(format!("part-{}.so", linkage.kind));
            // A library in it stays its own.
            self.link(&object, &library, linkage, &["-shared", "-Wl,--exclude-libs,ALL"])?;
        }
        command::run_quietly(
            Command::new("gcc")
                .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
                .arg(&main)
                .arg("-o")
                .arg(&program)
                .arg("-ldl"),
        )?;
        write_stamp(&stamp, &inputs)
    }

    /// Programs of several processes; none where there is no Open MPI.
    fn mpi(&self) -> Result<()> {
        let Some(openmpi) = openmpi::ensure(self.paths)? else { return Ok(()) };
        // The same programs: Open MPI 4 and 5 have one ABI.
        cuda_aware_mpi::ensure(self.paths)?;
        for source in files_in(&self.paths.root.join("programs/mpi"), "cu")? {
            let name = stem(&source)?;
            let inputs = format!("{}\n{}", openmpi.library().display(), read(&source)?);
            let stamp = self.out.join("stamps").join(format!("mpi-{name}.cu"));
            if fs::read_to_string(&stamp).is_ok_and(|built| built == inputs) {
                continue;
            }
            let object = self.out.join("objects").join(format!("mpi-{name}.o"));
            create_parent(&object)?;
            command::run_quietly(
                Command::new(self.toolchain.nvcc())
                    .args(NVCC_FLAGS)
                    .arg(format!("-gencode=arch={OLDEST_ARCHITECTURE},code={OLDEST_ARCHITECTURE}"))
                    .arg("-I")
                    .arg(openmpi.include())
                    .arg(&source)
                    .arg("-o")
                    .arg(&object),
            )?;
            let program = self.out.join("mpi").join(&name);
            create_parent(&program)?;
            let cudart = &LINKAGES[0];
            let libraries = self.toolchain.cudart_directory(cudart.cudart);
            let needed =
                openmpi.library_directories().map(|d| format!("-Wl,-rpath-link,{}", d.display()));
            command::run_quietly(
                Command::new("g++")
                    .arg(&object)
                    .arg("-o")
                    .arg(&program)
                    .arg(libraries.join(cudart.library))
                    .arg(openmpi.library())
                    .args(needed)
                    .args(["-ldl", "-lpthread", "-lrt"]),
            )?;
            write_stamp(&stamp, &inputs)?;
        }
        Ok(())
    }

    fn driver_api(&self, source: &Path, kind: &str, nvrtc: Nvrtc, dist: &Dist) -> Result<()> {
        let name = stem(source)?;
        let text = read(source)?;
        let mut inputs = format!("{}\n{text}", self.toolchain.include().display());
        for header in ["driver_api/check.h", "process/process.h", "process/orders.h"] {
            inputs.push_str(&read(&self.paths.root.join("programs").join(header))?);
        }
        let stamp = self.out.join("stamps").join(format!("{kind}-{name}.c"));
        if fs::read_to_string(&stamp).is_ok_and(|built| built == inputs) {
            return Ok(());
        }
        let program = self.out.join(kind).join(&name);
        create_parent(&program)?;
        let (compiler, standard) = match source.extension().is_some_and(|it| it == "cpp") {
            true => ("g++", "-std=gnu++17"),
            false => ("gcc", "-std=gnu11"),
        };
        let mut compiler = Command::new(compiler);
        compiler
            .args([standard, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
            .arg(self.toolchain.include())
            .arg("-isystem")
            .arg(self.toolchain.nvtx_include())
            .arg(source)
            .arg("-o")
            .arg(&program)
            .arg("-ldl");
        if text.contains("#include <nvrtc.h>") {
            // Linked as ordinary programs are: by name against the libraries that it finds at run
            // time.
            let directory = self.toolchain.nvrtc_directory(nvrtc);
            compiler
                .arg(directory.join(nvrtc.library()))
                // An rpath of the old kind also serves the libraries that NVRTC opens itself.
                .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", directory.display()))
                .arg("-L")
                .arg(dist.client_directory())
                .arg("-lcuda");
        }
        command::run_quietly(&mut compiler)?;
        write_stamp(&stamp, &inputs)
    }

    fn cudarc(&self) -> Result<()> {
        let target = self.paths.target.join("cudarc");
        command::run(
            command::cargo()
                .current_dir(self.paths.root.join("programs/cudarc"))
                .args(["build", "--quiet", "--locked", "--target-dir"])
                .arg(&target),
        )?;
        let program = self.out.join("rust/cudarc");
        create_parent(&program)?;
        fs::copy(target.join("debug/cudarc-program"), &program)
            .with_context(|| format!("cannot write {}", program.display()))?;
        Ok(())
    }
}

/// Runs `job` for every item on as many threads as there are processors; the first error wins.
fn in_parallel<T: Send>(items: Vec<T>, job: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(VecDeque::from(items));
    let next = || queue.lock().ok()?.pop_front();
    let work = || -> Result<()> {
        while let Some(item) = next() {
            job(item)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for worker in running {
            match worker.join() {
                Ok(result) => result?,
                Err(_) => bail!("a compiling thread panicked"),
            }
        }
        Ok(())
    })
}

/// The directory's files with an extension, in order of their names.
///
/// # Errors
/// When the directory cannot be read.
pub(crate) fn files_in(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", directory.display()))?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn stem(source: &Path) -> Result<String> {
    let stem = source.file_stem().and_then(OsStr::to_str);
    Ok(stem.with_context(|| format!("{} has no readable name", source.display()))?.to_owned())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))
}

fn write_stamp(stamp: &Path, inputs: &str) -> Result<()> {
    create_parent(stamp)?;
    fs::write(stamp, inputs).with_context(|| format!("cannot write {}", stamp.display()))
}
