//! The books of managed memory: what of it lies in this process, and what either side may have
//! changed since the two agreed.
//!
//! Managed memory is device memory. At the same addresses this process has pages, its *mirror*, in
//! blocks. A block is absent here, until the host touches it; *clean*, then both sides have the
//! same bytes and the mirror is guarded against writing; or *dirty*: the host has the newer bytes.
//! Before work is posted, dirty blocks are carried to the device and all blocks leave the mirror.
//!
//! A block that was fetched while work was in flight is *suspect*, since that work may change it on
//! the device later. When work has been waited for, suspect blocks leave the mirror too. Of a dirty
//! one only what the host has changed is carried, by comparison with a *twin*: the bytes that were
//! fetched. So neither side's writes undo the other's.
//!
//! Programs look at the same few words after each piece of work, and a fault takes many times as
//! long as its bytes. So blocks that were touched alone are *habits*: they are recalled when work
//! has been waited for, some dozens of times before a touch must show that they are still wanted.
//!
//! What a program has attached to the host no kernel uses, so it stays in the mirror when work is
//! posted. What is prefetched to the host is *wanted*: it comes when work has been waited for.
//!
//! Pure: pages and bytes are a [`Carrier`]'s affair.

use crate::result::Result;
use crate::two_sided::changes::changes;
use link::pages::Pages;
use std::collections::BTreeMap;
use std::ops::Range;

/// What is fetched for one touch, and what is dirty or clean as a whole: no less than the pages of
/// any system.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;
/// What is fetched at once when touches follow each other: the host goes on with the first of it
/// while the rest comes, and work that is posted meanwhile waits for all of it.
pub(super) const LONGEST_FETCH_BYTES: u64 = 16 << 20;
/// Single touches between two pieces of work that are taken for a habit.
const MOST_HABITS: usize = 8;
/// So often a block is recalled before another touch must show that it is still wanted.
const RECALLS: u8 = 32;
/// Ranges that are wanted at once.
const MOST_WANTED: usize = 64;

/// Whether writes to pages of the mirror are faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    On,
    Off,
}

/// What a thread wanted that has met a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// To read where no page is.
    Read,
    /// To write where no page is.
    Write,
    /// To write to a guarded page.
    Guarded,
}

/// Whether work of the device may change memory from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flight {
    /// All work is done, and the next is announced first.
    Idle,
    Busy,
}

/// Whether a page was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hole {
    Filled,
    None,
}

/// Moves bytes between the mirror and the device. Ranges are whole pages.
pub(super) trait Carrier {
    /// Device memory into pages that the mirror lacks. Zeros where the device has none any more.
    fn fetch(&mut self, range: Range<u64>, guard: Guard);
    /// Zeros into pages that the mirror lacks.
    fn zero(&mut self, range: Range<u64>);
    /// Zeros into one page, if it is missing.
    fn fill_hole(&mut self, page: Range<u64>) -> Hole;
    fn guard(&mut self, range: Range<u64>, guard: Guard);
    /// Lets threads try again that have met a fault.
    fn wake(&mut self, range: Range<u64>);
    /// The mirror's bytes.
    fn host_bytes(&mut self, range: Range<u64>) -> Vec<u8>;
    /// The mirror's bytes to the device.
    fn carry(&mut self, range: Range<u64>) -> Result;
    /// Pieces of a block to the device, and nothing that lies between them.
    fn carry_pieces(&mut self, block: u64, bytes: &[u8], pieces: &[Range<usize>]) -> Result;
    /// Takes pages out of the mirror.
    fn drop(&mut self, range: Range<u64>);
}

/// See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Clean,
    Dirty,
}

/// Who may use an allocation while work is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    /// Kernels, and the host as far as it is promised.
    Device,
    /// The host alone, until it is attached otherwise.
    Host,
}

/// What work may use that is about to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uses {
    /// All but what is attached to the host, as kernels.
    Device,
    /// Everything, as copies that the host asks for.
    All,
}

/// An allocation.
struct Area {
    end: u64,
    blocks: Vec<State>,
    attached: Attached,
    /// No work was posted since it was made, so what is absent is zeros.
    is_new: bool,
}

/// See the module's description.
pub(super) struct Books {
    pages: Pages,
    /// By first address.
    areas: BTreeMap<u64, Area>,
    /// First addresses of areas that are new.
    new: Vec<u64>,
    /// First addresses of blocks that are in the mirror, but for those attached to the host.
    present: Vec<u64>,
    /// Those that are.
    kept: Vec<u64>,
    /// Those of them that are suspect, with twins once they are dirty.
    suspects: BTreeMap<u64, Option<Vec<u8>>>,
    /// Where the last fetch ended, and how long it was.
    last: (u64, u64),
    /// By first addresses of blocks.
    habits: BTreeMap<u64, Habit>,
    /// What was prefetched to the host and has not come yet.
    wanted: Vec<Range<u64>>,
}

