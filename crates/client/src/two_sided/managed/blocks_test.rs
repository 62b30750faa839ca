//! The books against a model: a device, a mirror whose pages come and go, and one memory that both
//! are to agree with.

use super::*;
use proptest::prelude::*;

const BASE: u64 = 0x10_0000;
/// The host touches so many bytes, with pages of any length.
const BYTES: usize = (3 * BLOCK_BYTES + 3 * 4096) as usize;

/// Two areas that touch each other; the first ends inside a block, where pages are shorter than
/// blocks.
fn areas(page_bytes: u64) -> [Range<u64>; 2] {
    let split = BASE + 2 * BLOCK_BYTES + page_bytes;
    [BASE..split, split..split + BLOCK_BYTES + 2 * page_bytes]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Missing,
    Guarded,
    Open,
}

struct Machine {
    device: Vec<u8>,
    mirror: Vec<u8>,
    pages: Vec<Page>,
    page_bytes: u64,
}

fn bytes(range: &Range<u64>) -> Range<usize> {
    (range.start - BASE) as usize..(range.end - BASE) as usize
}

impl Machine {
    /// Pages of such a machine, none of which is there.
    fn new(page_bytes: u64, length: u64, device: u8) -> Self {
        let pages = vec![Page::Missing; (length / page_bytes) as usize];
        let (device, mirror) = (vec![device; length as usize], vec![0xee; length as usize]);
        Self { device, mirror, pages, page_bytes }
    }

    fn page(&self, at: usize) -> usize {
        at / self.page_bytes as usize
    }

    fn pages(&mut self, range: &Range<u64>) -> &mut [Page] {
        let bytes = bytes(range);
        let pages = self.page(bytes.start)..self.page(bytes.end);
        &mut self.pages[pages]
    }

    fn put(&mut self, range: Range<u64>, from: Option<Vec<u8>>, page: Page) {
        let all = self.pages(&range);
        assert!(all.iter().all(|page| *page == Page::Missing), "pages come where there are none");
        all.fill(page);
        match from {
            Some(from) => self.mirror[bytes(&range)].copy_from_slice(&from),
            None => self.mirror[bytes(&range)].fill(0),
        }
    }
}

impl Carrier for Machine {
    fn fetch(&mut self, range: Range<u64>, guard: Guard) {
        let from = self.device[bytes(&range)].to_vec();
        let page = if guard == Guard::On { Page::Guarded } else { Page::Open };
        self.put(range, Some(from), page);
    }

    fn zero(&mut self, range: Range<u64>) {
        self.put(range, None, Page::Open);
    }

    fn fill_hole(&mut self, page: Range<u64>) -> Hole {
        if self.pages(&page)[0] != Page::Missing {
            return Hole::None;
        }
        self.put(page, None, Page::Open);
        Hole::Filled
    }

    fn guard(&mut self, range: Range<u64>, guard: Guard) {
        let all = self.pages(&range);
        assert!(all.iter().all(|page| *page != Page::Missing), "only what is there is guarded");
        all.fill(if guard == Guard::On { Page::Guarded } else { Page::Open });
    }

    fn wake(&mut self, _: Range<u64>) {}

    fn host_bytes(&mut self, range: Range<u64>) -> Vec<u8> {
        let guarded = self.pages(&range).iter().all(|page| *page == Page::Guarded);
        assert!(guarded, "nobody writes while the bytes are read");
        self.mirror[bytes(&range)].to_vec()
    }

    fn carry(&mut self, range: Range<u64>) -> Result {
        let now = self.host_bytes(range.clone());
        self.device[bytes(&range)].copy_from_slice(&now);
        Ok(())
    }

    fn carry_pieces(&mut self, block: u64, now: &[u8], pieces: &[Range<usize>]) -> Result {
        let device = &mut self.device[(block - BASE) as usize..];
        pieces.iter().for_each(|piece| device[piece.clone()].copy_from_slice(&now[piece.clone()]));
        Ok(())
    }

