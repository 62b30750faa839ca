//! Images as nvcc 13.0 writes them, as far as this is about. Instructions are its own, too.

use super::instruction::{Instruction, Reading};
use super::*;
use crate::faults::code_state::{may_have_variables, variable_names};

const HOPPER: u32 = 90;
const OBJECT: u8 = 1;
const FUNCTION: u8 = 2;
const MANAGED: u8 = 4;
const ADDRESS: u32 = 2;

/// Instructions for compute capability 9.0.
const LOAD_FIRST: [u64; 2] = [0x0100_0000_ff04_7b82, 0x000e_2400_0000_0a00];
const LOAD_SECOND: [u64; 2] = [0x0100_0200_ff04_7b82, 0x000e_2200_0000_0a00];
const LOAD_INDEXED: [u64; 2] = [0x0100_0000_0002_7b82, 0x000e_2200_0000_0a00];
const LOAD_CONSTANT: [u64; 2] = [0x00c0_0000_0000_7b82, 0x000e_2400_0000_0800];
const LOAD_PARAMETER: [u64; 2] = [0x0000_8400_ff02_7b82, 0x000e_2200_0000_0a00];
const CALL: [u64; 2] = [0x0000_0000_0200_7343, 0x000f_ea00_03c0_0000];
const WHERE: [u64; 2] = [0x0000_0000_1014_794e, 0x000f_cc00_0000_0000];
const STORE: [u64; 2] = [0x0000_0004_0200_7986, 0x000f_e200_0c10_1b04];
const EXIT: [u64; 2] = [0x0000_0000_0000_794d, 0x000f_ea00_0380_0000];

struct Relocated {
    section: &'static str,
    kind: u32,
    symbol: &'static str,
    offset: u64,
    addend: i64,
}

/// A cubin of one kernel, `k`, and one function, `f`.
struct Cubin {
    architecture: u32,
    code: Vec<[u64; 2]>,
    /// Name, section, kind and other.
    symbols: Vec<(&'static str, &'static str, u8, u8)>,
    relocations: Vec<Relocated>,
}

impl Cubin {
    fn new(code: &[[u64; 2]]) -> Self {
        let symbols =
            vec![("", "", 0, 0), ("k", ".text.k", FUNCTION, 0), ("f", ".text.f", FUNCTION, 0)];
        Self { architecture: HOPPER, code: code.to_vec(), symbols, relocations: Vec::new() }
    }

    fn with(mut self, name: &'static str, section: &'static str) -> Self {
        let kind = if section.is_empty() { FUNCTION } else { OBJECT };
        self.symbols.push((name, section, kind, 0));
        self
    }

    fn told(mut self, section: &'static str, kind: u32, symbol: &'static str, addend: i64) -> Self {
        let in_it = self.relocations.iter().filter(|it| it.section == section).count() as u64;
        self.relocations.push(Relocated { section, kind, symbol, offset: 8 * in_it, addend });
        self
    }

    /// Its address is in the table of addresses.
    fn in_table(self, symbol: &'static str) -> Self {
        self.told(".nv.constant4", ADDRESS, symbol, 0)
    }

    fn storable(&self) -> StorableAddresses {
        StorableAddresses::of(&self.bytes())
    }

