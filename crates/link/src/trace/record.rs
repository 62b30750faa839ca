//! What a trace's ring carries: driver calls, texts, annotations of NVTX and work of a device, each
//! as fifteen words.

/// Words of a record, its sequence number not counted.
pub const RECORD_WORDS: usize = 15;
/// Bytes of text in one record.
pub const TEXT_BYTES: usize = 12 * 8;
/// Texts are cut off after so many bytes.
pub const MAX_TEXT_BYTES: usize = 4096;

/// A record as it lies in the ring.
pub type Words = [u64; RECORD_WORDS];

/// What a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill (`cuMemset*`).
    Fill,
    /// A launch of an executable graph.
    Graph,
}

impl WorkKind {
    const ALL: [Self; 4] = [Self::Kernel, Self::Copy, Self::Fill, Self::Graph];
}

/// A piece of work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it is.
    pub kind: WorkKind,
    /// Slot of its stream.
    pub stream: u32,
    /// Number of its name's text, 0 for none.
    pub text: u64,
    /// Where its command ends in the session's ring, in bytes from the beginning of time; 0 if that
    /// is not known.
    pub position: u64,
    /// When the executor took it, by CLOCK_MONOTONIC; so are the others.
    pub taken_ns: u64,
    /// When the device began.
    pub start_ns: u64,
    /// When the device had done it.
    pub end_ns: u64,
    /// Blocks of a kernel.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u16; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Kernels that were timed together with this one, itself included: more than 1 means that the
    /// times are its part of theirs.
    pub timed_together: u16,
    /// Bytes copied or filled.
    pub size_bytes: u64,
}

/// A point of a range of NVTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The thread that calls.
    pub thread: u32,
    /// Number of the message's text, 0 for none.
    pub text: u64,
    /// When.
    pub at_ns: u64,
    /// Number of the domain's name, 0 for the default domain.
    pub domain: u64,
    /// Of a range from `nvtxRangeStart`, the range's; otherwise 0.
    pub id: u64,
}

/// What a ring carries. All times are of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A driver call that has returned.
    Call {
        /// The thread.
        thread: u32,
        /// Its number in `cuda_abi::functions::FUNCTION_NUMBERS`.
        function: u32,
        /// The `CUresult`.
        result: u32,
        /// Device whose session got commands from it.
        device: u32,
        /// When it was called.
        start_ns: u64,
        /// When it returned.
        end_ns: u64,
        /// Where the first command that it posted ends, 0 for none; as [`Work::position`].
        first: u64,
        /// Where the last one ends.
        last: u64,
    },
    /// A piece of a text; the pieces of one come in order.
    Text {
        /// The text's number, not 0.
        id: u64,
        /// Whether more is to come.
        is_last: bool,
        /// Bytes that count.
        length: u8,
        /// UTF-8, perhaps cut within a character.
        bytes: [u8; TEXT_BYTES],
    },
    /// `nvtxRangePush`.
    Push(Annotation),
    /// `nvtxRangePop`.
    Pop(Annotation),
    /// `nvtxRangeStart`.
    Start(Annotation),
    /// `nvtxRangeEnd`.
    End(Annotation),
    /// `nvtxMark`.
    Mark(Annotation),
    /// `nvtxNameOsThread`.
    ThreadName(Annotation),
    /// A device's work.
    Work(Work),
}

const CALL: u64 = 1;
const TEXT: u64 = 2;
const PUSH: u64 = 3;
const POP: u64 = 4;
const START: u64 = 5;
const END: u64 = 6;
const MARK: u64 = 7;
const THREAD_NAME: u64 = 8;
const WORK: u64 = 9;

