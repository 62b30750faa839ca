//! Images built by [`testing`](super::testing), whole, chosen from and damaged.

use core::ffi::c_void;

use proptest::prelude::*;

use super::cubin::{Parameter, kernels, parameter_layout};
use super::elf::Elf;
use super::fatbin::{Compression, EntryKind};
use super::testing::{EntrySpec, elf, fatbin, kernel_info, lz4, plain, zstd};
use super::*;

const PTX: &[u8] = b".version 8.0\n.target sm_75\n.address_size 64\n// text text text text text\n";

fn with_nul(text: &[u8]) -> Vec<u8> {
    [text, &[0, 0, 0]].concat()
}

fn target(major: u32, minor: u32, accepts: Accepts) -> Target {
    Target { major, minor, accepts }
}

fn chosen(entries: &[EntrySpec], target: Target) -> Result<Vec<u8>, ImageError> {
    let bytes = fatbin(entries);
    let code = Image::parse(&bytes)?.choose(target)?;
    Ok(code.bytes().to_vec())
}

#[test]
fn ptx_comes_out_of_every_compression_without_its_nul() {
    for entry in
        [plain(1, 75, &with_nul(PTX)), lz4(1, 75, &with_nul(PTX)), zstd(1, 75, &with_nul(PTX))]
    {
        let bytes = fatbin(&[entry]);
        let image = Image::parse(&bytes).unwrap();
        let code = image.choose(target(9, 0, Accepts::PtxOnly)).unwrap();
        assert_eq!(code, Code::Ptx(PTX.into()));
    }
}

#[test]
fn options_for_the_compiler_stay_with_their_text() {
    let device = target(9, 0, Accepts::MachineCode);
    for entry in [plain(1, 75, &with_nul(PTX)), zstd(1, 75, PTX), lz4(1, 75, PTX)] {
        let entry = EntrySpec { options: b" --fmad false ", ..entry };
        let bytes = fatbin(&[plain(1, 120, b"newer"), entry]);
        let code = Image::parse(&bytes).unwrap().text_with_options(device).unwrap().unwrap();
        let Code::Fatbin(alone) = &code else { panic!("{code:?}") };
        let text = |bytes: &[u8]| bytes.windows(13).any(|window| window == b"--fmad false ");
        assert!(text(alone), "the options are lost");
        let image = Image::parse(alone).unwrap();
        let Image::Fatbin { fatbin, .. } = &image else { panic!("no fatbin") };
        assert_eq!(fatbin.entries().len(), 1);
        assert_eq!(fatbin.entries()[0].compression, Compression::None);
        assert_eq!(image.choose(device).unwrap(), Code::Ptx(PTX.into()));
    }
    let plain_text = fatbin(&[zstd(1, 75, PTX)]);
    assert_eq!(Image::parse(&plain_text).unwrap().text_with_options(device).unwrap(), None);
}

#[test]
fn entries_tell_what_they_are() {
    let mut specific = plain(2, 90, b"cubin");
    specific.flags |= 0x100000;
    let bytes = fatbin(&[zstd(1, 120, PTX), specific, plain(8, 75, b"bitcode")]);
    let Image::Fatbin { fatbin, constituents } = Image::parse(&bytes).unwrap() else {
        panic!("not a fatbin")
    };
    assert!(constituents.is_empty());
    let entries = fatbin.entries();
    assert_eq!(entries.len(), 3);
    assert_eq!((entries[0].kind, entries[0].architecture), (EntryKind::Ptx, 120));
    assert_eq!(entries[0].compression, Compression::Zstd);
    assert_eq!(entries[1].portability, fatbin::Portability::ArchitectureSpecific);
    assert_eq!(entries[2].kind, EntryKind::Other(8));
}

#[test]
fn a_machine_takes_the_nearest_cubin_of_its_major_else_ptx_not_newer_than_itself() {
    let entries = [
        plain(2, 75, b"sm_75"),
        plain(2, 80, b"sm_80"),
        plain(2, 86, b"sm_86"),
        plain(1, 70, b"ptx70"),
        plain(1, 80, b"ptx80"),
        plain(1, 120, b"ptx120"),
    ];
    let on = |major, minor| {
        String::from_utf8(chosen(&entries, target(major, minor, Accepts::MachineCode)).unwrap())
            .unwrap()
            .trim_end_matches('\0')
            .to_owned()
    };
    assert_eq!(on(8, 0), "sm_80");
    assert_eq!(on(8, 5), "sm_80");
    assert_eq!(on(8, 9), "sm_86");
    assert_eq!(on(9, 0), "ptx80");
    assert_eq!(on(12, 1), "ptx120");
    let error = chosen(&entries[..3], target(9, 0, Accepts::MachineCode)).unwrap_err();
    assert_eq!(error.result(), CUresult::ERROR_NO_BINARY_FOR_GPU);
    assert!(error.to_string().contains("sm_86"), "{error}");
}

