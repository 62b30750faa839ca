//! Memory that is not what a client's should be, or too much of it.

use std::ffi::c_void;
use std::ptr;

use anyhow::{Context, Result};
use link::shm;
use link::wire::command::{Copy, Grow, GrowReply, ModuleLoad, Opcode, REGION_PINNED, REGION_PLAIN};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::session::Session;

const HUGE_PAGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;

/// A file of one huge page, which is there.
#[derive(Debug)]
pub(crate) struct HugePages {
    file: OwnedFd,
    mapped: *mut c_void,
}

impl HugePages {
    fn take() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let file = rustix::fs::memfd_create("attack", flags)?;
        rustix::fs::ftruncate(&file, HUGE_PAGE_BYTES)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        // SAFETY: no address is wanted, so nothing is replaced.
        let mapped = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                HUGE_PAGE_BYTES as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .context("there is no huge page")?;
        let pages = Self { file, mapped };
        pages.touch();
        Ok(pages)
    }

    fn touch(&self) {
        // SAFETY: mapped for as long as this lives, and the page is there.
        unsafe { self.mapped.cast::<u8>().write_volatile(1) };
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: mapped by this object, and used by nobody else.
        let _ = unsafe { rustix::mm::munmap(self.mapped, HUGE_PAGE_BYTES as usize) };
    }
}

/// Gives the executor a region of a huge page, takes the page away, and has the executor touch it.
pub(crate) fn touch_lost_pages(
    session: &mut Session,
    kind: u32,
    pages: &mut Vec<HugePages>,
) -> Result<String> {
    let grow = Grow { size_bytes: HUGE_PAGE_BYTES };
    let (code, reply) = session.call(Opcode::Grow, &[grow.as_bytes()])?;
    let (grown, _) = GrowReply::read_from_prefix(&reply)
        .map_err(|_| anyhow::anyhow!("no device memory: {code}"))?;
    let region = HugePages::take()?;
    let code = session.map(region.file.as_fd(), 0, HUGE_PAGE_BYTES, kind)?;
    if code != 0 {
        return Ok(format!("refused {code}"));
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&region.file, hole, 0, HUGE_PAGE_BYTES)?;
    // Whoever touches the region now finds no page left.
    pages.push(HugePages::take()?);
    let address = session.window.base;
    let code = match kind {
        REGION_PINNED => {
            let copy = Copy {
                destination: grown.address,
                source: address,
                size_bytes: 4096,
                ..Default::default()
            };
            session.call(Opcode::Copy, &[copy.as_bytes()])?.0
        }
        _ => {
            let load = ModuleLoad {
                module: 0,
                optimization_level: u32::MAX,
                max_registers: 0,
                log_bytes: 0,
                address,
                size_bytes: 4096,
            };
            session.call(Opcode::ModuleLoad, &[load.as_bytes()])?.0
        }
    };
    Ok(format!("touched {code}"))
}

/// Has one page mapped at so many places, with room between them; says how many it got, and the
/// code of the one that it did not get.
pub(crate) fn map_again_and_again(session: &mut Session, count: u64) -> Result<String> {
    let file = shm::create("attack", PAGE_BYTES)?;
    for place in 0..count {
        let offset = 2 * place * PAGE_BYTES;
        let code = session.map(file.as_fd(), offset, PAGE_BYTES, REGION_PLAIN)?;
        if code != 0 {
            return Ok(format!("mapped {place} then {code}"));
        }
    }
    Ok(format!("mapped {count}"))
}

/// Has a file without pages pinned.
pub(crate) fn pin(session: &mut Session, size_bytes: u64) -> Result<String> {
    let file = shm::create("attack", size_bytes)?;
    let offset = session.window.size_bytes - size_bytes;
    Ok(format!("pinned {}", session.map(file.as_fd(), offset, size_bytes, REGION_PINNED)?))
}
