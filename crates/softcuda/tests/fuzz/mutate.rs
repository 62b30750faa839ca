//! Mutations: of bytes, of numbers in binary headers, and of PTX's words and lines.

use random_ptx::Random;

/// Chooses and applies mutations.
pub(crate) struct Mutator {
    pub(crate) random: Random,
}

/// Words that matter somewhere in PTX.
const WORDS: &[&str] = &[
    "0",
    "1",
    "-1",
    "4294967295",
    "2147483648",
    "18446744073709551615",
    "9223372036854775808",
    "99999999999999999999999",
    "0x",
    "0f7F800000",
    "0f3F8",
    "0d7FF0000000000000",
    "1e999",
    "0b101",
    "0777",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ";",
    ",",
    ":",
    "|",
    "!",
    "@",
    "+",
    "-",
    "*",
    "/",
    "?",
    "%",
    "\"",
    "//",
    "/*",
    "*/",
    ".reg",
    ".param",
    ".local",
    ".shared",
    ".global",
    ".const",
    ".align",
    ".entry",
    ".func",
    ".visible",
    ".extern",
    ".weak",
    ".version",
    ".target",
    ".address_size",
    ".pred",
    ".b8",
    ".b16",
    ".b32",
    ".b64",
    ".b128",
    ".f16x2",
    ".bf16",
    ".f64",
    ".v2",
    ".v4",
    ".branchtargets",
    ".callprototype",
    ".section",
    ".pragma",
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".noreturn",
    ".ptr",
    ".texref",
    "_",
    "$",
    "%p0",
    "%r0",
    "%tid.x",
    "%envreg3",
    "%clock64",
    "WARP_SZ",
    "generic(",
    "mask(",
    "call",
    "bra",
    "brx.idx",
    "ret",
    "exit",
    "bar.sync",
    "mov.b128",
    "wmma.load.a.sync.aligned.row.m16n16k16.f16",
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
    "cp.async.bulk.tensor.1d.shared::cluster.global.tile",
    "tcgen05.mma.cta_group::1.kind::f16",
    "vprintf",
    "malloc",
];

impl Mutator {
    pub(crate) fn new(random: Random) -> Self {
        Self { random }
    }

    /// One of the corpus.
    pub(crate) fn seed(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        corpus[self.random.below(corpus.len())].clone()
    }

    /// A changed PTX text.
    pub(crate) fn ptx(&mut self, mut text: Vec<u8>, corpus: &[Vec<u8>]) -> Vec<u8> {
        for _ in 0..1 + self.random.below(6) {
            match self.random.below(12) {
                0..5 => self.word(&mut text),
                5..7 => self.line(&mut text),
                7 => {
                    // A piece of another text.
                    let other = self.seed(corpus);
                    let from = self.random.below(other.len());
                    let to = (from + 1 + self.random.below(400)).min(other.len());
                    let at = self.random.below(text.len() + 1);
                    text.splice(at..at, other[from..to].iter().copied());
                }
                8 => self.repeat(&mut text),
                _ => self.byte(&mut text),
            }
        }
        text
    }

    /// A PTX text with one or two words changed: most still load.
    pub(crate) fn lightly(&mut self, mut text: Vec<u8>) -> Vec<u8> {
        for _ in 0..1 + self.random.below(3) {
            match self.random.below(6) {
                0 => self.line(&mut text),
                1 => self.byte(&mut text),
                2 => self.digit(&mut text),
                _ => self.exchange(&mut text),
            }
        }
        text
    }

    /// A changed binary image.
    pub(crate) fn binary(&mut self, mut image: Vec<u8>) -> Vec<u8> {
        for _ in 0..1 + self.random.below(4) {
            if self.random.chance(50) {
                self.field(&mut image);
            } else {
                self.byte(&mut image);
            }
        }
        image
    }

