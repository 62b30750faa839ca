//! Whether a program can be a client at all, read from its file before it is started.
//!
//! The library is for glibc, as NVIDIA's driver is. A program of another C library would find no
//! driver, or crash while loading it, and would not say why.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Why a program cannot be served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unservable {
    /// Its loader is of another C library.
    #[error("{} is a program of musl ({}), which can load neither NVIDIA's driver nor OpenMPS: both need glibc. Use a build for glibc, in a container an image of Debian, Ubuntu or RHEL instead of Alpine", program.display(), loader.display())]
    Musl {
        /// The program, or what interprets the script.
        program: PathBuf,
        /// As the program names it.
        loader: PathBuf,
    },
}

/// Longest first line of a script that the kernel looks at.
const SCRIPT_LINE_BYTES: usize = 256;
/// Scripts whose interpreters are scripts, as deep as the kernel goes.
const MOST_SCRIPTS: usize = 4;
const ELF_OF_64_BITS: &[u8] = b"\x7fELF\x02\x01";
const HEADER_BYTES: usize = 64;
const SEGMENT_INTERPRETER: u32 = 3;
const SEGMENT_HEADER_BYTES: u64 = 56;
/// What the kernel takes.
const LONGEST_PATH_BYTES: u64 = 4096;
/// Programs have about ten segments.
const MOST_SEGMENTS: u64 = 1000;

/// Looks at a program's file. What cannot be read is somebody else's to say.
///
/// # Errors
/// Why it cannot be served.
pub(crate) fn check(program: &Path) -> Result<(), Unservable> {
    let mut program = program.to_owned();
    for _ in 0..MOST_SCRIPTS {
        match kind(&program) {
            Ok(Kind::Script(interpreter)) => program = interpreter,
            Ok(Kind::Loaded(loader)) if is_musl(&loader) => {
                return Err(Unservable::Musl { program, loader });
            }
            Ok(Kind::Loaded(_) | Kind::Other) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// What a file is.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Interpreted by this.
    Script(PathBuf),
    /// Of 64 bits, started by a loader.
    Loaded(PathBuf),
    /// Linked statically, or something else: it may start one that can be served.
    Other,
}

fn kind(program: &Path) -> io::Result<Kind> {
    let file = File::open(program)?;
    let mut start = Vec::new();
    (&file).take(SCRIPT_LINE_BYTES as u64).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(line).trim_ascii();
        let word = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or(line);
        return Ok(Kind::Script(PathBuf::from(std::ffi::OsStr::from_bytes(word))));
    }
    if !start.starts_with(ELF_OF_64_BITS) || start.len() < HEADER_BYTES {
        return Ok(Kind::Other);
    }
    let headers = u64_of(&start[32..40]);
    let count = u64::from(u16::from_le_bytes([start[56], start[57]])).min(MOST_SEGMENTS);
    for index in 0..count {
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let at = headers.saturating_add(index * SEGMENT_HEADER_BYTES);
        file.read_exact_at(&mut header, at)?;
        if header[..4] == SEGMENT_INTERPRETER.to_le_bytes() {
            let size = u64_of(&header[32..40]).min(LONGEST_PATH_BYTES);
            let mut name = vec![0; size as usize];
            file.read_exact_at(&mut name, u64_of(&header[8..16]))?;
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            return Ok(Kind::Loaded(PathBuf::from(std::ffi::OsStr::from_bytes(&name[..end]))));
        }
    }
    Ok(Kind::Other)
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn is_musl(loader: &Path) -> bool {
    loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl-"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// An executable with nothing but a loader.
    fn elf(class: u8, loader: &str) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        bytes[32] = 64;
        bytes[56] = 1;
        let mut header = vec![0; 56];
        header[0] = 3;
        header[8] = 120;
        header[32] = loader.len() as u8 + 1;
        bytes.extend(header);
        bytes.extend(loader.as_bytes());
        bytes.push(0);
        bytes
    }

    #[test]
    fn programs_that_cannot_be_served_are_known_by_their_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let loader = "/lib/ld-musl-x86_64.so.1";
        let musl = file("musl", &elf(2, loader));
        let expected = Unservable::Musl { program: musl.clone(), loader: loader.into() };
        assert_eq!(check(&musl), Err(expected));
        let script = file("script", format!("#! {} -x\nls\n", musl.display()).as_bytes());
        assert!(matches!(check(&script), Err(Unservable::Musl { program, .. }) if program == musl));

        let usual = file("usual", &elf(2, "/lib64/ld-linux-x86-64.so.2"));
        let other = file("other", &elf(1, loader));
        let cut = file("cut", &elf(2, loader)[..100]);
        let itself = directory.path().join("itself");
        let itself = file("itself", format!("#!{}\n", itself.display()).as_bytes());
        let empty = file("empty", b"");
        let missing = directory.path().join("missing");
        for fine in [usual, other, cut, itself, empty, missing, std::env::current_exe().unwrap()] {
            assert_eq!(check(&fine), Ok(()), "{}", fine.display());
        }
    }
}