/// Two halves of a word.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Record {
    /// As it lies in the ring.
    pub fn to_words(&self) -> Words {
        let mut words = [0; RECORD_WORDS];
        let annotation =
            |words: &mut Words, kind, Annotation { thread, text, at_ns, domain, id }| {
                words[..5].copy_from_slice(&[kind, u64::from(thread), text, at_ns, domain]);
                words[5] = id;
            };
        match *self {
            Self::Call { thread, function, result, device, start_ns, end_ns, first, last } => {
                words[..7].copy_from_slice(&[
                    CALL,
                    pair(thread, function),
                    pair(result, device),
                    start_ns,
                    end_ns,
                    first,
                    last,
                ]);
            }
            Self::Text { id, is_last, length, bytes } => {
                words[..3].copy_from_slice(&[
                    TEXT,
                    id,
                    u64::from(length) | u64::from(is_last) << 8,
                ]);
                for (word, chunk) in words[3..].iter_mut().zip(bytes.as_chunks().0) {
                    *word = u64::from_le_bytes(*chunk);
                }
            }
            Self::Push(at) => annotation(&mut words, PUSH, at),
            Self::Pop(at) => annotation(&mut words, POP, at),
            Self::Start(at) => annotation(&mut words, START, at),
            Self::End(at) => annotation(&mut words, END, at),
            Self::Mark(at) => annotation(&mut words, MARK, at),
            Self::ThreadName(at) => annotation(&mut words, THREAD_NAME, at),
            Self::Work(work) => {
                let [grid_x, grid_y, grid_z] = work.grid;
                let [block_x, block_y, block_z] = work.block.map(u32::from);
                words[..12].copy_from_slice(&[
                    WORK,
                    pair(work.kind as u32, work.stream),
                    work.text,
                    work.position,
                    work.taken_ns,
                    work.start_ns,
                    work.end_ns,
                    pair(grid_x, grid_y),
                    pair(grid_z, work.shared_bytes),
                    pair(block_x, block_y),
                    pair(block_z, u32::from(work.timed_together)),
                    work.size_bytes,
                ]);
            }
        }
        words
    }

    /// What words mean; `None` if nothing.
    pub fn from_words(words: &Words) -> Option<Self> {
        let annotation = || Annotation {
            thread: words[1] as u32,
            text: words[2],
            at_ns: words[3],
            domain: words[4],
            id: words[5],
        };
        Some(match words[0] {
            CALL => {
                let (thread, function) = halves(words[1]);
                let (result, device) = halves(words[2]);
                Self::Call {
                    thread,
                    function,
                    result,
                    device,
                    start_ns: words[3],
                    end_ns: words[4],
                    first: words[5],
                    last: words[6],
                }
            }
            TEXT => {
                let mut bytes = [0; TEXT_BYTES];
                for (chunk, word) in bytes.as_chunks_mut().0.iter_mut().zip(&words[3..]) {
                    *chunk = word.to_le_bytes();
                }
                let length = (words[2] as u8).min(TEXT_BYTES as u8);
                Self::Text { id: words[1], is_last: words[2] & 1 << 8 != 0, length, bytes }
            }
            PUSH => Self::Push(annotation()),
            POP => Self::Pop(annotation()),
            START => Self::Start(annotation()),
            END => Self::End(annotation()),
            MARK => Self::Mark(annotation()),
            THREAD_NAME => Self::ThreadName(annotation()),
            WORK => {
                let (kind, stream) = halves(words[1]);
                let (grid_x, grid_y) = halves(words[7]);
                let (grid_z, shared_bytes) = halves(words[8]);
                let (block_x, block_y) = halves(words[9]);
                let (block_z, timed_together) = halves(words[10]);
                Self::Work(Work {
                    kind: *WorkKind::ALL.get(kind as usize)?,
                    stream,
                    text: words[2],
                    position: words[3],
                    taken_ns: words[4],
                    start_ns: words[5],
                    end_ns: words[6],
                    grid: [grid_x, grid_y, grid_z],
                    block: [block_x as u16, block_y as u16, block_z as u16],
                    shared_bytes,
                    timed_together: timed_together as u16,
                    size_bytes: words[11],
                })
            }
            _ => return None,
        })
    }

    /// The records of a text, cut off after [`MAX_TEXT_BYTES`].
    pub fn texts(id: u64, text: &str) -> impl Iterator<Item = Self> + '_ {
        let all = &text.as_bytes()[..text.len().min(MAX_TEXT_BYTES)];
        let pieces = all.len().div_ceil(TEXT_BYTES).max(1);
        (0..pieces).map(move |piece| {
            let part = &all[piece * TEXT_BYTES..all.len().min((piece + 1) * TEXT_BYTES)];
            let mut bytes = [0; TEXT_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            Self::Text { id, is_last: piece + 1 == pieces, length: part.len() as u8, bytes }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_what_they_say() {
        let at = Annotation { thread: 7, text: 8, at_ns: 9, domain: 10, id: 11 };
        let work = Work {
            kind: WorkKind::Graph,
            stream: 4095,
            text: 3,
            position: 1 << 40,
            taken_ns: 5,
            start_ns: 6,
            end_ns: u64::MAX,
            grid: [u32::MAX, 2, 65535],
            block: [1024, 3, 64],
            shared_bytes: 232_448,
            timed_together: 32,
            size_bytes: 1 << 50,
        };
        let call = Record::Call {
            thread: 1,
            function: 2,
            result: 999,
            device: 3,
            start_ns: 4,
            end_ns: 5,
            first: 6,
            last: 7,
        };
        let all = [
            call,
            Record::Push(at),
            Record::Pop(at),
            Record::Start(at),
            Record::End(at),
            Record::Mark(at),
            Record::ThreadName(at),
            Record::Work(work),
        ];
        for record in all.into_iter().chain(Record::texts(5, &"long ".repeat(100))) {
            assert_eq!(Record::from_words(&record.to_words()), Some(record));
        }
        assert_eq!(Record::from_words(&[0; RECORD_WORDS]), None);
        assert_eq!(Record::from_words(&[u64::MAX; RECORD_WORDS]), None);
    }

    #[test]
    fn a_text_comes_in_pieces_and_the_empty_one_in_one() {
        assert_eq!(Record::texts(1, "").count(), 1);
        assert_eq!(Record::texts(1, &"x".repeat(TEXT_BYTES)).count(), 1);
        assert_eq!(Record::texts(1, &"x".repeat(TEXT_BYTES + 1)).count(), 2);
        assert_eq!(
            Record::texts(1, &"x".repeat(1 << 20)).count(),
            MAX_TEXT_BYTES.div_ceil(TEXT_BYTES)
        );
    }
}