    fn byte(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = self.random.below(bytes.len());
        let length = 1 + self.random.below(64).min(bytes.len() - at - 1);
        match self.random.below(7) {
            0 => bytes[at] = self.random.bits() as u8,
            1 => bytes[at] ^= 1 << self.random.below(8),
            2 => bytes.insert(at, self.random.bits() as u8),
            3 => drop(bytes.drain(at..at + length)),
            4 => bytes.extend_from_within(at..at + length),
            5 => bytes.truncate(at),
            _ => {
                let piece = bytes[at..at + length].to_vec();
                let to = self.random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }

    /// A number of 2, 4 or 8 bytes, mostly in the headers at the front.
    fn field(&mut self, bytes: &mut [u8]) {
        let width = self.random.pick(&[1usize, 2, 4, 8]);
        if bytes.len() < 8 {
            return;
        }
        let limit = if self.random.chance(70) { bytes.len().min(256) } else { bytes.len() };
        let at = self.random.below(limit - width + 1) / width * width;
        let length = bytes.len() as u64;
        let value = match self.random.below(4) {
            0 => self.random.pick(&[0, 1, 2, 16, 64, u64::MAX, i64::MAX as u64, 1 << 31, 1 << 40]),
            1 => length.wrapping_add(self.random.below(64) as u64).wrapping_sub(32),
            2 => self.random.bits(),
            _ => self.random.below(1 << 16) as u64,
        };
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }

    /// Bounds of the words: runs of letters, digits and the like, and single other characters.
    fn words(text: &[u8]) -> Vec<(usize, usize)> {
        let is_word =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'%' | b'$');
        let mut words = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let start = at;
            at += 1;
            if is_word(text[start]) {
                while at < text.len() && is_word(text[at]) {
                    at += 1;
                }
            }
            if !text[start].is_ascii_whitespace() {
                words.push((start, at));
            }
        }
        words
    }

    /// Replaces, inserts, deletes or repeats a word.
    fn word(&mut self, text: &mut Vec<u8>) {
        let words = Self::words(text);
        if words.is_empty() {
            return;
        }
        let (start, end) = self.random.pick(&words);
        let new = if self.random.chance(60) {
            self.random.pick(WORDS).as_bytes().to_vec()
        } else {
            let (from, to) = self.random.pick(&words);
            text[from..to].to_vec()
        };
        match self.random.below(4) {
            0 => drop(text.drain(start..end)),
            1 => drop(text.splice(end..end, [b" ", new.as_slice()].concat())),
            _ => drop(text.splice(start..end, new)),
        }
    }

    /// Exchanges two words of the same kind: two registers, two opcodes, two numbers.
    fn exchange(&mut self, text: &mut Vec<u8>) {
        let words = Self::words(text);
        if words.is_empty() {
            return;
        }
        let (start, end) = self.random.pick(&words);
        let kind = text[start];
        let alike: Vec<(usize, usize)> = words
            .into_iter()
            .filter(|&(from, to)| text[from] == kind && text[from..to] != text[start..end])
            .collect();
        if !alike.is_empty() {
            let (from, to) = self.random.pick(&alike);
            let new = text[from..to].to_vec();
            text.splice(start..end, new);
        }
    }

    /// Another digit.
    fn digit(&mut self, text: &mut [u8]) {
        let digits: Vec<usize> = (0..text.len()).filter(|&at| text[at].is_ascii_digit()).collect();
        if !digits.is_empty() {
            let at = self.random.pick(&digits);
            text[at] = b'0' + self.random.below(10) as u8;
        }
    }

    /// Deletes, doubles or moves a line.
    fn line(&mut self, text: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> =
            text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        let at = self.random.below(lines.len());
        let line = lines[at].clone();
        match self.random.below(3) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, line),
            _ => {
                lines.remove(at);
                let to = self.random.below(lines.len() + 1);
                lines.insert(to, line);
            }
        }
        *text = lines.join(&b'\n');
    }

    /// A word or a short piece many times over: nesting and length.
    fn repeat(&mut self, text: &mut Vec<u8>) {
        let piece = if self.random.chance(50) {
            self.random.pick(WORDS).as_bytes().to_vec()
        } else {
            let at = self.random.below(text.len());
            text[at..(at + 1 + self.random.below(60)).min(text.len())].to_vec()
        };
        let times = self.random.pick(&[10, 100, 1000, 10_000]);
        let at = self.random.below(text.len() + 1);
        text.splice(at..at, piece.repeat(times));
    }
}
