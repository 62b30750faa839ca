//! Device memory that the driver takes for a client besides what is granted to it, by estimates
//! that are not far below what it takes: the session itself, streams, modules, local memory. Arrays
//! have an estimate of their own in [`crate::objects::array`].
//!
//! Nothing of this can be measured: the context is shared, so what the driver's own count loses
//! meanwhile may be another client's.

use super::failure::Failure;
use super::state::State;
use cuda_abi::image::Image;
use cuda_abi::types::*;
use link::wire::command::StreamCreate;

/// What a session takes, its default stream included: a further client of a context was seen to add
/// about so much.
pub(crate) const SESSION_BYTES: u64 = 1 << 20;
/// A stream: observed on an H200.
const STREAM_BYTES: u64 = 512 << 10;

impl State {
    pub(crate) fn stream_create(&mut self, mut wanted: StreamCreate) -> Result<(), Failure> {
        wanted.priority = self.stream_priority(wanted.priority);
        let partition = self.partitions.find(wanted.partition)?;
        let before = self.streams.handles().count();
        self.charge_or_hold(STREAM_BYTES)?;
        let completed = self.handle.words.completed(wanted.stream);
        let created = self.streams.create(&self.shared.context, &wanted, partition, completed);
        if self.streams.handles().count() == before {
            // None was made, or one that had been closed serves again.
            self.memory.discharge(STREAM_BYTES);
        }
        created
    }

    /// Counts the local memory of a client's largest kernel: so much for each thread that the
    /// device can have at a time. What every context has anyway counts for nobody.
    pub(crate) fn charge_local(&mut self, per_thread_bytes: u64) -> Result<(), Failure> {
        let default_bytes = self.default_stack_bytes;
        let beyond_bytes = per_thread_bytes.saturating_sub(default_bytes);
        if beyond_bytes <= self.local_bytes {
            return Ok(());
        }
        let threads = self.device_attribute(CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?
            * self.device_attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT)?;
        self.charge_or_hold((beyond_bytes - self.local_bytes).saturating_mul(threads))?;
        self.local_bytes = beyond_bytes;
        Ok(())
    }

    /// Counts memory for the client, if it may have it. What it had in another executor it has:
    /// its limit may be lower since.
    pub(crate) fn charge_or_hold(&mut self, size_bytes: u64) -> Result<(), Failure> {
        match self.records.replaying {
            true => {
                self.handle.allowance.hold(size_bytes);
                Ok(())
            }
            false => self.memory.charge(size_bytes),
        }
    }

    fn device_attribute(&self, attribute: CUdevice_attribute) -> Result<u64, Failure> {
        let mut value = 0;
        // SAFETY: the result is written.
        self.check(unsafe {
            self.driver().cuDeviceGetAttribute(&mut value, attribute, self.context().device())
        })?;
        Ok(value.max(0).cast_unsigned().into())
    }
}

/// What loading an image takes: its code and its variables.
pub(crate) fn module_bytes(image: &[u8]) -> u64 {
    let loaded = Image::parse(image).map(|image| image_bytes(&image));
    loaded.unwrap_or(image.len() as u64)
}

fn image_bytes(image: &Image<'_>) -> u64 {
    match image {
        Image::Elf(elf) => {
            let sections = elf.sections().flatten().filter(|section| section.is_allocated);
            sections.fold(0, |sum: u64, section| sum.saturating_add(section.size_bytes))
        }
        // Compiled code is not much longer than its text.
        Image::Ptx(text) => (text.len() as u64).saturating_add(variable_bytes(text)),
        Image::Fatbin { fatbin, .. } => {
            // One of them is loaded.
            let entries = fatbin.entries().iter().filter_map(|entry| entry.contents().ok());
            entries.map(|contents| module_bytes(&contents)).max().unwrap_or(0)
        }
    }
}