    fn bytes(&self) -> Vec<u8> {
        const PROGRAM: u32 = 1;
        const ALLOCATED: u64 = 2;
        let names = [
            "",
            ".strtab",
            ".symtab",
            ".text.k",
            ".text.f",
            ".nv.global",
            ".nv.global.init",
            ".nv.constant3",
            ".nv.constant4",
            ".debug_frame",
        ];
        let mut strings = vec![0_u8];
        let mut string = |text: &str| {
            let at = strings.len() as u32;
            strings.extend(text.as_bytes());
            strings.push(0);
            if text.is_empty() { 0 } else { at }
        };
        let mut symbols = Vec::new();
        for &(name, section, kind, other) in &self.symbols {
            let number = names.iter().position(|it| *it == section).unwrap() as u16;
            symbols.extend(string(name).to_le_bytes());
            symbols.extend([kind, other]);
            symbols.extend(number.to_le_bytes());
            symbols.extend([0; 8]);
            symbols.extend(8_u64.to_le_bytes());
        }
        // Name, type, flags and contents.
        let mut sections: Vec<(u32, u32, u64, Vec<u8>)> = Vec::new();
        for name in names {
            let code = self.code.iter().flatten().flat_map(|it| it.to_le_bytes()).collect();
            let (kind, flags, contents) = match name {
                "" => (0, 0, Vec::new()),
                ".strtab" => (3, 0, Vec::new()),
                ".symtab" => (2, 0, symbols.clone()),
                ".text.k" => (PROGRAM, ALLOCATED, code),
                ".debug_frame" => (PROGRAM, 0, vec![0; 64]),
                _ => (PROGRAM, ALLOCATED, vec![0; 64]),
            };
            sections.push((string(name), kind, flags, contents));
        }
        for name in names {
            let of_it: Vec<_> = self.relocations.iter().filter(|it| it.section == name).collect();
            let mut contents = Vec::new();
            for told in &of_it {
                let symbol = self.symbols.iter().position(|it| it.0 == told.symbol).unwrap() as u64;
                contents.extend(told.offset.to_le_bytes());
                contents.extend((symbol << 32 | u64::from(told.kind)).to_le_bytes());
                contents.extend(told.addend.to_le_bytes());
            }
            if !of_it.is_empty() {
                sections.push((string(&format!(".rela{name}")), 4, 0, contents));
            }
        }
        sections[1].3 = strings;
        let mut file = vec![0_u8; 64];
        file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\x33");
        file[18..20].copy_from_slice(&0xbe_u16.to_le_bytes());
        file[48..52].copy_from_slice(&self.architecture.to_le_bytes());
        let mut headers = Vec::new();
        for (name, kind, flags, contents) in &sections {
            let mut header = [0_u8; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&flags.to_le_bytes());
            header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            file.extend(contents);
            headers.extend(header);
        }
        let at = file.len() as u64;
        file[40..48].copy_from_slice(&at.to_le_bytes());
        file[52..54].copy_from_slice(&64_u16.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&(sections.len() as u16).to_le_bytes());
        file[62..64].copy_from_slice(&1_u16.to_le_bytes());
        file.extend(headers);
        file
    }
}

fn of(names: &[&str]) -> StorableAddresses {
    StorableAddresses::Of(names.iter().map(|name| name.to_string()).collect())
}

#[test]
fn variables_that_no_instruction_reads_are_stored_nowhere() {
    // As a header of random numbers leaves them in each image that includes it.
    let image = Cubin::new(&[LOAD_PARAMETER, STORE, EXIT])
        .with("precalc_xorwow_matrix", ".nv.global.init")
        .in_table("precalc_xorwow_matrix");
    assert!(may_have_variables(&image.bytes()));
    assert_eq!(variable_names(&image.bytes()).unwrap(), [b"precalc_xorwow_matrix"]);
    assert_eq!(image.storable(), StorableAddresses::Nothing);
}

#[test]
fn an_address_that_an_instruction_reads_could_be_stored() {
    let image = |code: &[[u64; 2]]| {
        let image = Cubin::new(code).with("x", ".nv.global").with("y", ".nv.global.init");
        image.in_table("x").in_table("y").storable()
    };
    assert_eq!(image(&[LOAD_PARAMETER, LOAD_FIRST, STORE, EXIT]), of(&["x"]));
    // Only to read it, but nobody looks at what else is done.
    assert_eq!(image(&[LOAD_SECOND, EXIT]), of(&["y"]));
    assert_eq!(image(&[LOAD_FIRST, LOAD_SECOND, EXIT]), of(&["x", "y"]));
    // Half an address.
    assert_eq!(image(&[[0x0100_0100_ff05_7b82, 0x000e_2200_0000_0800], EXIT]), of(&["x"]));
    // Two of them.
    assert_eq!(image(&[[0x0100_0000_ff04_7b82, 0x000e_2200_0000_0c00], EXIT]), of(&["x", "y"]));
}

