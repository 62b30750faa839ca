//! Bytes that nobody can guess.

use std::io;

/// So many of them, at most 256: the kernel gives those in one piece.
///
/// # Errors
/// The kernel has none.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    // SAFETY: a buffer with its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    match got {
        -1 => Err(io::Error::last_os_error()),
        got if got as usize == N => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_are_alike() {
        let [one, other] = [(), ()].map(|()| super::bytes::<16>().unwrap());
        assert_ne!(one, other);
        assert_ne!(super::bytes::<256>().unwrap()[240..], [0; 16]);
    }
}