    fn drop(&mut self, range: Range<u64>) {
        self.pages(&range).fill(Page::Missing);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The host looks at so many bytes.
    Read { at: usize, length: usize },
    /// The host writes, every byte or every second one.
    Write { at: usize, length: usize, value: u8 },
    /// Work is posted that will write odd bytes.
    Post { at: usize, length: usize, value: u8 },
    /// The oldest work that was posted runs.
    Run,
    /// All work is done, and was waited for.
    Wait,
    /// Something was waited for, perhaps other work.
    Settle,
    /// An allocation is attached.
    Attach { area: usize, to: Attached },
    /// Bytes are prefetched to the host.
    Want { at: usize, length: usize },
    /// A copy is posted, which may use everything.
    Copy,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![Just(1_usize), 2..64_usize, 4000..90_000_usize];
    let place = (0..BYTES, length, 1..=u8::MAX);
    prop_oneof![
        3 => place.clone().prop_map(|(at, length, _)| Step::Read { at, length }),
        4 => place.clone().prop_map(|(at, length, value)| Step::Write { at, length, value }),
        2 => place.clone().prop_map(|(at, length, value)| Step::Post { at, length, value }),
        1 => place.prop_map(|(at, length, _)| Step::Want { at, length }),
        1 => (0..2_usize, any::<bool>()).prop_map(|(area, is_hosts)| Step::Attach {
            area,
            to: if is_hosts { Attached::Host } else { Attached::Device },
        }),
        1 => Just(Step::Copy),
        2 => Just(Step::Run),
        2 => Just(Step::Wait),
        1 => Just(Step::Settle),
    ]
}

struct World {
    machine: Machine,
    books: Books,
    /// What both sides should see.
    truth: Vec<u8>,
    /// The bytes that work writes, and what.
    posted: Vec<(Vec<usize>, u8)>,
    flight: Flight,
    /// Of both areas.
    attached: [Attached; 2],
}

impl World {
    /// Has a page that the host can use, as a thread that meets faults until it can.
    fn reach(&mut self, at: usize, access: Fault) {
        for _ in 0..4 {
            let fault = match (self.machine.pages[self.machine.page(at)], access) {
                (Page::Missing, access) => access,
                (Page::Guarded, Fault::Write) => Fault::Guarded,
                _ => return,
            };
            self.books.touch(BASE + at as u64, fault, self.flight, &mut self.machine);
        }
        panic!("the host never reaches byte {at}");
    }

    fn run_oldest(&mut self) {
        if self.posted.is_empty() {
            return;
        }
        let (written, value) = self.posted.remove(0);
        for i in written {
            self.machine.device[i] = value;
            self.truth[i] = value;
        }
    }

    fn area(&self, at: usize) -> usize {
        usize::from(!areas(self.machine.page_bytes)[0].contains(&(BASE + at as u64)))
    }

    /// Bytes that belong to the host: while work is in flight, the odd ones are the device's, but
    /// for those of what is attached to the host.
    fn is_hosts(&self, at: usize) -> bool {
        let is_attached = self.attached[self.area(at)] == Attached::Host;
        self.flight == Flight::Idle || at.is_multiple_of(2) || is_attached
    }

    /// The device has all that work may use, and the mirror nothing of it.
    fn must_have_handed_over(&self, uses: Uses) {
        for (range, attached) in areas(self.machine.page_bytes).iter().zip(self.attached) {
            if uses == Uses::Device && attached == Attached::Host {
                continue;
            }
            let bytes = bytes(range);
            let pages = self.machine.page(bytes.start)..self.machine.page(bytes.end);
            assert!(self.machine.pages[pages].iter().all(|page| *page == Page::Missing));
            let is_there = self.machine.device[bytes.clone()] == self.truth[bytes];
            assert!(is_there, "the device has what the host wrote");
        }
    }

    fn settle(&mut self) {
        self.books.settle(&mut self.machine).unwrap();
        assert!(self.books.suspects.is_empty());
        if self.flight == Flight::Idle {
            self.books.recall(&mut self.machine);
            assert!(!self.books.misses());
        }
    }

