//! Container images, made without Docker: an archive each, laid out as the Open Container
//! Initiative has it. It is a list of files by their SHA-256: a manifest, a configuration, layers.
//!
//! ```text
//! the system      glibc, and busybox for the shell of an init container, both from Debian
//! the program     usr/bin/openmps
//! the libraries   usr/lib/openmps/libcuda.so.1, libsoftcuda.so; of the daemon's image alone
//! ```

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::command::run_quietly;
use crate::debian::{self, Packages, Unpacked};
use crate::dist::{self, Build, Dist};
use crate::paths::Paths;
use crate::system_tree::{NAME, SUMMARY};
use crate::tree::{self, EPOCH_SECONDS, Tree, VERSION, fresh_directory, install};

/// Of Debian: the C library, and one program for the manifests' init container.
const SYSTEM: [&str; 2] = ["libc6", "busybox-static"];
/// What that container calls.
const COMMANDS: [&str; 4] = ["sh", "cp", "mv", "ln"];
/// Converts texts, which nothing here does.
const CONVERTERS: &str = "gconv";
const CREATED: &str = "2020-01-01T00:00:00Z";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// One image.
pub(crate) struct Image {
    /// Behind the product's name.
    pub(crate) part: &'static str,
    /// What it runs unless told otherwise.
    command: &'static [&'static str],
    layers: &'static [&'static str],
}

/// The daemon, and the device plugin of Kubernetes.
pub(crate) const IMAGES: [Image; 2] = [
    Image {
        part: "daemon",
        command: &["control", "-f"],
        layers: &["system", "program", "libraries"],
    },
    Image {
        part: "device-plugin",
        command: &["kubernetes", "device-plugin", "--config", "/etc/openmps/plugin.toml"],
        layers: &["system", "program"],
    },
];

/// How the images are made.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Also run both, as root, by crun
    #[arg(long)]
    check: bool,
    /// Use what is already built
    #[arg(long)]
    built: bool,
}

/// Makes the images; returns their directory.
///
/// # Errors
/// When something cannot be built, or an image does not do what it should.
pub(crate) fn run(paths: &Paths, options: &Options) -> Result<PathBuf> {
    let dist = if options.built { Dist::at(paths) } else { dist::build(paths, Build::Portable)? };
    let images = build(paths, &tree::build(paths, &dist)?)?.map_err(anyhow::Error::msg)?;
    if options.check {
        crate::images_check::check(paths, &images)?.print(crate::images_check::TRIED);
    }
    Ok(folder(paths).join("out"))
}

/// A step of the tests: made twice, they are the same bytes; and both run.
///
/// # Errors
/// What does not hold.
pub(crate) fn test(paths: &Paths, tree: &Tree) -> Result<()> {
    let images = match build(paths, tree)? {
        Ok(images) => images,
        Err(why) => {
            println!("no images: {why}");
            return Ok(());
        }
    };
    let read = |images: &[PathBuf]| images.iter().map(fs::read).collect::<Result<Vec<_>, _>>();
    let first = read(&images)?;
    let again = build(paths, tree)?.map_err(anyhow::Error::msg)?;
    ensure!(first == read(&again)?, "made twice, they are not the same");
    crate::images_check::check(paths, &images)?.print(crate::images_check::TRIED);
    Ok(())
}

/// Makes the archives of a tree, in the order of [`IMAGES`]; or says why this system cannot.
///
/// # Errors
/// When a tool fails, or Debian's packages cannot be fetched.
pub(crate) fn build(paths: &Paths, tree: &Tree) -> Result<Result<Vec<PathBuf>, String>> {
    let folder = folder(paths);
    let packages = paths.target.join("debian/image");
    let system = match debian::ensure_in(&packages, Packages::Only(&SYSTEM))? {
        Unpacked::At(system) => system,
        Unpacked::Skipped(why) => return Ok(Err(why)),
    };
    let layers = folder.join("layers");
    fresh_directory(&layers)?;
    lay_out_system(&system, &layers.join("system"))?;
    let program = layers.join("program");
    install(&tree.root.join("bin/openmps"), &program.join("usr/bin/openmps"), 0o755)?;
    let copyright = "share/doc/openmps/copyright";
    install(&tree.root.join(copyright), &program.join("usr").join(copyright), 0o644)?;
    let libraries = layers.join("libraries/usr/lib/openmps");
    for library in ["libcuda.so.1", "libsoftcuda.so"] {
        install(&tree.libraries().join(library), &libraries.join(library), 0o644)?;
    }
    symlink("libcuda.so.1", libraries.join("libcuda.so"))?;
    fresh_directory(&folder.join("out"))?;
    IMAGES.iter().map(|image| archive(&folder, image)).collect::<Result<_>>().map(Ok)
}

fn folder(paths: &Paths) -> PathBuf {
    paths.target.join("images")
}