#[test]
fn specific_code_is_for_its_own_architecture_or_family() {
    let mut exact = plain(2, 90, b"sm_90a..");
    exact.flags |= 0x100000;
    let mut family = plain(2, 100, b"sm_100f.");
    family.flags |= 0x200000;
    let entries = [exact, plain(2, 90, b"sm_90..."), family];
    let on = |major, minor| chosen(&entries, target(major, minor, Accepts::MachineCode));
    assert_eq!(on(9, 0).unwrap(), b"sm_90a..");
    assert_eq!(on(9, 1).unwrap(), b"sm_90...");
    assert_eq!(on(10, 3).unwrap(), b"sm_100f.");
    assert!(on(12, 0).is_err());
}

#[test]
fn a_ptx_device_takes_newer_ptx_where_nothing_older_is_there() {
    let entries = [plain(2, 90, b"sm_90"), plain(1, 120, b"ptx120"), plain(1, 100, b"ptx100")];
    let on = |entries: &[EntrySpec]| chosen(entries, target(9, 0, Accepts::PtxOnly));
    assert_eq!(on(&entries).unwrap(), b"ptx100");
    assert_eq!(on(&entries[..2]).unwrap(), b"ptx120");
    assert_eq!(on(&entries[..1]).unwrap_err().result(), CUresult::ERROR_NO_BINARY_FOR_GPU);
    assert!(on(&[]).unwrap_err().to_string().contains("found: nothing"));
    let older = [plain(1, 75, b"ptx75"), plain(1, 80, b"ptx80"), plain(1, 100, b"ptx100")];
    assert_eq!(on(&older).unwrap(), b"ptx80");
}

#[test]
fn declared_sizes_are_limits() {
    let mut bomb = zstd(1, 75, &vec![b'x'; 1 << 20]);
    bomb.uncompressed_bytes = 1000;
    assert!(matches!(
        chosen(&[bomb], target(9, 0, Accepts::PtxOnly)),
        Err(ImageError::Decompression(_))
    ));
    let mut huge = lz4(1, 75, PTX);
    huge.uncompressed_bytes = 1 << 40;
    let error = chosen(&[huge], target(9, 0, Accepts::PtxOnly)).unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
    let mut large = lz4(1, 75, PTX);
    large.uncompressed_bytes = 256 << 20;
    let error = chosen(&[large], target(9, 0, Accepts::PtxOnly)).unwrap_err();
    assert!(matches!(error, ImageError::Decompression(_)), "{error}");
    assert_eq!(error.result(), CUresult::ERROR_INVALID_IMAGE);
}

#[test]
fn cubins_tell_architecture_and_parameters() {
    let narrow = kernel_info(&[(0, 8), (8, 4), (16, 100)], false);
    let wide = kernel_info(&[(0, 20000)], true);
    let bytes = elf(&[
        (".text.add", b"code"),
        (".nv.info.add", &narrow),
        (".text.big", b"code"),
        (".nv.info.big", &wide),
        (".text.none", b"code"),
        (".nv.info", b"not a kernel's"),
    ]);
    let padded = [bytes.as_slice(), b"something else"].concat();
    let Image::Elf(elf) = Image::parse(&padded).unwrap() else { panic!("not ELF") };
    assert_eq!(elf.bytes(), bytes);
    assert_eq!(elf.architecture(), Some(90));
    let kernels = kernels(&elf).unwrap();
    let names: Vec<_> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["add", "big", "none"]);
    let add = &kernels[0].layout;
    assert_eq!(add.total_bytes, 116);
    assert_eq!(add.bank_offset_bytes, Some(0x210));
    assert_eq!(add.parameters[2], Parameter { offset_bytes: 16, size_bytes: 100 });
    assert_eq!(kernels[1].layout.parameters, [Parameter { offset_bytes: 0, size_bytes: 20000 }]);
    assert!(kernels[2].layout.parameters.is_empty());
}