#[test]
fn tables_of_mathematical_functions_are_read_only() {
    let image = Cubin::new(&[LOAD_FIRST, EXIT]).with("__cudart_sin_cos_coeffs", ".nv.global.init");
    assert_eq!(image.in_table("__cudart_sin_cos_coeffs").storable(), StorableAddresses::Nothing);
}

#[test]
fn constants_have_an_address_where_code_reads_that_of_their_bank() {
    for (architecture, address_of_bank) in [
        (75, [0x0000_1400_0004_7ab9, 0x000f_e200_0000_0a00]),
        (80, [0x0000_1400_0004_7ab9, 0x000f_e200_0000_0a00]),
        (90, [0x0000_3400_0004_7ab9, 0x000f_e200_0000_0a00]),
        (100, [0x0000_2400_ff04_77ac, 0x000e_2200_0800_0a00]),
        (120, [0x0000_4800_ff02_7b82, 0x000e_2200_0000_0a00]),
    ] {
        let image = |code: &[[u64; 2]]| {
            let image = Cubin { architecture, ..Cubin::new(code) };
            image.with("c", ".nv.constant3").storable()
        };
        assert_eq!(image(&[LOAD_CONSTANT, STORE, EXIT]), StorableAddresses::Nothing);
        assert_eq!(image(&[address_of_bank, STORE, EXIT]), of(&["c"]), "{architecture}");
    }
    // By an index from what is no parameter.
    let below = [0x0000_0400_0002_7b82, 0x000e_2200_0000_0a00];
    assert_eq!(Cubin::new(&[below, EXIT]).with("c", ".nv.constant3").storable(), of(&["c"]));
    let parameter = [0x0000_8400_0002_7b82, 0x000e_2200_0000_0a00];
    let image = Cubin::new(&[parameter, EXIT]).with("c", ".nv.constant3");
    assert_eq!(image.storable(), StorableAddresses::Nothing);
}

#[test]
fn what_lies_in_memory_from_the_beginning_is_stored() {
    let image = Cubin::new(&[EXIT]).with("x", ".nv.global").with("p", ".nv.global.init");
    assert_eq!(image.told(".nv.global.init", 4, "x", 0).storable(), of(&["x"]));
    let image = Cubin::new(&[EXIT]).with("x", ".nv.global").with("p", ".nv.constant3");
    assert_eq!(image.told(".nv.constant3", 4, "x", 0).storable(), of(&["x"]));
    let image = Cubin::new(&[EXIT]).with("table", ".nv.global.init");
    assert_eq!(image.told(".nv.global.init", ADDRESS, "f", 0).storable(), of(&["f"]));
    // For debuggers, who have no memory of the device.
    let image = Cubin::new(&[EXIT]).with("x", ".nv.global");
    assert_eq!(image.told(".debug_frame", 2, "x", 0).storable(), StorableAddresses::Nothing);
}