/// Debian's files, with `bin`, `lib` and `lib64` as links into `usr`, in each release alike.
fn lay_out_system(packages: &Path, root: &Path) -> Result<()> {
    for directory in ["bin", "lib", "lib64"] {
        fs::create_dir_all(root.join("usr").join(directory))?;
        symlink(format!("usr/{directory}"), root.join(directory))?;
        for from in [packages.join(directory), packages.join("usr").join(directory)] {
            if from.is_dir() {
                tree::copy(&from, &root.join("usr").join(directory))?;
            }
        }
    }
    for entry in fs::read_dir(root.join("usr/lib"))? {
        let converters = entry?.path().join(CONVERTERS);
        if converters.exists() {
            fs::remove_dir_all(converters)?;
        }
    }
    for command in COMMANDS {
        symlink("busybox", root.join("usr/bin").join(command))?;
    }
    for package in SYSTEM {
        let copyright = format!("usr/share/doc/{package}/copyright");
        install(&packages.join(&copyright), &root.join(&copyright), 0o644)?;
    }
    for (file, line) in [
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ] {
        tree::write(&root.join(file), line.as_bytes())?;
    }
    // Where container runtimes and the manifests mount something: the root may be read-only.
    for place in [
        "dev",
        "etc/openmps",
        "proc",
        "root",
        "run/openmps",
        "sys",
        "tmp",
        "var/lib/kubelet/device-plugins",
        "var/lib/kubelet/pod-resources",
        "var/lib/openmps/kubernetes",
        "var/lib/openmps/lib",
        "var/log/openmps",
    ] {
        fs::create_dir_all(root.join(place))?;
    }
    Ok(())
}

fn archive(folder: &Path, image: &Image) -> Result<PathBuf> {
    let name = format!("{NAME}-{}", image.part);
    let layout = Layout { root: folder.join(&name) };
    fresh_directory(&layout.root.join("blobs/sha256"))?;
    let mut layers = Vec::new();
    let mut contents = Vec::new();
    for layer in image.layers {
        let plain = folder.join("layers").join(format!("{layer}.tar"));
        pack(&folder.join("layers").join(layer), &plain)?;
        contents.push(format!("sha256:{}", digest(&plain)?));
        run_quietly(Command::new("gzip").args(["-9", "-n", "-f"]).arg(&plain))?;
        layers.push(layout.add_file(LAYER, &plain.with_added_extension("gz"))?);
    }
    let history: Vec<Value> = image
        .layers
        .iter()
        .map(|layer| json!({"created": CREATED, "created_by": format!("{NAME}: the {layer}")}))
        .collect();
    let configuration = layout.add(
        CONFIGURATION,
        &json!({
            "created": CREATED, "architecture": "amd64", "os": "linux",
            "config": {
                "Entrypoint": ["/usr/bin/openmps"], "Cmd": image.command,
                "Env": ["PATH=/usr/bin:/bin"],
                "Labels": {
                    "org.opencontainers.image.title": name,
                    "org.opencontainers.image.description": SUMMARY,
                    "org.opencontainers.image.version": VERSION,
                    "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                },
            },
            "rootfs": {"type": "layers", "diff_ids": contents}, "history": history,
        }),
    )?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": configuration, "layers": layers,
    });
    let mut manifest = layout.add(MANIFEST, &manifest)?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": VERSION});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    tree::write(&layout.root.join("index.json"), index.to_string().as_bytes())?;
    let version = json!({"imageLayoutVersion": "1.0.0"}).to_string();
    tree::write(&layout.root.join("oci-layout"), version.as_bytes())?;
    let at = folder.join("out").join(format!("{name}-{VERSION}-x86_64.oci.tar"));
    pack(&layout.root, &at)?;
    fs::remove_dir_all(&layout.root)?;
    Ok(at)
}

/// The directory of an image while it is made.
struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Adds a document; returns its descriptor.
    fn add(&self, kind: &str, document: &Value) -> Result<Value> {
        let file = self.root.join("document");
        tree::write(&file, document.to_string().as_bytes())?;
        let descriptor = self.add_file(kind, &file)?;
        fs::remove_file(file)?;
        Ok(descriptor)
    }

    /// Adds a file under its digest; returns its descriptor.
    fn add_file(&self, kind: &str, file: &Path) -> Result<Value> {
        let digest = digest(file)?;
        let size = fs::copy(file, self.root.join("blobs/sha256").join(&digest))?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size}))
    }
}

/// An archive of what is in a directory, root's and the same bytes each time.
fn pack(directory: &Path, to: &Path) -> Result<()> {
    // Whatever this process's mask of modes is.
    run_quietly(Command::new("chmod").args(["-R", "u+rwX,go+rX,go-w"]).arg(directory))?;
    let shared = directory.join("tmp");
    if shared.exists() {
        fs::set_permissions(shared, Permissions::from_mode(0o1777))?;
    }
    run_quietly(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
            .arg(format!("--mtime=@{EPOCH_SECONDS}"))
            .arg("-C")
            .arg(directory)
            .arg("-cf")
            .arg(to)
            .arg("."),
    )
    .map(drop)
}

/// SHA-256 of a file, in hexadecimal.
fn digest(file: &Path) -> Result<String> {
    let said = run_quietly(Command::new("sha256sum").arg(file))?.stdout;
    let said = String::from_utf8(said)?;
    // A name with odd characters has a backslash before all.
    let digest = said.trim_start_matches('\\').split_whitespace().next();
    digest.map(str::to_owned).context("sha256sum says nothing")
}