#[test]
fn damaged_kernel_information_is_refused() {
    let info = kernel_info(&[(0, 8), (8, 8)], false);
    assert!(parameter_layout(&info).is_ok());
    assert!(parameter_layout(&info[..info.len() - 1]).is_err());
    assert!(parameter_layout(&info[16..]).is_ok());
    // The record of parameter 0 is missing.
    let without_first = [&info[..16], &info[32..]].concat();
    assert!(parameter_layout(&without_first).is_err());
}

#[test]
fn other_bytes_are_no_image() {
    for bytes in [&b""[..], b"\0\0\0\0", b"\x80PTX", b"\x7fELF", b"\x7fELF\x01\x01"] {
        assert_eq!(Image::parse(bytes).unwrap_err().result(), CUresult::ERROR_INVALID_IMAGE);
    }
    let wrapper = [&WRAPPER_MAGIC.to_le_bytes()[..], &[0; 20]].concat();
    assert!(Image::parse(&wrapper).is_err());
}

#[test]
fn extents_are_found_from_addresses() {
    let from = |bytes: &[u8]| {
        // SAFETY: the bytes outlive the image, which is reduced to sizes here.
        match unsafe { Image::from_pointer(bytes.as_ptr().cast()) }.unwrap() {
            Image::Fatbin { fatbin, .. } => fatbin.bytes().len(),
            Image::Elf(elf) => elf.bytes().len(),
            Image::Ptx(text) => text.len(),
        }
    };
    for image in [fatbin(&[lz4(1, 75, PTX), plain(2, 90, b"sm_90")]), elf(&[(".text.k", b"code")])]
    {
        assert_eq!(from(&[image.as_slice(), b"more bytes follow"].concat()), image.len());
    }
    let long = vec![b'/'; 20000];
    assert_eq!(from(&with_nul(&long)), long.len());
}

#[test]
fn wrappers_lead_to_their_fatbins() {
    let linked = fatbin(&[plain(2, 90, b"linked")]);
    let parts = [fatbin(&[plain(1, 90, b"part 1..")]), fatbin(&[plain(2, 90, b"part 2..")])];
    let list = [parts[0].as_ptr(), parts[1].as_ptr(), core::ptr::null()];
    #[repr(C)]
    struct Wrapper(u32, u32, *const u8, *const *const u8);
    let wrapper = Wrapper(WRAPPER_MAGIC, 2, linked.as_ptr(), list.as_ptr());
    // SAFETY: all of it lives on this stack frame or in these vectors.
    let image = unsafe { Image::from_pointer((&raw const wrapper).cast()) }.unwrap();
    let on_machine = image.choose(target(9, 0, Accepts::MachineCode)).unwrap();
    assert_eq!(on_machine, Code::Elf(b"linked\0\0".into()));
    let error = image.choose(target(9, 0, Accepts::PtxOnly)).unwrap_err();
    assert!(error.to_string().contains("relocatable PTX"), "{error}");
    let texts = image.relocatable_ptx(target(9, 0, Accepts::PtxOnly)).unwrap();
    assert_eq!(texts, [Code::Ptx(b"part 1..".into())]);

    // In version 1 the last word is a file name, not a list.
    let wrapper = Wrapper(WRAPPER_MAGIC, 1, linked.as_ptr(), c"file.cu".as_ptr().cast());
    // SAFETY: as above.
    let image = unsafe { Image::from_pointer((&raw const wrapper).cast()) }.unwrap();
    assert!(matches!(image, Image::Fatbin { constituents, .. } if constituents.is_empty()));
}

#[test]
fn unreadable_memory_is_an_error_and_no_crash() {
    let mut far = fatbin(&[plain(1, 75, PTX)]);
    far[8..16].copy_from_slice(&(1u64 << 32).to_le_bytes());
    // SAFETY: unreadable memory is what this is about.
    let error = unsafe { Image::from_pointer(far.as_ptr().cast()) }.unwrap_err();
    assert!(matches!(error, ImageError::Unreadable { .. }), "{error}");
    for address in [0usize, 8, 1 << 63, usize::MAX - 2] {
        // SAFETY: as above.
        let error = unsafe { Image::from_pointer(address as *const c_void) }.unwrap_err();
        assert_eq!(error.result(), CUresult::ERROR_INVALID_IMAGE);
    }
}

/// Bytes that end where readable memory ends.
struct Fenced {
    mapping: *mut c_void,
    start: *const u8,
}

const FENCED_BYTES: usize = 4 * 4096;