/// Bytes of the `.global` and `.const` variables that PTX declares outside of functions.
fn variable_bytes(text: &[u8]) -> u64 {
    let (mut sum, mut depth, mut statement) = (0u64, 0u32, Vec::new());
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let skipped = if rest.starts_with(b"//") {
            rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            rest.windows(2).position(|two| two == b"*/").map_or(rest.len(), |end| end + 2)
        } else {
            match rest[0] {
                b'{' => {
                    // What comes before is a function's head, or a variable with its values.
                    if depth == 0 {
                        sum = sum.saturating_add(declared_bytes(&statement));
                        statement.clear();
                    }
                    depth += 1;
                }
                b'}' => {
                    depth = depth.saturating_sub(1);
                    statement.clear();
                }
                b';' if depth == 0 => {
                    sum = sum.saturating_add(declared_bytes(&statement));
                    statement.clear();
                }
                byte if depth == 0 => statement.push(byte),
                _ => {}
            }
            1
        };
        at += skipped.max(1);
    }
    sum
}

/// Bytes of one variable's declaration, as `.visible .global .align 4 .v2 .f32 name[3][4] = `; 0
/// for anything else.
fn declared_bytes(statement: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(statement);
    let declaration = text.split('=').next().unwrap_or_default();
    let words: Vec<&str> = declaration.split_whitespace().collect();
    let is_variable = words.iter().any(|word| word.starts_with(".global") || *word == ".const");
    if !is_variable || words.iter().any(|word| matches!(*word, ".entry" | ".func" | ".extern")) {
        return 0;
    }
    let element_bytes = words.iter().find_map(|word| type_bytes(word)).unwrap_or(0);
    let lanes = match words.iter().find(|word| matches!(**word, ".v2" | ".v4")) {
        Some(&".v2") => 2,
        Some(_) => 4,
        None => 1,
    };
    let sides = declaration.split('[').skip(1).map(|side| {
        let side = side.split(']').next().unwrap_or_default().trim();
        side.parse::<u64>().unwrap_or(1)
    });
    sides.fold(element_bytes * lanes, u64::saturating_mul)
}

fn type_bytes(word: &str) -> Option<u64> {
    let name = word.strip_prefix('.')?;
    let bits = name.strip_prefix(['b', 'u', 's', 'f'])?;
    let bits: u64 = bits.split(|digit: char| !digit.is_ascii_digit()).next()?.parse().ok()?;
    matches!(bits, 8 | 16 | 32 | 64 | 128).then_some(bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Bed;
    use policy::limits::MemoryBound;
    use zerocopy::FromZeros;

    #[test]
    fn what_is_made_again_is_held_whatever_the_limit_is_now() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        state.handle.allowance.set_bound(MemoryBound { bytes: Some(0), ..Default::default() });
        let wanted = StreamCreate { stream: 1, ..StreamCreate::new_zeroed() };
        let refused = state.stream_create(wanted);
        assert!(matches!(refused, Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY))));
        state.records.replaying = true;
        state.stream_create(wanted).unwrap();
    }

    #[test]
    fn variables_count_and_code_does_not_count_as_such() {
        let text = b".version 8.0\n.target sm_50\n.address_size 64\n// .global .b8 comment[9999];\n\
            .visible .global .align 4 .b8 big[1000000];\n/* .global .b64 x; */\n\
            .const .align 4 .f32 table[2][3] = {1.0, 2.0, 3.0};\n.global .v4 .u32 four;\n\
            .global .attribute(.managed) .align 8 .b64 shared;\n.extern .global .b8 elsewhere[77];\n\
            .extern .shared .b8 dynamic[];\n\
            .visible .entry run(.param .u64 data)\n{\n.local .b8 frame[4096];\n.shared .b32 tile[32];\nret;\n}\n\
            .global .s64 last;";
        assert_eq!(variable_bytes(text), 1_000_000 + 24 + 16 + 8 + 8);
    }

    #[test]
    fn made_up_sizes_do_not_overflow() {
        let text =
            b".global .b64 huge[18446744073709551615][18446744073709551615];.global .b8 x[];";
        assert_eq!(variable_bytes(text), u64::MAX);
        assert_eq!(variable_bytes(b"}}}} .global .b8 [[[[ ;{{{"), 1);
        assert!(module_bytes(b".version 8.0\n.target sm_50\n.global .b8 x[4096];\0") > 4096);
    }
}