    fn act(&mut self, step: Step) {
        match step {
            Step::Read { at, length } => {
                for i in at..(at + length).min(BYTES) {
                    self.reach(i, Fault::Read);
                    if self.is_hosts(i) {
                        assert_eq!(self.machine.mirror[i], self.truth[i], "host's byte {i}");
                    }
                }
            }
            Step::Write { at, length, value } => {
                for i in at..(at + length).min(BYTES) {
                    if !self.is_hosts(i) {
                        continue;
                    }
                    self.reach(i, Fault::Write);
                    self.machine.mirror[i] = value;
                    self.truth[i] = value;
                }
            }
            Step::Post { at, length, value } => {
                self.books.hand_over(Uses::Device, &mut self.machine).unwrap();
                assert_eq!(self.books.held(), 0);
                self.must_have_handed_over(Uses::Device);
                let is_devices =
                    |i: &usize| i % 2 == 1 && self.attached[self.area(*i)] == Attached::Device;
                let written = (at..(at + length).min(BYTES)).filter(is_devices).collect();
                self.posted.push((written, value));
                self.flight = Flight::Busy;
            }
            Step::Run => self.run_oldest(),
            Step::Wait => {
                while !self.posted.is_empty() {
                    self.run_oldest();
                }
                self.flight = Flight::Idle;
                self.settle();
            }
            Step::Settle => self.settle(),
            Step::Attach { area, to } => {
                // What kernels in flight use is not the host's yet.
                if to == Attached::Device || self.flight == Flight::Idle {
                    self.attached[area] = to;
                    self.books.attach(areas(self.machine.page_bytes)[area].start, to);
                }
            }
            Step::Want { at, length } => {
                let range = at..(at + length).min(BYTES);
                self.books.want(BASE + range.start as u64..BASE + range.end as u64);
                if self.flight == Flight::Idle {
                    self.books.recall(&mut self.machine);
                    range.for_each(|i| {
                        let page = self.machine.pages[self.machine.page(i)];
                        assert_ne!(page, Page::Missing, "byte {i} was prefetched");
                    });
                }
            }
            Step::Copy => {
                self.books.hand_over(Uses::All, &mut self.machine).unwrap();
                assert_eq!((self.books.held(), self.books.kept()), (0, 0));
                self.must_have_handed_over(Uses::All);
                self.flight = Flight::Busy;
            }
        }
    }
}

fn world(page_bytes: u64) -> World {
    let mut books = Books { pages: Pages::of(page_bytes), ..Books::default() };
    let areas = areas(page_bytes);
    let length = areas[1].end - BASE;
    areas.into_iter().for_each(|area| books.add(area));
    let truth = vec![0; length as usize];
    let machine = Machine::new(page_bytes, length, 0);
    World {
        machine,
        books,
        truth,
        posted: Vec::new(),
        flight: Flight::Idle,
        attached: [Attached::Device; 2],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn neither_side_loses_a_byte(
        page_kib in prop::sample::select(vec![4_u64, 16, 64]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut world = world(page_kib << 10);
        for step in steps {
            world.act(step);
        }
        world.act(Step::Wait);
        world.act(Step::Read { at: 0, length: BYTES });
    }
}

#[test]
fn touches_that_follow_each_other_are_fetched_in_growing_pieces() {
    let (start, length) = (BASE, 64 * BLOCK_BYTES);
    let page_bytes = 4096;
    let mut books = Books { pages: Pages::of(page_bytes), ..Books::default() };
    books.add(start..start + length);
    let mut machine = Machine::new(page_bytes, length, 7);
    books.hand_over(Uses::Device, &mut machine).unwrap();
    let mut fetched = Vec::new();
    while let Some(page) = machine.pages.iter().position(|page| *page == Page::Missing) {
        let address = start + page as u64 * page_bytes;
        books.touch(address, Fault::Read, Flight::Idle, &mut machine);
        let there = machine.pages.iter().filter(|page| **page != Page::Missing).count();
        fetched.push(there as u64 * page_bytes / BLOCK_BYTES);
    }
    assert_eq!(fetched, [1, 3, 7, 15, 31, 63, 64]);
    assert!(!books.misses(), "who goes through memory does not come back");
}

#[test]
fn what_is_touched_alone_comes_back_by_itself_for_a_while() {
    let page_bytes = 4096;
    let mut world = world(page_bytes);
    let post = Step::Post { at: 1, length: 1, value: 1 };
    let there = |world: &World, at: u64| world.machine.pages[world.machine.page(at as usize)];
    let (looked_at, written) = (7, 2 * BLOCK_BYTES + page_bytes + 5);
    world.act(post.clone());
    world.act(Step::Wait);
    world.act(Step::Read { at: looked_at as usize, length: 1 });
    world.act(Step::Write { at: written as usize, length: 1, value: 9 });
    for round in 0..RECALLS {
        world.act(post.clone());
        world.act(Step::Wait);
        let found = (there(&world, looked_at), there(&world, written));
        assert_eq!(found, (Page::Guarded, Page::Open), "round {round}");
    }
    world.act(post.clone());
    world.act(Step::Wait);
    assert_eq!((there(&world, looked_at), there(&world, written)), (Page::Missing, Page::Missing));
    assert_eq!(world.books.unsettled(), 0, "nobody looked for it");
}

#[test]
fn many_touches_are_no_habit() {
    let (start, length) = (BASE, 64 * BLOCK_BYTES);
    let mut books = Books { pages: Pages::of(4096), ..Books::default() };
    books.add(start..start + length);
    let mut machine = Machine::new(4096, length, 7);
    books.hand_over(Uses::Device, &mut machine).unwrap();
    for block in (0..64_u16).step_by(2).rev().map(u64::from) {
        books.touch(start + block * BLOCK_BYTES, Fault::Read, Flight::Idle, &mut machine);
        assert!(books.habits.len() <= MOST_HABITS);
    }
}

#[test]
fn what_was_freed_or_thrown_away_holds_nobody_up() {
    let page_bytes = 4096;
    let mut world = world(page_bytes);
    world.act(Step::Write { at: 0, length: 10, value: 9 });
    world.machine.drop(BASE..BASE + page_bytes);
    world.reach(5, Fault::Read);
    assert_eq!(world.machine.mirror[5], 0, "the program has thrown it away");
    assert_eq!(world.books.remove(BASE), Some(areas(page_bytes)[0].clone()));
    assert_eq!(world.books.held(), 1, "the other area is new");
    let before = world.machine.pages.clone();
    world.books.touch(BASE, Fault::Write, Flight::Idle, &mut world.machine);
    assert_eq!(world.machine.pages, before);
}
