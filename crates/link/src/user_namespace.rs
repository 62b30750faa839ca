//! Whose doing it is that a process lives in another user namespace, in the kernel's word:
//! ioctl_nsfs(2).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// `NS_GET_PARENT` of linux/nsfs.h.
const GET_PARENT: libc::Ioctl = 0xb702;
/// `NS_GET_OWNER_UID` of linux/nsfs.h.
const GET_OWNER_UID: libc::Ioctl = 0xb704;
/// So deep the kernel nests them: 32 below the first.
const DEEPEST: usize = 33;

/// Of the user namespaces around `inner`, a file of `/proc/PID/ns/user`, the outermost one below
/// `home`: the user who has made it. Whoever lives in one cannot leave it, and which ids it has was
/// up to that user. `None`: `inner` is `home`.
///
/// # Errors
/// `inner` is not below `home`, or the kernel does not say.
pub fn outermost_owner(inner: File, home: &File) -> io::Result<Option<u32>> {
    let identity = |of: &File| of.metadata().map(|found| (found.dev(), found.ino()));
    let home = identity(home)?;
    if identity(&inner)? == home {
        return Ok(None);
    }
    let mut namespace = inner;
    for _ in 0..DEEPEST {
        let parent = parent(&namespace)?;
        if identity(&parent)? == home {
            return owner(&namespace).map(Some);
        }
        namespace = parent;
    }
    Err(io::Error::other("user namespaces are nested deeper than the kernel allows"))
}

fn parent(namespace: &File) -> io::Result<File> {
    // SAFETY: this request has no argument.
    let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_PARENT) };
    if parent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { File::from_raw_fd(parent) })
}

fn owner(namespace: &File) -> io::Result<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: this request writes a user id to where the argument points.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), GET_OWNER_UID, &raw mut uid) } {
        0 => Ok(uid),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_nobody_elses_doing() {
        let own = || File::open("/proc/self/ns/user").unwrap();
        assert_eq!(outermost_owner(own(), &own()).unwrap(), None);
        // Nothing above this one has another one for its home.
        let other = File::open("/proc/self/ns/mnt").unwrap();
        assert!(outermost_owner(own(), &other).is_err());
    }
}