/// A block that is touched alone after each piece of work.
#[derive(Clone, Copy, Debug)]
struct Habit {
    fault: Fault,
    recalls_left: u8,
}

/// A block's place.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// First address of the area.
    base: u64,
    index: usize,
}

impl Area {
    fn block(&self, base: u64, index: usize) -> Range<u64> {
        let start = base + index as u64 * BLOCK_BYTES;
        start..(start + BLOCK_BYTES).min(self.end)
    }
}

impl Default for Books {
    /// None yet, in the system's pages.
    fn default() -> Self {
        Self {
            pages: Pages::of_system(),
            areas: BTreeMap::new(),
            new: Vec::new(),
            present: Vec::new(),
            kept: Vec::new(),
            suspects: BTreeMap::new(),
            last: (0, 0),
            habits: BTreeMap::new(),
            wanted: Vec::new(),
        }
    }
}

impl Books {
    /// Adds an allocation of whole pages, none of which is in the mirror.
    pub(super) fn add(&mut self, range: Range<u64>) {
        let count = (range.end - range.start).div_ceil(BLOCK_BYTES) as usize;
        let blocks = vec![State::Absent; count];
        let area = Area { end: range.end, blocks, attached: Attached::Device, is_new: true };
        self.new.push(range.start);
        self.areas.insert(range.start, area);
    }

    /// Forgets an allocation, and says where it lay. Its pages are the caller's affair.
    pub(super) fn remove(&mut self, base: u64) -> Option<Range<u64>> {
        let area = self.areas.remove(&base)?;
        let range = base..area.end;
        self.new.retain(|&new| new != base);
        self.present.retain(|block| !range.contains(block));
        self.kept.retain(|block| !range.contains(block));
        self.suspects.retain(|block, _| !range.contains(block));
        self.habits.retain(|block, _| !range.contains(block));
        self.wanted.retain(|wanted| !range.contains(&wanted.start));
        Some(range)
    }

    /// Says who may use an allocation from now on.
    pub(super) fn attach(&mut self, address: u64, attached: Attached) {
        let Some((place, area)) = self.look(address) else { return };
        area.attached = attached;
        let range = place.base..area.end;
        let (from, to) = match attached {
            Attached::Device => (&mut self.kept, &mut self.present),
            Attached::Host => (&mut self.present, &mut self.kept),
        };
        to.extend(from.extract_if(.., |block| range.contains(block)));
    }

    /// A range was prefetched to the host: it comes with the next [`Self::recall`]. Of too many
    /// ranges the oldest come when they are touched.
    pub(super) fn want(&mut self, range: Range<u64>) {
        if self.wanted.len() >= MOST_WANTED {
            self.wanted.remove(0);
        }
        self.wanted.push(range);
    }

    /// What must be handed over before kernels are posted: 0 if nothing.
    pub(super) fn held(&self) -> usize {
        self.new.len() + self.present.len()
    }

    /// What is attached to the host, and must be handed over before other work is posted.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// What changes when work has been waited for: suspects leave, habits and what is wanted come.
    /// 0 if nothing.
    pub(super) fn unsettled(&self) -> usize {
        self.suspects.len() + self.habits.len() + self.wanted.len()
    }

    fn place(&self, address: u64) -> Option<Place> {
        let (&base, area) = self.areas.range(..=address).next_back()?;
        let index = ((address - base) / BLOCK_BYTES) as usize;
        (address < area.end).then_some(Place { base, index })
    }

    fn look(&mut self, address: u64) -> Option<(Place, &mut Area)> {
        let place = self.place(address)?;
        self.areas.get_mut(&place.base).map(|area| (place, area))
    }