impl Fenced {
    fn new(bytes: &[u8]) -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        assert!(bytes.len() <= FENCED_BYTES);
        let (access, size_bytes) = (ProtFlags::READ | ProtFlags::WRITE, FENCED_BYTES + 4096);
        // SAFETY: a new mapping, of which only this object knows.
        unsafe {
            let mapping =
                mmap_anonymous(core::ptr::null_mut(), size_bytes, access, MapFlags::PRIVATE)
                    .unwrap();
            mprotect(mapping.byte_add(FENCED_BYTES), 4096, MprotectFlags::empty()).unwrap();
            let start = mapping.cast::<u8>().add(FENCED_BYTES - bytes.len());
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Self { mapping, start }
        }
    }

    fn image(&self) -> Result<Image<'_>, ImageError> {
        // SAFETY: unchanged and mapped as long as `self`.
        unsafe { Image::from_pointer(self.start.cast()) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no image outlives it.
        _ = unsafe { rustix::mm::munmap(self.mapping, FENCED_BYTES + 4096) };
    }
}

#[test]
fn truncated_images_at_the_end_of_memory_are_refused() {
    let cubin = elf(&[(".text.add", b"code")]);
    for whole in [fatbin(&[zstd(1, 90, PTX), plain(2, 90, &cubin)]), cubin, with_nul(PTX)] {
        let fenced = Fenced::new(&whole);
        assert!(fenced.image().is_ok());
        // Text ends at the first of its NULs.
        for size_bytes in (1..whole.len() - 3).step_by(7) {
            let fenced = Fenced::new(&whole[..size_bytes]);
            assert!(fenced.image().is_err(), "{size_bytes} of {} bytes", whole.len());
        }
    }
}

/// Everything that can be done with an image whose bytes are untrusted.
fn exercise(bytes: &[u8]) {
    let Ok(image) = Image::parse(bytes) else { return };
    for accepts in [Accepts::MachineCode, Accepts::PtxOnly] {
        let target = target(9, 0, accepts);
        if let Ok(Code::Elf(contents)) = image.choose(target)
            && let Ok(elf) = Elf::parse(&contents)
        {
            _ = kernels(&elf);
        }
    }
    if let Image::Fatbin { fatbin, .. } = &image {
        for entry in fatbin.entries() {
            _ = entry.contents();
        }
    }
    if let Image::Elf(elf) = &image {
        _ = (elf.architecture(), kernels(elf));
    }
}

fn sample() -> Vec<u8> {
    let info = kernel_info(&[(0, 8), (8, 4)], false);
    let cubin = elf(&[(".text.add", b"code"), (".nv.info.add", &info)]);
    fatbin(&[
        plain(2, 90, &cubin),
        lz4(1, 75, &with_nul(PTX)),
        zstd(2, 80, &cubin),
        zstd(1, 90, PTX),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        exercise(&bytes);
        for magic in [fatbin::MAGIC, elf::MAGIC] {
            exercise(&[&magic.to_le_bytes()[..], &bytes].concat());
        }
        _ = parameter_layout(&bytes);
    }

    #[test]
    fn damaged_fatbins_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample();
        for (at, value) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        exercise(&bytes);
        _ = Fenced::new(&bytes).image();
        bytes.truncate(keep.index(bytes.len()));
        exercise(&bytes);
        _ = Fenced::new(&bytes).image();
    }

    #[test]
    fn damaged_cubins_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        word in any::<u64>(),
        word_at in any::<prop::sample::Index>(),
    ) {
        let info = kernel_info(&[(0, 8), (8, 4)], true);
        let mut bytes = elf(&[(".text.add", b"code"), (".nv.info.add", &info)]);
        for (at, value) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        exercise(&bytes);
        let at = word_at.index(bytes.len() / 8) * 8;
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        exercise(&bytes);
        _ = Fenced::new(&bytes).image();
    }

    #[test]
    fn what_is_built_is_read_back(
        texts in proptest::collection::vec(
            (50u32..130, proptest::collection::vec(1u8.., 1..400), 0..3usize), 1..6),
    ) {
        let entries: Vec<_> = texts
            .iter()
            .map(|(arch, text, how)| [plain, lz4, zstd][*how](1, *arch, text))
            .collect();
        let bytes = fatbin(&entries);
        let Image::Fatbin { fatbin, .. } = Image::parse(&bytes).unwrap() else { panic!() };
        for (entry, (architecture, text, _)) in fatbin.entries().iter().zip(&texts) {
            prop_assert_eq!(entry.architecture, *architecture);
            let contents = entry.contents().unwrap();
            prop_assert_eq!(contents.as_ref(), text.as_slice());
        }
    }
}
