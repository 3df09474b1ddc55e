//! A decision allocates nothing: counted by the allocator itself, for every policy and with shadows. (Remembering a prompt does; none is
//! given here.)
#![allow(unsafe_code, reason = "a counting global allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use warmroute_fleet::{Models, ProbeResult};
use warmroute_policy::Standard;
use warmroute_router::{Change, Config, Outcome, Request, Router, Scratch};
use warmroute_types::{Address, Micros};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator unchanged; the counter is a plain thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn route_and_observe_allocate_nothing() {
    for name in Standard::NAMES {
        let shadows = Standard::NAMES.iter().map(|shadow| shadow.parse().unwrap()).collect();
        let router = Router::with_shadows(name.parse::<Standard>().unwrap(), shadows, Config::default());
        for i in 0..64 {
            let address = Address::new(format!("http://engine-{i}"));
            router.join(address, Models::named(&["m"])).unwrap();
        }
        for view in router.inspect().workers() {
            router.apply(Change::Probed {
                worker: view.worker,
                result: ProbeResult::Answered,
                at: Micros(1),
            });
        }
        let mut scratch = Scratch::default();
        let before = ALLOCATIONS.with(Cell::get);
        for i in 0..1_000_u64 {
            let request =
                Request { model: Some("m"), session_key: Some(i), prefix_key: Some(i), ..Request::default() };
            let mut decision = router.route(&request, &mut scratch, Micros(i), i).unwrap();
            router.observe(&mut decision, Outcome::FirstToken { at: Micros(1) });
        }
        assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "{name}");
    }
}