    /// Serves a fault of the host.
    pub(super) fn touch(
        &mut self,
        address: u64,
        fault: Fault,
        flight: Flight,
        carrier: &mut impl Carrier,
    ) {
        let page = self.pages.first(address);
        let page = page..page + self.pages.bytes();
        // What is freed is no longer mapped: trying again is what ends the program, as it should.
        let Some((place, area)) = self.look(address) else { return carrier.wake(page) };
        let block = area.block(place.base, place.index);
        match (area.blocks[place.index], fault) {
            (State::Absent, Fault::Read | Fault::Write) => {
                self.note_habit(block.start, fault);
                let most_bytes = match self.last {
                    (last, length) if last == block.start => (length * 2).min(LONGEST_FETCH_BYTES),
                    _ => BLOCK_BYTES,
                };
                self.bring(place, most_bytes, fault, flight, carrier);
            }
            (State::Clean, Fault::Guarded) => {
                self.note_habit(block.start, Fault::Write);
                self.soil(block, carrier);
            }
            // It left, or came, while the fault was on its way. Trying again tells what is missing.
            (State::Absent | State::Dirty, Fault::Guarded) => carrier.wake(page),
            // The same, or the program has thrown the page away (`MADV_DONTNEED`).
            (state, Fault::Read | Fault::Write) => {
                if carrier.fill_hole(page.clone()) == Hole::Filled && state == State::Clean {
                    self.soil(block, carrier);
                }
                carrier.wake(page);
            }
        }
    }

    /// A block was touched. Where the one before it was, too, the host goes through memory, and
    /// where many are, there is no habit.
    fn note_habit(&mut self, block: u64, fault: Fault) {
        let follows = self.last.0 == block && self.habits.remove(&(block - BLOCK_BYTES)).is_some();
        if follows || self.last.0 == block && self.last.1 > BLOCK_BYTES {
            return;
        }
        if self.habits.len() >= MOST_HABITS && !self.habits.contains_key(&block) {
            self.habits.clear();
        }
        self.habits.insert(block, Habit { fault, recalls_left: RECALLS });
    }

    /// Whether [`Self::recall`] has something to do.
    pub(super) fn misses(&self) -> bool {
        let is_absent = |place: Place| {
            self.areas
                .get(&place.base)
                .is_some_and(|area| area.blocks[place.index] == State::Absent)
        };
        let is_missed = |&block| self.place(block).is_some_and(is_absent);
        !self.wanted.is_empty() || self.habits.keys().any(is_missed)
    }

    /// All work has been waited for: what the host wants, or is used to touch then, comes before it
    /// does.
    pub(super) fn recall(&mut self, carrier: &mut impl Carrier) {
        for range in std::mem::take(&mut self.wanted) {
            self.bring_all(range, carrier);
        }
        let habits = std::mem::take(&mut self.habits);
        for (block, Habit { fault, recalls_left }) in habits {
            let Some((place, area)) = self.look(block) else { continue };
            if area.blocks[place.index] != State::Absent {
                self.habits.insert(block, Habit { fault, recalls_left });
                continue;
            }
            self.bring(place, BLOCK_BYTES, fault, Flight::Idle, carrier);
            self.last = (0, 0);
            if recalls_left > 1 {
                self.habits.insert(block, Habit { fault, recalls_left: recalls_left - 1 });
            }
        }
    }

    /// Has what is absent of a range in the mirror, once no work is in flight.
    fn bring_all(&mut self, range: Range<u64>, carrier: &mut impl Carrier) {
        let mut at = range.start;
        while at < range.end {
            let Some((place, area)) = self.look(at) else { return };
            let block = area.block(place.base, place.index);
            at = block.end;
            if area.blocks[place.index] == State::Absent {
                let most_bytes = (range.end - block.start).clamp(BLOCK_BYTES, LONGEST_FETCH_BYTES);
                at = self.bring(place, most_bytes, Fault::Read, Flight::Idle, carrier);
            }
        }
        self.last = (0, 0);
    }

    /// Has an absent block in the mirror, and what is absent behind it, up to so many bytes. Says
    /// where that ends.
    fn bring(
        &mut self,
        place: Place,
        most_bytes: u64,
        fault: Fault,
        flight: Flight,
        carrier: &mut impl Carrier,
    ) -> u64 {
        let Some(area) = self.areas.get_mut(&place.base) else { return place.base };
        let Range { start, end } = area.block(place.base, place.index);
        let most = (most_bytes / BLOCK_BYTES) as usize;
        let absent = area.blocks[place.index..].iter().take(most);
        let count = absent.take_while(|&&state| state == State::Absent).count();
        let range = start..area.block(place.base, place.index + count - 1).end;
        let state = match (flight, fault) {
            _ if area.is_new => State::Dirty,
            (Flight::Idle, Fault::Write) => State::Dirty,
            _ => State::Clean,
        };
        let is_suspect = flight == Flight::Busy && !area.is_new;
        match state {
            _ if area.is_new => carrier.zero(range.clone()),
            State::Dirty => carrier.fetch(range.clone(), Guard::Off),
            _ => carrier.fetch(range.clone(), Guard::On),
        }
        area.blocks[place.index..place.index + count].fill(state);
        self.last = (range.end, most_bytes);
        let present = match area.attached {
            Attached::Device => &mut self.present,
            Attached::Host => &mut self.kept,
        };
        for block in range.clone().step_by(BLOCK_BYTES as usize) {
            present.push(block);
            if is_suspect {
                self.suspects.insert(block, None);
            }
        }
        if state == State::Clean && fault == Fault::Write {
            self.soil(start..end, carrier);
        }
        range.end
    }

