//! What stands for an image of code in a file.

use policy::faults::suspects::Code;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// So much of an image's beginning and of its end is read: a large one is not to hold up the
/// keeper.
const READ_BYTES: u64 = 1 << 20;

/// See [`Code::image`]. Nobody writes the file any more.
pub fn image_hash(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let length = rustix::fs::fstat(file)?.st_size.max(0) as u64;
    let part = |from: u64| {
        let mut bytes = vec![0; READ_BYTES.min(length) as usize];
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(file, &mut bytes[done..], from + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        bytes.truncate(done);
        Ok::<_, Errno>(bytes)
    };
    Ok(Code::image(length, &part(0)?, &part(length.saturating_sub(READ_BYTES))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::MemfdFlags;

    fn hash(image: &[u8]) -> u64 {
        let file = rustix::fs::memfd_create("openmps-test", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&file, image), Ok(image.len()));
        image_hash(file.as_fd()).unwrap()
    }

    #[test]
    fn images_that_differ_at_either_end_or_in_length_have_other_hashes() {
        let image = vec![7; 3 << 20];
        assert_eq!(hash(&image), hash(&image));
        let changed = |at: usize| {
            let mut image = image.clone();
            image[at] = 8;
            hash(&image)
        };
        for other in [changed(0), changed(image.len() - 1), hash(&image[1..]), hash(b"")] {
            assert_ne!(hash(&image), other);
        }
    }
}
