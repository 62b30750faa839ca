//! Bytes that nobody can guess.

use std::io;

/// So many of them, at most 256: the kernel gives those in one piece.
///
/// # Errors
/// The kernel has none.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    // The kernel's own call: the C library has had a function for it only since version 2.25.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        got if got == N => Ok(bytes),
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
