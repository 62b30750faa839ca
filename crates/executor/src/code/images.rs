//! Images of code that the next executor will need, each once by content, in files that the keeper
//! holds besides.

use crate::session::budgets::{Holding, ImageBytes};
use cuda_abi::types::CUresult;
use link::shm::{Access, Mapping};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An image in a file, which counts for who was the first to have it.
#[derive(Debug)]
pub(crate) struct StoredImage {
    file: OwnedFd,
    _counted: ImageBytes,
}

impl AsFd for StoredImage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Hashes and length.
type Content = ([u64; 2], usize);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// Two hashes that nobody can foresee stand for the content.
    hashes: [RandomState; 2],
    known: Mutex<HashMap<Content, Weak<StoredImage>>>,
}

impl Images {
    /// The file of an image, counted for this session if nobody else has the same.
    pub(crate) fn store(
        &self,
        image: &[u8],
        holding: &Holding,
    ) -> Result<Arc<StoredImage>, CUresult> {
        self.find_or(image, || {
            let counted = holding.budgets().take_image(holding.owner(), image.len() as u64);
            let _counted = counted.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
            let file = write(image).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
            Ok(StoredImage { file, _counted })
        })
    }

    /// Takes over a file that an executor before has made.
    pub(crate) fn adopt(
        &self,
        image: &[u8],
        file: OwnedFd,
        holding: &Holding,
    ) -> Result<Arc<StoredImage>, CUresult> {
        self.find_or(image, || {
            let _counted = holding.budgets().count_image(holding.owner(), image.len() as u64);
            Ok(StoredImage { file, _counted })
        })
    }

    fn find_or(
        &self,
        image: &[u8],
        make: impl FnOnce() -> Result<StoredImage, CUresult>,
    ) -> Result<Arc<StoredImage>, CUresult> {
        let key = (self.hashes.each_ref().map(|hash| hash.hash_one(image)), image.len());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(found);
        }
        known.retain(|_, image| image.strong_count() > 0);
        let stored = Arc::new(make()?);
        known.insert(key, Arc::downgrade(&stored));
        Ok(stored)
    }
}

/// Bytes in a file of their own.
pub(crate) fn write(bytes: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    let file = rustix::fs::memfd_create("openmps-image", MemfdFlags::CLOEXEC)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    Ok(file)
}

/// The bytes of such a file.
pub(crate) fn read(file: BorrowedFd<'_>) -> Result<Vec<u8>, CUresult> {
    let unreadable = |_| CUresult::ERROR_UNKNOWN;
    let length = rustix::fs::fstat(file).map_err(unreadable)?.st_size as usize;
    let mapping =
        Mapping::new(file, length, Access::ReadOnly).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    // SAFETY: a mapping of that length of a file that nobody writes any more.
    Ok(unsafe { std::slice::from_raw_parts(mapping.base(), length) }.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::budgets::Budgets;
    use link::wire::owner::Owner;

    #[test]
    fn what_is_the_same_is_stored_once_while_somebody_has_it() {
        let images = Images::default();
        let holding = Budgets::of_process().open(&Owner::user(1), None);
        let one = images.store(b"one", &holding).unwrap();
        assert!(Arc::ptr_eq(&one, &images.store(b"one", &holding).unwrap()));
        assert!(!Arc::ptr_eq(&one, &images.store(b"two", &holding).unwrap()));
        assert_eq!(read(one.as_fd()).unwrap(), b"one");
        let copy = one.as_fd().try_clone_to_owned().unwrap();
        drop(one);
        let adopted = images.adopt(b"one", copy, &holding).unwrap();
        assert!(Arc::ptr_eq(&adopted, &images.store(b"one", &holding).unwrap()));
    }
}