#[test]
fn texts_are_printed_or_stored() {
    let image = |code: &[[u64; 2]]| {
        let image = Cubin::new(code).with("$str", ".nv.global.init").with("vprintf", "");
        image.in_table("$str").in_table("vprintf").storable()
    };
    let printed = [LOAD_INDEXED, LOAD_FIRST, WHERE, CALL, EXIT];
    assert_eq!(image(&printed), StorableAddresses::Nothing);
    assert_eq!(image(&[LOAD_FIRST, LOAD_INDEXED, CALL, EXIT]), StorableAddresses::Nothing);
    assert_eq!(image(&[LOAD_FIRST, STORE, EXIT]), of(&["$str"]));
    assert_eq!(image(&[LOAD_INDEXED, LOAD_FIRST, STORE, CALL, EXIT]), of(&["$str"]));
    // Something else is stored in between, and then what was made of the address.
    let store = |register: u64| [STORE[0] & !(0xff << 32) | register << 32, STORE[1]];
    let made = [0x0000_0004_0010_7202, 0x000f_e200_0000_0f00];
    let other = [LOAD_INDEXED, LOAD_FIRST, made, store(0x20), CALL, EXIT];
    assert_eq!(image(&other), StorableAddresses::Nothing);
    assert_eq!(image(&[LOAD_INDEXED, LOAD_FIRST, made, store(0x10), CALL, EXIT]), of(&["$str"]));
    assert_eq!(image(&[LOAD_INDEXED, LOAD_FIRST, EXIT, CALL]), of(&["$str"]));
    // What is called comes from elsewhere.
    assert_eq!(image(&[LOAD_PARAMETER, LOAD_FIRST, CALL, EXIT]), of(&["$str"]));
    // Likewise, though it was a function of the driver's before.
    let other = [LOAD_INDEXED, LOAD_PARAMETER, LOAD_FIRST, CALL, EXIT];
    assert_eq!(image(&other), of(&["$str"]));
}

#[test]
fn an_index_leads_to_a_function_that_is_called_or_anywhere() {
    let image = |code: &[[u64; 2]]| {
        let image = Cubin::new(code).with("x", ".nv.global").with("__assertfail", "");
        image.in_table("x").in_table("__assertfail")
    };
    let called = [LOAD_INDEXED, WHERE, CALL, EXIT];
    assert_eq!(image(&called).storable(), StorableAddresses::Nothing);
    assert_eq!(image(&called).in_table("f").storable(), of(&["f", "x"]));
    assert_eq!(image(&[LOAD_INDEXED, STORE, EXIT]).storable(), of(&["x"]));
    assert_eq!(image(&[LOAD_INDEXED, LOAD_PARAMETER, CALL, EXIT]).storable(), of(&["x"]));
    // Whether it is called depends on a predicate.
    let perhaps = [CALL[0] & !0xf000, CALL[1]];
    assert_eq!(image(&[LOAD_INDEXED, perhaps, EXIT]).storable(), of(&["x"]));
}

#[test]
fn linked_code_has_addresses_in_its_instructions() {
    const LOW: u32 = 0x38;
    const HIGH: u32 = 0x39;
    const CALLS: u32 = 0x4b;
    let image = Cubin::new(&[EXIT]).with("x", ".nv.global");
    let image = image.told(".text.k", LOW, "x", 0).told(".text.k", HIGH, "x", 0);
    assert_eq!(image.storable(), of(&["x"]));
    // A call, and where it comes back to.
    let image = Cubin::new(&[EXIT]).told(".text.k", CALLS, "f", 0).told(".text.k", LOW, "k", 0x50);
    assert_eq!(image.storable(), StorableAddresses::Nothing);
    assert_eq!(Cubin::new(&[EXIT]).told(".text.k", LOW, "f", 0).storable(), of(&["f"]));
    assert_eq!(Cubin::new(&[EXIT]).told(".text.k", LOW, "f", 0x50).storable(), of(&["f"]));
    assert_eq!(Cubin::new(&[EXIT]).told(".text.k", LOW, "k", 0).storable(), of(&["k"]));
}