    /// A clean block becomes dirty.
    fn soil(&mut self, block: Range<u64>, carrier: &mut impl Carrier) {
        if let Some(twin) = self.suspects.get_mut(&block.start) {
            *twin = Some(carrier.host_bytes(block.clone()));
        }
        if let Some((place, area)) = self.look(block.start) {
            area.blocks[place.index] = State::Dirty;
        }
        carrier.guard(block, Guard::Off);
    }

    /// Before work is posted: of what it may use the device has everything, and the mirror nothing.
    pub(super) fn hand_over(&mut self, uses: Uses, carrier: &mut impl Carrier) -> Result {
        for base in self.new.drain(..) {
            if let Some(area) = self.areas.get_mut(&base) {
                area.is_new = false;
            }
        }
        let mut leaving = std::mem::take(&mut self.present);
        if uses == Uses::All {
            leaving.append(&mut self.kept);
        }
        leaving.sort_unstable();
        self.release(leaving, carrier)
    }

    /// After work was waited for: suspect blocks leave the mirror.
    pub(super) fn settle(&mut self, carrier: &mut impl Carrier) -> Result {
        let leaving: Vec<u64> = self.suspects.keys().copied().collect();
        let suspects = &self.suspects;
        for present in [&mut self.present, &mut self.kept] {
            present.retain(|block| !suspects.contains_key(block));
        }
        self.release(leaving, carrier)
    }

    /// Has blocks leave the mirror, in order of their addresses. After an error, which only a
    /// session that has failed gives, the rest stays.
    fn release(&mut self, blocks: Vec<u64>, carrier: &mut impl Carrier) -> Result {
        let mut rest = blocks.as_slice();
        while let Some(&first) = rest.first() {
            let (count, range, state) = self.run(rest);
            let released = match (state, self.suspects.get(&first)) {
                (State::Dirty, twin) => {
                    // Who writes meanwhile waits, and finds the block absent.
                    carrier.guard(range.clone(), Guard::On);
                    match twin {
                        Some(Some(twin)) => carry_changes(range.clone(), twin, carrier),
                        _ => carrier.carry(range.clone()),
                    }
                }
                _ => Ok(()),
            };
            if let Err(error) = released {
                carrier.guard(range, Guard::Off);
                self.present.extend_from_slice(rest);
                return Err(error);
            }
            carrier.drop(range);
            for &block in &rest[..count] {
                self.suspects.remove(&block);
                if let Some((place, area)) = self.look(block) {
                    area.blocks[place.index] = State::Absent;
                }
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// The blocks at the beginning that follow each other and are alike; one, if it has a twin.
    fn run(&self, blocks: &[u64]) -> (usize, Range<u64>, State) {
        let about = |block: u64| {
            let place = self.place(block);
            let found = place.and_then(|place| Some((place, self.areas.get(&place.base)?)));
            found.map(|(place, area)| {
                (area.block(place.base, place.index), area.blocks[place.index])
            })
        };
        let has_twin = |block: u64| matches!(self.suspects.get(&block), Some(Some(_)));
        let first = blocks[0];
        // Blocks are those of areas that are there.
        let (mut range, state) = about(first).unwrap_or((first..first, State::Absent));
        let mut count = 1;
        while let Some(&next) = blocks.get(count)
            && next == range.end
            && !has_twin(first)
            && !has_twin(next)
            && let Some((more, alike)) = about(next)
            && alike == state
        {
            range.end = more.end;
            count += 1;
        }
        (count, range, state)
    }
}

/// Carries what the host has changed in a block. Between those bytes a kernel may write meanwhile.
fn carry_changes(block: Range<u64>, twin: &[u8], carrier: &mut impl Carrier) -> Result {
    let now = carrier.host_bytes(block.clone());
    let pieces = changes(twin, &now);
    if pieces.is_empty() { Ok(()) } else { carrier.carry_pieces(block.start, &now, &pieces) }
}

#[cfg(test)]
#[path = "blocks_test.rs"]
mod tests;