#[test]
fn what_is_not_known_could_be_stored() {
    let unknown = |image: &Cubin| matches!(image.storable(), StorableAddresses::Unknown(_));
    let image = || Cubin::new(&[EXIT]).with("x", ".nv.global").in_table("x");
    assert_eq!(image().storable(), StorableAddresses::Nothing);
    assert!(unknown(&Cubin { architecture: 70, ..image() }));
    assert!(unknown(&Cubin { architecture: 130, ..image() }));
    // A bank that a register describes, and one that an index changes.
    let described = [0x2100_0016_020d_7a08, 0x000f_e200_0800_0000];
    assert!(unknown(&Cubin { code: vec![described], ..image() }));
    let segmented = [LOAD_INDEXED[0], LOAD_INDEXED[1] | 1 << 15];
    assert!(unknown(&Cubin { code: vec![segmented], ..image() }));
    let mut managed = image();
    managed.symbols.push(("m", ".nv.global", OBJECT, MANAGED));
    assert_eq!(managed.storable(), of(&["m"]));
    let mut textured = image();
    textured.symbols.push(("t", "", 10, 0));
    assert!(unknown(&textured));
    assert!(matches!(StorableAddresses::of(b"\x01\x02\x03\x04"), StorableAddresses::Unknown(_)));
    // Without a variable nothing is to be known.
    let plain = Cubin { architecture: 70, ..Cubin::new(&[described, EXIT]) };
    assert_eq!(plain.storable(), StorableAddresses::Nothing);
}

/// What NVIDIA's disassembler says of each.
#[test]
fn instructions_read_what_they_say() {
    let fixed = |bank, offset, size_bytes| Reading::Fixed { bank, offset, size_bytes };
    let indexed = |bank, offset| Reading::Indexed { bank, offset };
    for (text, low, high, reading) in [
        ("LDC.64 R2, c[0x4][0x8]", 0x0100_0200_ff02_7b82, 0x000e_2200_0000_0a00, fixed(4, 8, 8)),
        ("LDC.64 R2, c[0x4][R0]", 0x0100_0000_0002_7b82, 0x000e_2200_0000_0a00, indexed(4, 0)),
        (
            "ULDC.64 UR4, c[0x4][0x48]",
            0x0100_1200_0004_7ab9,
            0x000f_e200_0000_0a00,
            fixed(4, 0x48, 8),
        ),
        (
            "ULDC UR4, c[0x3][UR7+0x40]",
            0x00c0_1000_0704_7abb,
            0x000f_e200_0800_0800,
            indexed(3, 0x40),
        ),
        (
            "LDCU.64 UR4, c[0x4][0x48]",
            0x0100_0900_ff04_77ac,
            0x000e_2200_0800_0a00,
            fixed(4, 0x48, 8),
        ),
        (
            "LDCU UR4, c[0x3][UR4+0x40]",
            0x00c0_0800_0404_77ac,
            0x000e_aa00_0800_0800,
            indexed(3, 0x40),
        ),
        ("MOV R2, c[0x4][0x58]", 0x0100_1600_0002_7a02, 0x000f_e200_0000_0f00, fixed(4, 0x58, 8)),
        (
            "IMAD.WIDE R2, R2, R3, c[0x4][0x8]",
            0x0100_0200_0202_7625,
            0x000f_e200_078e_0203,
            fixed(4, 8, 8),
        ),
        (
            "I2F.RP R16, c[0x4][0xa08]",
            0x0102_828d_0010_7b06,
            0x000e_6200_0020_9400,
            fixed(4, 0xa08, 8),
        ),
        (
            "LDC.64 R2, c[0x0][0x210]",
            0x0000_8400_ff02_7b82,
            0x000e_2200_0000_0a00,
            fixed(0, 0x210, 8),
        ),
        (
            "FSEL R13, R2, cx[UR22][0x0], P0",
            0x2100_0016_020d_7a08,
            0x000f_e200_0800_0000,
            Reading::Elsewhere,
        ),
        ("STG.E.64 desc[UR4][R2.64], R4", STORE[0], STORE[1], Reading::Nothing),
        ("EXIT", EXIT[0], EXIT[1], Reading::Nothing),
    ] {
        assert_eq!(Instruction::new(low, high).reading(), reading, "{text}");
    }
}

#[test]
fn a_line_of_the_log_names_a_few() {
    let many = of(&["a", "b", "c", "d", "e"]);
    assert_eq!(many.to_string(), "a, b, c and 2 more");
    let long = of(&[&"x".repeat(500)]);
    assert_eq!(long.to_string().len(), 80);
}
